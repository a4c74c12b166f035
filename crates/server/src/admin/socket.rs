//! The path of `control.sock`. A starting server opens its socket under a temporary name in the
//! same directory, and moves it to the final path once it is the writer of the archive.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Opens a socket next to `path`, for this server's user only. Its name contains the process id, so
/// that a process whose takeover has failed does not remove the socket of the next process.
pub(super) fn bind_beside(path: &Path) -> io::Result<(PathBuf, UnixListener)> {
    let bound = path.with_extension(std::process::id().to_string());
    match std::fs::remove_file(&bound) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&bound)?;
    std::fs::set_permissions(&bound, std::fs::Permissions::from_mode(0o600))?;
    Ok((bound, listener))
}

/// Moves the socket from `bound` to `path`, where it replaces the socket of another server, and
/// removes leftover sockets.
pub(super) fn put_in_place(bound: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(bound, path)?;
    if let Err(error) = remove_leftovers(path) {
        // Leftover sockets are harmless.
        tracing::warn!(%error, "a socket that nobody listens on could not be removed");
    }
    Ok(())
}

/// Removes the sockets of processes that ended before they moved theirs to `path`.
fn remove_leftovers(path: &Path) -> io::Result<()> {
    let Some(dir) = path.parent() else { return Ok(()) };
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let other = entry.path();
        let numbered = other.extension().and_then(|number| number.to_str()).is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
        });
        if numbered && other.file_stem() == path.file_stem() && entry.file_type()?.is_socket() {
            std::fs::remove_file(other)?;
        }
    }
    Ok(())
}
