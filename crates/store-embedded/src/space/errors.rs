//! Errors that mean a lack of disk space, of file descriptors or of memory.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The files of a job do not fit on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is not enough room in {dir} for {job}: it needs {}, {} must stay free beside it, and {} \
     are free", ByteSize(.needs), ByteSize(.beside), ByteSize(.free)
)]
pub struct NoSpace {
    /// The job.
    pub job: &'static str,
    /// The shelf.
    pub dir: PathBuf,
    /// Maximum number of bytes that the job writes.
    pub needs: u64,
    /// Number of bytes that must stay free.
    pub beside: u64,
    /// Number of bytes that are free.
    pub free: u64,
}

impl NoSpace {
    /// Number of free bytes with which the job would begin.
    pub(crate) fn wanted(&self) -> u64 {
        self.needs.saturating_add(self.beside)
    }
}

/// A number of bytes, formatted for people.
pub(crate) struct ByteSize<'a>(pub &'a u64);

impl fmt::Display for ByteSize<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", *self.0 as f64 / f64::from(1 << 20))
    }
}

/// Whether an error means that the disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether an error means that the process or the machine has too many open files.
pub(crate) fn lacks_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].into_iter().any(|errno| code == Some(errno.raw_os_error()))
}

/// Whether an error is temporary and leaves no operation half done: the disk is full, too many files
/// are open, or memory or memory maps are lacking.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    let lacks_memory = error.kind() == io::ErrorKind::OutOfMemory;
    is_full(error) || lacks_descriptors(error) || lacks_memory
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_lack_passes_and_a_failed_disk_does_not() {
        let passes = |errno: Errno| is_passing(&io::Error::from(errno));
        let lacks = [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
        assert!(lacks.into_iter().all(passes));
        assert!(![Errno::IO, Errno::ROFS, Errno::NOENT].into_iter().any(passes));
    }
}
