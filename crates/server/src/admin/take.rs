//! The new process's side of a takeover; `give` draws both.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use hark_archive::store::Mark;

use super::control::{ControlError, broken};
use super::fds;
use super::protocol::{
    self, FAILED, GO, HANDED, PROGRESS, READY, STARTED, TAKEOVER, TAKEOVER_VERSION, mark_bytes,
};

/// Bytes of a line of progress, or of a reason.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// A takeover under way. Dropped before [`Taking::finish`], it leaves the running server as it was.
pub struct Taking {
    stream: UnixStream,
    lock: Option<OwnedFd>,
    listeners: Vec<TcpListener>,
}

impl Taking {
    /// Asks the server whose socket lies at `path` for its archive and its sockets. On return that
    /// server writes no more, but goes on if this one does not [finish](Taking::finish). Lines of
    /// progress are passed on.
    pub fn ask(path: &Path, progress: &mut dyn FnMut(&str)) -> Result<Self, ControlError> {
        let mut stream = super::control::stream(path)?;
        protocol::write(&mut stream, TAKEOVER, &TAKEOVER_VERSION.to_le_bytes())?;
        let mut body = Vec::new();
        loop {
            let what = hear(&mut stream, &mut body)?;
            let text = String::from_utf8_lossy(&body);
            match what {
                PROGRESS => progress(&text),
                FAILED => return Err(ControlError::Refused(text.into_owned())),
                HANDED => break,
                _ => return Err(broken("an answer to something else")),
            }
        }
        let mut handed = fds::receive(&stream)?.into_iter();
        let lock = handed.next();
        Ok(Self { stream, lock, listeners: handed.map(TcpListener::from).collect() })
    }

    /// The hold on the archive's lock.
    pub fn lock(&mut self) -> Option<OwnedFd> {
        self.lock.take()
    }

    /// The socket that was handed over for this address, if one was.
    pub(crate) fn listener(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
        let fits = |listener: &TcpListener| {
            listener.local_addr().is_ok_and(|addr| {
                addr.ip() == wanted.ip() && [addr.port(), 0].contains(&wanted.port())
            })
        };
        let at = self.listeners.iter().position(fits)?;
        Some(self.listeners.remove(at))
    }

    /// All is ready: waits for the other server to let this one write. That one goes on if this
    /// process ends before [`Taking::finish`].
    pub(crate) fn go(&mut self) -> Result<(), ControlError> {
        protocol::write(&mut self.stream, READY, b"")?;
        let mut body = Vec::new();
        match hear(&mut self.stream, &mut body)? {
            GO => Ok(()),
            FAILED => Err(ControlError::Refused(String::from_utf8_lossy(&body).into_owned())),
            _ => Err(broken("an answer to something else")),
        }
    }

    /// This process is the one that writes, from `begin` on. The connection is that of a server that
    /// follows.
    pub(crate) fn finish(mut self, begin: Mark) -> UnixStream {
        // Nothing is written before this is said. If it cannot be said the other server has just
        // ended, and this one has the archive all the same.
        let _ = protocol::write(&mut self.stream, STARTED, &mark_bytes(begin));
        self.stream
    }
}

/// The next frame. Nothing is read ahead, as sockets may come behind it.
fn hear(stream: &mut UnixStream, body: &mut Vec<u8>) -> Result<u8, ControlError> {
    let what = protocol::read(stream, body, TEXT_BYTES_MAX)?;
    what.ok_or_else(|| broken("the end, before an answer"))
}
