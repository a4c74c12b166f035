//! A proxy between the two servers of a takeover, which forwards their messages one at a time. A
//! test can hold back a message at every step and disturb either server.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The messages of a successful takeover, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Takeover = 5,
    Handed = 0x85,
    Ready = 6,
    Go = 0x86,
    Started = 7,
}

const ORDER: [Said; 5] = [Said::Takeover, Said::Handed, Said::Ready, Said::Go, Said::Started];
const FDS_MAX: usize = 32;

/// The proxy, which listens in place of a server's control.sock.
pub(super) struct Between {
    listener: UnixListener,
    path: PathBuf,
    old: PathBuf,
}

/// A frame with its attached sockets and files.
struct Frame {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A takeover that is paused before a message is forwarded.
pub(super) struct Paused {
    new: UnixStream,
    old: UnixStream,
    from_new: bool,
    frame: Option<Frame>,
}

impl Between {
    /// Puts a proxy between the server in this directory and the next process that connects to the
    /// server.
    pub(super) fn come(data: &Path) -> Self {
        let (path, old) = (data.join("control.sock"), data.join("moved.sock"));
        std::fs::rename(&path, &old).expect("a server runs");
        Self { listener: UnixListener::bind(&path).expect("is bound"), path, old }
    }

    /// Removes the proxy for new connections. Forwarded connections continue.
    pub(super) fn go(self) {
        std::fs::rename(&self.old, &self.path).expect("is moved back");
    }

    /// Forwards the messages between the next new process and the old process, up to `stop`, which
    /// is held back.
    pub(super) fn hold(&self, stop: Said) -> Paused {
        let (new, _) = self.listener.accept().expect("asks");
        let old = UnixStream::connect(&self.old).expect("a server runs");
        for said in ORDER {
            let from_new = matches!(said, Said::Takeover | Said::Ready | Said::Started);
            let (from, to) = if from_new { (&new, &old) } else { (&old, &new) };
            loop {
                let frame = read(from).expect("is read").expect("it says something");
                let what = frame.bytes[4];
                if what == said as u8 && said == stop {
                    return Paused { new, old, from_new, frame: Some(frame) };
                }
                write(to, &frame).expect("is passed on");
                if what == said as u8 {
                    break;
                }
                // A line of progress, or a part of a door's state.
                assert!([0x82, 0x88].contains(&what), "{}", String::from_utf8_lossy(&frame.bytes));
            }
        }
        unreachable!("one of them is held back");
    }
}

impl Paused {
    /// Drops the held message, and forwards all later messages.
    pub(super) fn lose(mut self) {
        self.frame = None;
        self.pass();
    }

    /// Forwards the held message and all later messages, until both processes end.
    pub(super) fn pass(self) {
        let Self { new, old, from_new, frame } = self;
        if let Some(frame) = frame {
            // The receiving process may have ended.
            let _ = write(if from_new { &old } else { &new }, &frame);
        }
        for (from, to) in [(&new, &old), (&old, &new)] {
            let (from, to) = (from.try_clone().expect("cloned"), to.try_clone().expect("cloned"));
            std::thread::spawn(move || pass_all(&from, &to));
        }
    }
}

/// Forwards all frames. When the sender closes its end, closes the receiver's end for the same
/// direction.
fn pass_all(from: &UnixStream, to: &UnixStream) {
    while let Ok(Some(frame)) = read(from) {
        if write(to, &frame).is_err() {
            let _ = from.shutdown(Shutdown::Read);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn read(mut from: &UnixStream) -> io::Result<Option<Frame>> {
    let mut bytes = vec![0; 4];
    if from.read(&mut bytes[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut bytes[1..])?;
    let len = u32::from_le_bytes(bytes[..4].try_into().expect("four"));
    bytes.resize(4 + len as usize, 0);
    from.read_exact(&mut bytes[4..])?;
    let fds = if bytes[4] == Said::Handed as u8 { receive(from)? } else { Vec::new() };
    Ok(Some(Frame { bytes, fds }))
}

fn write(mut to: &UnixStream, frame: &Frame) -> io::Result<()> {
    to.write_all(&frame.bytes)?;
    if frame.fds.is_empty() {
        return Ok(());
    }
    let fds: Vec<_> = frame.fds.iter().map(OwnedFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(to, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(from: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let handed = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(handed.flatten().collect())
}
