//! The new process's side of a takeover; `give` draws both.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hark_archive::store::Mark;

use super::control::{ControlError, broken};
use super::exchange::{Event, Take, Taker};
use super::fds;
use super::give::RETRY;
use super::handover::{Claim, Handover};
use super::protocol::{
    self, FAILED, GO, HANDED, PROGRESS, READY, STARTED, TAKEOVER, TAKEOVER_VERSION, mark_bytes,
};

/// Bytes of a line of progress, or of a reason.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// A takeover under way. A process that ends before [`Taking::finish`] leaves the running server as it
/// was.
pub struct Taking {
    stream: UnixStream,
    lock: Option<OwnedFd>,
    turn: u64,
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
        let turn = body.try_into().map(u64::from_le_bytes);
        let turn = turn.map_err(|_| broken("a turn that is none"))?;
        let mut handed = fds::receive(&stream)?.into_iter();
        let lock = handed.next();
        Ok(Self { stream, lock, turn, listeners: handed.map(TcpListener::from).collect() })
    }

    /// The hold on the archive's lock.
    pub fn lock(&mut self) -> Option<OwnedFd> {
        self.lock.take()
    }

    /// The turn up to which this process can claim the right to write.
    pub fn turn(&self) -> u64 {
        self.turn
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

    /// All is ready: waits for the other server to offer the right to write, claims it, begins to
    /// write the archive, and says so. What is returned is the connection of a server that follows,
    /// and from where on. If it fails, nothing was written; the right to write goes back when this
    /// process ends. A server that is gone, but has not ended, is waited for with some patience.
    pub(crate) fn finish(
        mut self,
        archive: &dyn Handover,
        patience: Duration,
    ) -> Result<(UnixStream, Mark), ControlError> {
        // If it can not be said, that the other server is gone, or has given up, is heard next.
        let _ = protocol::write(&mut self.stream, READY, std::process::id().to_string().as_bytes());
        let mut taker = Taker::Ready;
        let (mut event, mut failed) = self.hear_go();
        let late = Instant::now() + patience;
        loop {
            let (next, what) = taker.next(event);
            taker = next;
            event = match what {
                Take::Listen if Instant::now() > late => Event::Late,
                Take::Listen => {
                    std::thread::sleep(RETRY);
                    Event::Moment
                }
                Take::Claim => match archive.claim() {
                    Ok(Claim::Mine) => Event::Claimed,
                    Ok(Claim::Held) => Event::Held,
                    Ok(Claim::Late) => {
                        failed = refused("the server that runs has gone on meanwhile");
                        Event::Unable
                    }
                    Err(error) => {
                        failed = error.into();
                        Event::Unable
                    }
                },
                Take::Begin => match archive.take() {
                    Ok(()) => Event::Begun,
                    Err(reason) => {
                        failed = ControlError::Refused(reason);
                        Event::Unable
                    }
                },
                Take::Start => {
                    let begin = archive.end();
                    // If it can not be said, the other server is about to end, or has ended.
                    let _ = protocol::write(&mut self.stream, STARTED, &mark_bytes(begin));
                    return Ok((self.stream, begin));
                }
                Take::End => {
                    // Only for the log of the other server, if it is there.
                    let _ =
                        protocol::write(&mut self.stream, FAILED, failed.to_string().as_bytes());
                    return Err(failed);
                }
            };
        }
    }

    /// The answer to READY, and what has failed if nothing comes of it.
    fn hear_go(&mut self) -> (Event, ControlError) {
        let mut body = Vec::new();
        match hear(&mut self.stream, &mut body) {
            Ok(GO) => (Event::Go, refused("the server that runs has taken it back")),
            Ok(FAILED) => (Event::Failed, refused(&String::from_utf8_lossy(&body))),
            Ok(_) => (Event::Failed, broken("an answer to something else")),
            Err(error) => (Event::Gone, error),
        }
    }
}

fn refused(why: &str) -> ControlError {
    ControlError::Refused(why.into())
}

/// The next frame. Nothing is read ahead, as sockets may come behind it.
fn hear(stream: &mut UnixStream, body: &mut Vec<u8>) -> Result<u8, ControlError> {
    let what = protocol::read(stream, body, TEXT_BYTES_MAX)?;
    what.ok_or_else(|| broken("the end, before an answer"))
}
