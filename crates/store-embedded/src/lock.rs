//! LOCK and WRITER: one writing process a data directory. The system takes the locks on both files
//! back when the process ends, however it ends.
//!
//! LOCK keeps all other processes away. In a takeover two servers hold it together, so that nobody
//! comes between them, and WRITER says which of the two writes: each has opened that file for itself,
//! and only the one that has it locked may write. WRITER has no content, but its length is the turn:
//! even once a process has claimed it, odd once that one has offered it, and never less than before.
//! So a process that was to claim it, and comes after another has, finds that out, even if it is free
//! again.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::disk::{RealDisk, make_dir};
use crate::private;

/// Tries to lock WRITER with LOCK in hand, and the time between two. Another process has it then only
/// if it is just ending.
const TRIES: u32 = 500;
const RETRY: Duration = Duration::from_millis(10);

/// Held as long as it lives.
#[derive(Debug)]
pub struct Lock {
    // Closed before LOCK is: a process that gets that one finds this one free.
    writer: File,
    file: File,
    /// Whether WRITER is locked by this process.
    claimed: bool,
    /// The last turn at which this process may claim it; any, if there is none.
    last: Option<u64>,
}

/// What became of claiming the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is this process's, until [`Lock::offer`] or its end.
    Mine,
    /// Another process has it.
    Held,
    /// It is free, but was a third process's meanwhile, or was offered to one.
    Late,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process writes.
    #[error("the archive in {data} is in use by process {pid}")]
    Held {
        /// The data directory.
        data: PathBuf,
        /// The process that holds it, as it wrote itself.
        pid: String,
    },
    /// The file could not be made or locked.
    #[error("{path} could not be locked: {cause}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl Lock {
    /// Takes the lock of a data directory, which is made if need be, and claims the right to write.
    pub fn acquire(data: &Path) -> Result<Self, LockError> {
        let path = data.join("LOCK");
        let io = |cause| LockError::Io { path: path.clone(), cause };
        make_dir(&RealDisk, data).map_err(io)?;
        let mut file = open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(&mut file, data).map_err(io)?),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let writer = open_writer(data)?;
        let mut lock = Self { writer, file, claimed: false, last: None };
        let mut tries = 0;
        while lock.claim().map_err(in_writer(data))? != Claim::Mine {
            tries += 1;
            if tries == TRIES {
                return Err(held(&mut lock.file, data).map_err(io)?);
            }
            std::thread::sleep(RETRY);
        }
        lock.sign().map_err(io)?;
        Ok(lock)
    }

    /// The lock that another process holds and handed to this one: both hold it, until the last of
    /// them lets go. The right to write can be claimed once the other has offered it, up to `turn`.
    pub fn inherit(handed: OwnedFd, data: &Path, turn: u64) -> Result<Self, LockError> {
        let (writer, file) = (open_writer(data)?, handed.into());
        Ok(Self { writer, file, claimed: false, last: Some(turn) })
    }

    /// Another hold on it, to hand to a process that takes over, and the turn up to which that one can
    /// claim the right to write. This one can claim it back until the other one has offered it on.
    pub fn share(&mut self) -> io::Result<(OwnedFd, u64)> {
        let (file, turn) = (self.file.try_clone()?, self.writer.metadata()?.len());
        self.last = Some(turn + 2);
        Ok((file.into(), turn + 1))
    }

    /// Lets the right to write go, if this process has it.
    pub fn offer(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.claimed) {
            return Ok(());
        }
        let turn = self.writer.metadata().and_then(|known| self.writer.set_len(known.len() + 1));
        self.writer.unlock().and(turn)
    }

    /// Claims the right to write, as soon as no other process has it. Who has it already has it anew,
    /// at another turn: what it has shared before cannot be claimed any more.
    pub fn claim(&mut self) -> io::Result<Claim> {
        match self.writer.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Claim::Held),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let last = self.last.unwrap_or(u64::MAX);
        let claimed = self.writer.metadata().and_then(|known| match known.len() {
            turn if turn > last => Ok(Claim::Late),
            turn => self.writer.set_len((turn / 2 + 1) * 2).map(|()| Claim::Mine),
        });
        self.claimed = matches!(claimed, Ok(Claim::Mine));
        if self.claimed {
            self.last = None;
        } else {
            self.writer.unlock()?;
        }
        claimed
    }

    /// Whether this process has the right to write.
    pub fn is_claimed(&self) -> bool {
        self.claimed
    }

    /// Says in the file that this process has the archive.
    pub fn sign(&self) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    }
}

/// Says who holds the lock.
fn held(file: &mut File, data: &Path) -> io::Result<LockError> {
    let mut pid = String::new();
    file.read_to_string(&mut pid)?;
    Ok(LockError::Held { data: data.into(), pid: pid.trim().into() })
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    private::open_file(path, options.read(true).write(true).create(true).truncate(false))
}

fn open_writer(data: &Path) -> Result<File, LockError> {
    open(&writer_path(data)).map_err(in_writer(data))
}

fn writer_path(data: &Path) -> PathBuf {
    data.join("WRITER")
}

fn in_writer(data: &Path) -> impl Fn(io::Error) -> LockError {
    let path = writer_path(data);
    move |cause| LockError::Io { path: path.clone(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherit(lock: &mut Lock, data: &Path) -> Lock {
        let (handed, turn) = lock.share().unwrap();
        Lock::inherit(handed, data, turn).unwrap()
    }

    #[test]
    fn one_of_those_that_hold_the_lock_has_the_right_to_write() {
        let data = hark_testkit::disk::scratch("right");
        let mut old = Lock::acquire(&data).unwrap();
        assert!(old.is_claimed() && matches!(Lock::acquire(&data), Err(LockError::Held { .. })));
        let mut late = inherit(&mut old, &data);
        assert_eq!(late.claim().unwrap(), Claim::Held);
        old.offer().unwrap();
        // It is taken back before the other one comes: that one can not claim it any more.
        assert_eq!(old.claim().unwrap(), Claim::Mine);
        let mut new = inherit(&mut old, &data);
        old.offer().unwrap();
        assert_eq!(late.claim().unwrap(), Claim::Late);
        assert_eq!(new.claim().unwrap(), Claim::Mine);
        assert_eq!((old.claim().unwrap(), late.claim().unwrap()), (Claim::Held, Claim::Held));
        assert!(new.is_claimed() && !old.is_claimed() && !late.is_claimed());
        // It is offered on: the first one can not have it back any more, even if it is free.
        let mut next = inherit(&mut new, &data);
        new.offer().unwrap();
        assert_eq!((old.claim().unwrap(), late.claim().unwrap()), (Claim::Late, Claim::Late));
        assert_eq!(new.claim().unwrap(), Claim::Mine);
        assert_eq!(next.claim().unwrap(), Claim::Held);
        // A hold is what keeps others away, and the right to write does not outlive its process.
        drop((old, late, next));
        assert!(matches!(Lock::acquire(&data), Err(LockError::Held { .. })));
        drop(new);
        drop(Lock::acquire(&data).unwrap());
        // What is left behind in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&data);
    }

    #[test]
    fn whoever_ends_leaves_the_right_to_write_to_the_other() {
        let data = hark_testkit::disk::scratch("leaves");
        // The old one before it has offered it, and the new one once it has claimed it.
        let mut old = Lock::acquire(&data).unwrap();
        let mut new = inherit(&mut old, &data);
        drop(old);
        assert_eq!(new.claim().unwrap(), Claim::Mine);
        let (mut old, mut new) = {
            let next = inherit(&mut new, &data);
            (new, next)
        };
        old.offer().unwrap();
        assert_eq!(new.claim().unwrap(), Claim::Mine);
        drop(new);
        let mut late = inherit(&mut old, &data);
        assert_eq!(old.claim().unwrap(), Claim::Mine);
        // What is claimed anew was not offered.
        drop(old);
        assert_eq!(late.claim().unwrap(), Claim::Late);
        // What is left behind in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&data);
    }
}
