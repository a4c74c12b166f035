//! LOCK and WRITER: one writing process per data directory. The system releases the locks on both
//! files when the process ends, however it ends.
//!
//! LOCK keeps all other processes away. In a takeover two servers hold it together, so that no
//! third process can take it in between, and WRITER says which of the two writes: each has opened
//! WRITER separately, and only the process that has it locked may write. WRITER has no content, but
//! its length is the turn: even once a process has claimed the right to write, odd once that
//! process has offered it, and never less than before. By the turn, a process that claims the right
//! too late finds out that another process has claimed it before, even if WRITER is free again.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::disk::{RealDisk, make_dir};
use crate::permissions;
use crate::room::is_full;

/// Attempts to lock WRITER while LOCK is held, and the time between two. Another process holds
/// WRITER at that point only if it is just ending.
const TRIES: u32 = 500;
const RETRY: Duration = Duration::from_millis(10);

/// The lock of a data directory, held until it is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    // Closed before LOCK: a process that gets LOCK finds WRITER free.
    writer: File,
    file: File,
    /// Whether WRITER is locked by this process.
    claimed: bool,
    /// The last turn at which this process may claim the right to write; `None` allows any turn.
    last: Option<u64>,
}

/// The result of claiming the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockClaim {
    /// This process has the right, until [`DirectoryLock::offer`] or its end.
    Mine,
    /// Another process has the right.
    Held,
    /// The right is free, but a third process has had it meanwhile, or was offered it.
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
        /// The id of the process that holds the lock, as that process wrote it.
        pid: String,
    },
    /// A lock file could not be created or locked.
    #[error("{path} could not be locked: {cause}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl LockError {
    /// Whether the lock could not be taken because the disk is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if is_full(cause))
    }

    /// Whether the lock could not be taken because this process's user may not do so.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl DirectoryLock {
    /// Locks a data directory, which is created if missing, and claims the right to write.
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
        while lock.claim().map_err(in_writer(data))? != LockClaim::Mine {
            tries += 1;
            if tries == TRIES {
                return Err(held(&mut lock.file, data).map_err(io)?);
            }
            std::thread::sleep(RETRY);
        }
        match lock.sign() {
            // The number is for messages only.
            Err(error) if !is_full(&error) => Err(io(error)),
            _ => Ok(lock),
        }
    }

    /// Takes over the lock that another process has handed to this one. Both hold it until the last
    /// of them releases it. This process can claim the right to write, up to `turn`, once the other
    /// has offered it.
    pub fn inherit(handed: OwnedFd, data: &Path, turn: u64) -> Result<Self, LockError> {
        let (writer, file) = (open_writer(data)?, handed.into());
        Ok(Self { writer, file, claimed: false, last: Some(turn) })
    }

    /// Returns a handle of LOCK for the process that takes over, and the last turn at which the new
    /// process can claim the right to write. This process can claim it back until the new one has
    /// offered it.
    pub fn share(&mut self) -> io::Result<(OwnedFd, u64)> {
        let (file, turn) = (self.file.try_clone()?, self.writer.metadata()?.len());
        self.last = Some(turn + 2);
        Ok((file.into(), turn + 1))
    }

    /// Gives up the right to write, if this process has it.
    pub fn offer(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.claimed) {
            return Ok(());
        }
        let turn = self.writer.metadata().and_then(|known| self.writer.set_len(known.len() + 1));
        self.writer.unlock().and(turn)
    }

    /// Claims the right to write, if no other process has it. A process that already has the right
    /// claims it again at a new turn: the handles that it has shared before can no longer claim it.
    pub fn claim(&mut self) -> io::Result<LockClaim> {
        match self.writer.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(LockClaim::Held),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let last = self.last.unwrap_or(u64::MAX);
        let claimed = self.writer.metadata().and_then(|known| match known.len() {
            turn if turn > last => Ok(LockClaim::Late),
            turn => self.writer.set_len((turn / 2 + 1) * 2).map(|()| LockClaim::Mine),
        });
        self.claimed = matches!(claimed, Ok(LockClaim::Mine));
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

    /// Writes the id of this process into LOCK.
    pub fn sign(&self) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    }
}

/// Makes the error that names the process holding the lock.
fn held(file: &mut File, data: &Path) -> io::Result<LockError> {
    let mut pid = String::new();
    file.read_to_string(&mut pid)?;
    Ok(LockError::Held { data: data.into(), pid: pid.trim().into() })
}

fn open(path: &Path) -> io::Result<File> {
    permissions::open_file(path)
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

    fn inherit(lock: &mut DirectoryLock, data: &Path) -> DirectoryLock {
        let (handed, turn) = lock.share().unwrap();
        DirectoryLock::inherit(handed, data, turn).unwrap()
    }

    #[test]
    fn one_of_those_that_hold_the_lock_has_the_right_to_write() {
        let data = hark_testkit::disk::scratch("right");
        let mut old = DirectoryLock::acquire(&data).unwrap();
        assert!(
            old.is_claimed()
                && matches!(DirectoryLock::acquire(&data), Err(LockError::Held { .. }))
        );
        let mut late = inherit(&mut old, &data);
        assert_eq!(late.claim().unwrap(), LockClaim::Held);
        old.offer().unwrap();
        // `old` claims the right back before `late` claims it: `late` can no longer have it.
        assert_eq!(old.claim().unwrap(), LockClaim::Mine);
        let mut new = inherit(&mut old, &data);
        old.offer().unwrap();
        assert_eq!(late.claim().unwrap(), LockClaim::Late);
        assert_eq!(new.claim().unwrap(), LockClaim::Mine);
        assert_eq!(
            (old.claim().unwrap(), late.claim().unwrap()),
            (LockClaim::Held, LockClaim::Held)
        );
        assert!(new.is_claimed() && !old.is_claimed() && !late.is_claimed());
        // `new` offers the right: `old` can no longer claim it back, even while it is free.
        let mut next = inherit(&mut new, &data);
        new.offer().unwrap();
        assert_eq!(
            (old.claim().unwrap(), late.claim().unwrap()),
            (LockClaim::Late, LockClaim::Late)
        );
        assert_eq!(new.claim().unwrap(), LockClaim::Mine);
        assert_eq!(next.claim().unwrap(), LockClaim::Held);
        // One handle of LOCK keeps others away; the right to write does not outlive its process.
        drop((old, late, next));
        assert!(matches!(DirectoryLock::acquire(&data), Err(LockError::Held { .. })));
        drop(new);
        drop(DirectoryLock::acquire(&data).unwrap());
        // What is left behind in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&data);
    }

    #[test]
    fn whoever_ends_leaves_the_right_to_write_to_the_other() {
        let data = hark_testkit::disk::scratch("leaves");
        // The old process ends before it has offered the right, the new one after claiming it.
        let mut old = DirectoryLock::acquire(&data).unwrap();
        let mut new = inherit(&mut old, &data);
        drop(old);
        assert_eq!(new.claim().unwrap(), LockClaim::Mine);
        let (mut old, mut new) = {
            let next = inherit(&mut new, &data);
            (new, next)
        };
        old.offer().unwrap();
        assert_eq!(new.claim().unwrap(), LockClaim::Mine);
        drop(new);
        let mut late = inherit(&mut old, &data);
        assert_eq!(old.claim().unwrap(), LockClaim::Mine);
        // After `old` has claimed the right again, `late` is not offered it.
        drop(old);
        assert_eq!(late.claim().unwrap(), LockClaim::Late);
        // What is left behind in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&data);
    }
}
