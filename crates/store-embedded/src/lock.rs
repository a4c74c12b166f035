//! LOCK and WRITER: one writing process per data directory. The system releases both locks when the
//! process ends for any reason.
//!
//! The lock on LOCK excludes all other processes. In a takeover, the old and the new server share
//! the lock on LOCK, so a third process can never get the lock. The lock on WRITER decides which of
//! these two servers writes. Each server has opened WRITER separately, so only one server can hold
//! this lock. The length of WRITER is a number, the turn; the bytes of WRITER have no meaning. A
//! process that claims the right to write makes the turn even; a process that offers the right
//! makes the turn odd. The turn never decreases. So a process that claims the right too late sees
//! that another process has had the right in between, even if WRITER is free again.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::disk::{RealDisk, make_dir};
use crate::permissions;
use crate::space::errors::is_full;

/// Number of attempts to lock WRITER after LOCK is locked. At this point, only a process that is
/// ending can still have the lock on WRITER.
const TRIES: u32 = 500;
const RETRY: Duration = Duration::from_millis(10);

/// The lock of a data directory, held until this value is dropped.
///
/// ```
/// use hark_store_embedded::{DirectoryLock, LockError};
///
/// let data = std::env::temp_dir().join(format!("hark-doc-lock-{}", std::process::id()));
/// let lock = DirectoryLock::acquire(&data)?;
/// assert!(matches!(DirectoryLock::acquire(&data), Err(LockError::Held { .. })));
/// drop(lock);
/// assert!(DirectoryLock::acquire(&data)?.is_claimed());
/// std::fs::remove_dir_all(&data)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DirectoryLock {
    // This field is before `file`, so WRITER is closed before LOCK, and a process that locks LOCK
    // finds WRITER free.
    writer: File,
    file: File,
    /// Whether this process has locked WRITER.
    claimed: bool,
    /// The highest turn at which this process may still claim the right to write; `None` allows any
    /// turn.
    last: Option<u64>,
}

/// The result of claiming the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockClaim {
    /// This process has the right until it calls [`DirectoryLock::offer`] or ends.
    Mine,
    /// Another process has the right.
    Held,
    /// The right is free, but in the meantime a third process has had the right or has been offered
    /// the right.
    Late,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has the right to write.
    #[error("the archive in {data} is in use by process {pid}")]
    Held {
        /// The data directory.
        data: PathBuf,
        /// The id that the process with the lock has written.
        pid: String,
    },
    /// A lock file could not be created or locked.
    #[error("{path} could not be locked: {cause}")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The error of the operation.
        cause: io::Error,
    },
}

impl LockError {
    /// Whether the lock could not be taken because the disk is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if is_full(cause))
    }

    /// Whether the lock could not be taken because this process lacks the permission.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl DirectoryLock {
    /// Locks a data directory and claims the right to write. Creates the directory if necessary.
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
            // If the disk is full, the process id cannot be written. This is no error, because the
            // id is only used in messages.
            Err(error) if !is_full(&error) => Err(io(error)),
            _ => Ok(lock),
        }
    }

    /// Takes over the lock that another process has passed to this process. LOCK stays locked until
    /// both processes have closed their handles. Once the other process has offered the right to
    /// write, this process can claim the right while the turn is at most `turn`.
    pub fn inherit(handed: OwnedFd, data: &Path, turn: u64) -> Result<Self, LockError> {
        let (writer, file) = (open_writer(data)?, handed.into());
        Ok(Self { writer, file, claimed: false, last: Some(turn) })
    }

    /// Returns a handle of LOCK for the new process, and the highest turn at which the new process
    /// can claim the right to write. Until the new process has had the right and offered it in
    /// turn, this process can claim the right back.
    pub fn share(&mut self) -> io::Result<(OwnedFd, u64)> {
        let (file, turn) = (self.file.try_clone()?, self.writer.metadata()?.len());
        self.last = Some(turn + 2);
        Ok((file.into(), turn + 1))
    }

    /// Gives up the right to write, if this process has the right.
    pub fn offer(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.claimed) {
            return Ok(());
        }
        let turn = self.writer.metadata().and_then(|known| self.writer.set_len(known.len() + 1));
        self.writer.unlock().and(turn)
    }

    /// Claims the right to write, if no other process has the right. If this process already has
    /// the right, the turn still advances. Then processes that received handles earlier can no
    /// longer claim the right.
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

/// Makes the error that names the process with the lock.
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
        // `old` claims the right back before `late` tries to claim it, so `late` is too late.
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
        // `new` offers the right. `old` can no longer claim it back, even while it is free.
        let mut next = inherit(&mut new, &data);
        new.offer().unwrap();
        assert_eq!(
            (old.claim().unwrap(), late.claim().unwrap()),
            (LockClaim::Late, LockClaim::Late)
        );
        assert_eq!(new.claim().unwrap(), LockClaim::Mine);
        assert_eq!(next.claim().unwrap(), LockClaim::Held);
        // Other processes are excluded while any handle of LOCK is open. The right to write ends
        // when the process with this right ends.
        drop((old, late, next));
        assert!(matches!(DirectoryLock::acquire(&data), Err(LockError::Held { .. })));
        drop(new);
        drop(DirectoryLock::acquire(&data).unwrap());
        // If the removal fails, only temporary files remain.
        let _ = std::fs::remove_dir_all(&data);
    }

    #[test]
    fn whoever_ends_leaves_the_right_to_write_to_the_other() {
        let data = hark_testkit::disk::scratch("leaves");
        // The old process ends without offering the right, and the new process ends after it has
        // claimed the right.
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
        // `old` claims the right again and offers nothing to `late`.
        drop(old);
        assert_eq!(late.claim().unwrap(), LockClaim::Late);
        // If the removal fails, only temporary files remain.
        let _ = std::fs::remove_dir_all(&data);
    }
}
