//! The new process's side of a takeover. The docs of `handover` have a diagram of both sides.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::control_error::{ControlError, broken};
use super::exchange::{ExchangeEvent, NewProcess, NewProcessStep};
use super::fds;
use super::protocol::{
    self, ControlFrame, FAILED, GO, HANDED, PEER_FRAME_BYTES_MAX, PROGRESS, READY, STARTED, STATE,
    TAKEOVER, TAKEOVER_VERSION,
};
use super::takeover_parties::{RETRY, TakeoverLock, WriteClaim};
use crate::shelf::MovableShelf;
use crate::sockets::WantedSocket;

/// A takeover under way. If this process ends before it serves, the running server continues.
pub struct Takeover {
    stream: UnixStream,
    lock: Option<OwnedFd>,
    turn: u64,
    sockets: Vec<OwnedFd>,
    states: Vec<(String, Vec<u8>)>,
    /// The shelves of the running server.
    shelves: Vec<String>,
}

impl Takeover {
    /// Asks the server whose control socket is at `path` to hand over its archive and its listening
    /// sockets. The archive must have these shelves. On success, the server has stopped writing. It
    /// writes again if this process does not finish the takeover. `progress` receives lines of
    /// progress.
    pub fn ask(
        path: &Path,
        shelves: &[&str],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, ControlError> {
        let mut stream = super::control::stream(path)?;
        let mut wish = TAKEOVER_VERSION.to_le_bytes().to_vec();
        wish.extend(shelves.join("\n").into_bytes());
        protocol::write(&mut stream, TAKEOVER, "", &wish)?;
        let (mut frame, mut states) = (ControlFrame::default(), Vec::new());
        loop {
            receive(&mut stream, &mut frame)?;
            match frame.what {
                PROGRESS => progress(&frame.text()),
                STATE => states.push((frame.shelf().to_owned(), frame.body().to_vec())),
                FAILED => return Err(ControlError::Refused(frame.text().into_owned())),
                HANDED => break,
                _ => return Err(broken("an answer of an unexpected type")),
            }
        }
        let turn = frame.body().try_into().map(u64::from_le_bytes);
        let turn = turn.map_err(|_| broken("an invalid turn"))?;
        let mut handed = fds::receive(&stream)?.into_iter();
        let lock = handed.next();
        let sockets = handed.collect();
        let shelves = shelves.iter().map(|name| (*name).to_owned()).collect();
        Ok(Self { stream, lock, turn, sockets, states, shelves })
    }

    /// Returns the names of the running server's shelves. That server follows these shelves after
    /// the takeover.
    pub(crate) fn shelves(&self) -> Vec<String> {
        self.shelves.clone()
    }

    /// Returns the states of the other server's doors, by shelf name. Empty at the second call.
    pub(crate) fn states(&mut self) -> Vec<(String, Vec<u8>)> {
        std::mem::take(&mut self.states)
    }

    /// Returns the handle of the archive's lock. `None` at the second call.
    pub fn lock(&mut self) -> Option<OwnedFd> {
        self.lock.take()
    }

    /// The last turn at which this process can claim the right to write.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Returns the listening socket that was handed over for this address, or `None`.
    pub(crate) fn socket(&mut self, wanted: &WantedSocket) -> Option<OwnedFd> {
        let at = self.sockets.iter().position(|socket| wanted.is_met_by(socket))?;
        Some(self.sockets.remove(at))
    }

    /// Whether the other server has a socket that excludes the wanted socket.
    pub(crate) fn excludes(&self, wanted: &WantedSocket) -> bool {
        self.sockets.iter().any(|socket| wanted.excludes(socket))
    }

    /// Finishes the takeover, once this process is ready to serve. Waits until the other server
    /// offers the right to write, claims this right, opens all shelves for writing, and sends
    /// STARTED. Returns the connection to the other server, which follows this process from now on.
    /// On failure nothing was written, and the end of this process releases the right to write. If
    /// the other server has disconnected but not ended, this function waits until that server ends,
    /// for at most `patience`.
    pub(crate) fn finish(
        mut self,
        lock: &dyn TakeoverLock,
        shelves: &[MovableShelf],
        patience: Duration,
    ) -> Result<UnixStream, ControlError> {
        // If READY cannot be sent, the next read shows that the other server is gone or gave up.
        let _ =
            protocol::write(&mut self.stream, READY, "", std::process::id().to_string().as_bytes());
        let mut taker = NewProcess::Ready;
        let (mut event, mut failed) = self.receive_go();
        let late = Instant::now() + patience;
        loop {
            let (next, what) = taker.next(event);
            taker = next;
            event = match what {
                NewProcessStep::Listen if Instant::now() > late => ExchangeEvent::Late,
                NewProcessStep::Listen => {
                    std::thread::sleep(RETRY);
                    ExchangeEvent::Moment
                }
                NewProcessStep::Claim => match lock.claim() {
                    Ok(WriteClaim::Mine) => ExchangeEvent::Claimed,
                    Ok(WriteClaim::Held) => ExchangeEvent::Held,
                    Ok(WriteClaim::Late) => {
                        failed = refused("the running server has continued in the meantime");
                        ExchangeEvent::Unable
                    }
                    Err(error) => {
                        failed = error.into();
                        ExchangeEvent::Unable
                    }
                },
                NewProcessStep::Begin => {
                    match shelves.iter().try_for_each(|shelf| shelf.store.begin_writing()) {
                        Ok(()) => ExchangeEvent::Begun,
                        Err(error) => {
                            failed = refused(&error.to_string());
                            ExchangeEvent::Unable
                        }
                    }
                }
                NewProcessStep::Start => {
                    // The remaining sockets belong to addresses that this process does not serve.
                    // Once these sockets are closed, the other server finds its Unix sockets unused
                    // and removes the socket files.
                    self.sockets.clear();
                    // If STARTED cannot be sent, the other server is about to end, or has ended.
                    let _ = protocol::write(&mut self.stream, STARTED, "", b"");
                    return Ok(self.stream);
                }
                NewProcessStep::End => {
                    // This message is only for the log of the other server, if that server still
                    // runs.
                    let _ = protocol::write(
                        &mut self.stream,
                        FAILED,
                        "",
                        failed.to_string().as_bytes(),
                    );
                    return Err(failed);
                }
            };
        }
    }

    /// Waits for the answer to READY. Returns the event, and the error to report if the takeover
    /// fails.
    fn receive_go(&mut self) -> (ExchangeEvent, ControlError) {
        let mut frame = ControlFrame::default();
        match receive(&mut self.stream, &mut frame).map(|()| frame.what) {
            Ok(GO) => (ExchangeEvent::Go, refused("the running server has cancelled the takeover")),
            Ok(FAILED) => (ExchangeEvent::Failed, refused(&frame.text())),
            Ok(_) => (ExchangeEvent::Failed, broken("an answer of an unexpected type")),
            Err(error) => (ExchangeEvent::Gone, error),
        }
    }
}

fn refused(why: &str) -> ControlError {
    ControlError::Refused(why.into())
}

/// Reads the next frame, and no byte after the frame, because sockets may come with the next byte.
fn receive(stream: &mut UnixStream, frame: &mut ControlFrame) -> Result<(), ControlError> {
    if frame.read(stream, PEER_FRAME_BYTES_MAX)? {
        return Ok(());
    }
    Err(broken("no answer before the end of the connection"))
}
