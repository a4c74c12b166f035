//! Where `control.sock` lies: a server that starts opens its socket beside that place, and puts it
//! there once it is the one that writes.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Opens a socket beside `path`, for this server's user alone. It has a name of its own, so that a
/// process whose takeover has failed does not remove the socket of the next one.
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

/// Puts it in its place, where that of another server may lie, and tidies up.
pub(super) fn put_in_place(bound: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(bound, path)?;
    if let Err(error) = remove_leftovers(path) {
        // They harm nobody.
        tracing::warn!(%error, "a socket that nobody listens on could not be removed");
    }
    Ok(())
}

/// Removes the sockets of processes that ended before theirs came to `path`.
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
