//! What stands between two servers in a takeover and lets through what they say, one word at a time:
//! so a test can hold either up at every step, and do to them what it likes.

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

/// What is said in a takeover that comes through, in order.
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

/// In the place of a server's control.sock.
pub(super) struct Between {
    listener: UnixListener,
    path: PathBuf,
    old: PathBuf,
}

/// A frame, and the sockets and files that came behind it.
struct Frame {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A takeover that was stopped before something was passed on.
pub(super) struct Paused {
    new: UnixStream,
    old: UnixStream,
    from_new: bool,
    frame: Option<Frame>,
}

impl Between {
    /// Comes between the server in this directory and whoever asks it next.
    pub(super) fn come(data: &Path) -> Self {
        let (path, old) = (data.join("control.sock"), data.join("moved.sock"));
        std::fs::rename(&path, &old).expect("a server runs");
        Self { listener: UnixListener::bind(&path).expect("is bound"), path, old }
    }

    /// Goes from where it came between; what it has passed on it goes on with.
    pub(super) fn go(self) {
        std::fs::rename(&self.old, &self.path).expect("is moved back");
    }

    /// Passes on what the next new process and the old one say up to `stop`, which it holds back.
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
                // A line of progress, or what a door goes on with.
                assert!([0x82, 0x88].contains(&what), "{}", String::from_utf8_lossy(&frame.bytes));
            }
        }
        unreachable!("one of them is held back");
    }
}

impl Paused {
    /// Nobody will ever hear what was held back.
    pub(super) fn lose(mut self) {
        self.frame = None;
        self.pass();
    }

    /// Passes on what was held back, and all that comes after it, to the end of both.
    pub(super) fn pass(self) {
        let Self { new, old, from_new, frame } = self;
        if let Some(frame) = frame {
            // Whoever is to hear it may have ended.
            let _ = write(if from_new { &old } else { &new }, &frame);
        }
        for (from, to) in [(&new, &old), (&old, &new)] {
            let (from, to) = (from.try_clone().expect("cloned"), to.try_clone().expect("cloned"));
            std::thread::spawn(move || pass_all(&from, &to));
        }
    }
}

/// Closes what a process would close that is at either end.
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
