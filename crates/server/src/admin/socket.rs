//! The path of `control.sock`. A starting server opens its socket under a temporary name in the
//! same directory, and moves it to the final path once it is the writer of the archive.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Maximum length of a path in a socket's address, in bytes. One more byte holds the terminating
/// zero.
const ADDRESS_BYTES_MAX: usize = 107;

/// A path of the socket that is short enough for a socket address. Valid while the folder is open.
struct SocketAddress {
    path: PathBuf,
    _folder: Option<OwnedFd>,
}

impl SocketAddress {
    /// Creates the address. A path that is too long is replaced by a short path, which names the
    /// open folder by its descriptor.
    fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= ADDRESS_BYTES_MAX {
            return Ok(Self { path: path.into(), _folder: None });
        }
        let (folder, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }
}

/// Connects to the socket at `path`. The path may have any length.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(&SocketAddress::new(path)?.path)
}

/// Opens a socket next to `path`, accessible to this server's user only. Its name contains the
/// process id, so that a process whose takeover has failed does not remove the socket of the next
/// process.
pub(super) fn bind_beside(path: &Path) -> io::Result<(PathBuf, UnixListener)> {
    let bound = path.with_extension(std::process::id().to_string());
    match std::fs::remove_file(&bound) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&SocketAddress::new(&bound)?.path)?;
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

/// Removes the sockets of processes that ended before they moved their sockets to `path`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_length_has_a_socket() {
        let root = std::env::temp_dir().join(format!("hark-socket-{}", std::process::id()));
        for bytes in [1, 90, 200] {
            let folder = root.join("d".repeat(bytes));
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join("control.sock");
            let (bound, listener) = bind_beside(&path).unwrap();
            put_in_place(&bound, &path).unwrap();
            let asking = connect(&path).unwrap();
            assert!(listener.accept().is_ok(), "{bytes}");
            drop(asking);
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
