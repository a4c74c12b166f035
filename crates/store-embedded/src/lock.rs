//! LOCK: one writing process a data directory. The system takes the lock back when the process ends,
//! however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::disk::{RealDisk, make_dir};
use crate::private;

/// Held as long as it lives.
#[derive(Debug)]
pub struct Lock {
    file: File,
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
    /// Takes the lock of a data directory, which is made if need be.
    pub fn acquire(data: &Path) -> Result<Self, LockError> {
        let path = data.join("LOCK");
        let io = |cause| LockError::Io { path: path.clone(), cause };
        make_dir(&RealDisk, data).map_err(io)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = private::open_file(&path, &mut options).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid).map_err(io)?;
                return Err(LockError::Held { data: data.into(), pid: pid.trim().into() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let lock = Self { file };
        lock.sign().map_err(io)?;
        Ok(lock)
    }

    /// The lock that another process holds and handed to this one: both hold it, until the last of
    /// them lets go.
    pub fn inherit(handed: OwnedFd) -> Self {
        Self { file: handed.into() }
    }

    /// Another hold on it, to hand to a process that takes over.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// Says in the file that this process has the archive.
    pub fn sign(&self) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    }
}
