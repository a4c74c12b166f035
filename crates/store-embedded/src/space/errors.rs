//! Errors that mean a lack of disk space or of file descriptors.

use std::io;

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

/// Whether an error is temporary and leaves no operation half done: the disk is full, or too many
/// files are open.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    is_full(error) || lacks_descriptors(error)
}
