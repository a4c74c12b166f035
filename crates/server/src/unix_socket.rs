//! Unix sockets on which a door listens, for proxies on the same machine.
//!
//! A socket has a file, by which other processes find the socket. The file outlives a process that
//! is killed, so a starting server replaces a file whose socket has no process. No function here
//! follows a symbolic link in the last component of a path.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Permissions of a new socket's file. Until the socket is complete, only the file's user may
/// connect; afterwards, the file's group may connect as well.
const MODE_AT_FIRST: Mode = Mode::from_raw_mode(0o600);
const MODE: Mode = Mode::from_raw_mode(0o660);
/// Maximum length of a path, in bytes.
const PATH_BYTES_MAX: usize = 107;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The file of a socket on which this process listens.
#[derive(Clone, Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Finds the file of a socket. Fails if the file is missing, or is not a socket.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::lstat(path)?;
        if !is_socket(&found) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the file there is no socket",
            ));
        }
        Ok(Self { path: path.to_owned(), device: found.st_dev, inode: found.st_ino })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, if the path still leads to this file. If this process still listens, no
    /// other process replaces the file between the comparison and the removal.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match Self::find(&self.path) {
            Ok(found) if (found.device, found.inode) == (self.device, self.inode) => {
                std::fs::remove_file(&self.path)
            }
            _ => Ok(()),
        }
    }

    /// Removes the file if no process listens on its socket. Returns whether the path is free now.
    pub(crate) fn remove_unused(&self) -> io::Result<bool> {
        let Err(refused) = connect(&self.path) else { return Ok(false) };
        match refused.kind() {
            io::ErrorKind::ConnectionRefused => self.remove().map(|()| true),
            io::ErrorKind::NotFound => Ok(true),
            io::ErrorKind::PermissionDenied => Err(refused),
            // The queue of a listening socket is full, or the socket is not a stream.
            _ => Ok(false),
        }
    }
}

fn is_socket(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Socket
}

/// Connects to a socket. Fails at once if the socket accepts no connection now.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Listens on a new socket. Replaces a socket's file if no process listens on that socket.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    if path.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
        let why = format!("the path of a socket has at most {PATH_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let is_free = match SocketFile::find(path) {
        Ok(file) => file.remove_unused()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    if !is_free {
        let why = "another process listens on this socket";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    // The file gets the permissions of the socket, reduced by the process's umask. So no other user
    // can connect before the file has its final permissions.
    rustix::fs::fchmod(&socket, MODE_AT_FIRST)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    permit_group(path)?;
    Ok(UnixListener::from(socket))
}

/// Lets the group of a socket's file connect.
fn permit_group(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if !is_socket(&rustix::fs::fstat(&file)?) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the socket was replaced"));
    }
    // The system has no call that changes permissions by path without following a link.
    let opened = Path::new("/proc/self/fd").join(file.as_raw_fd().to_string());
    rustix::fs::chmod(&opened, MODE)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    /// Returns a new directory of a test.
    fn folder(test: &str) -> PathBuf {
        let name = format!("hark-unix-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn the_group_may_connect_and_others_may_not() {
        let folder = folder("mode");
        let path = folder.join("relay.sock");
        let listener = bind(&path).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o7777, 0o660);
        let client = connect(&path).unwrap();
        listener.set_nonblocking(false).unwrap();
        assert!(listener.accept().is_ok());
        drop(client);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_is_replaced_only_if_nobody_listens() {
        let folder = folder("unused");
        let path = folder.join("relay.sock");
        let listener = bind(&path).unwrap();
        let refused = bind(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse, "{refused}");
        assert!(connect(&path).is_ok(), "the file stays");
        // A killed process leaves its file behind.
        drop(listener);
        assert!(path.exists() && connect(&path).is_err());
        drop(bind(&path).unwrap());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn other_files_and_links_stay_as_they_are() {
        let folder = folder("links");
        let (file, link, socket) =
            (folder.join("file"), folder.join("link"), folder.join("relay.sock"));
        std::fs::write(&file, "text").unwrap();
        assert!(bind(&file).is_err());
        let there = bind(&socket).unwrap();
        drop(there);
        let missing = folder.join("missing");
        for target in [&file, &socket, &missing] {
            symlink(target, &link).unwrap();
            let refused = bind(&link).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{refused}");
            std::fs::remove_file(&link).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
        assert!(socket.exists() && !missing.exists());
        assert!(bind(&folder.join("s".repeat(108))).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_another_socket_is_not_removed() {
        let folder = folder("removal");
        let path = folder.join("relay.sock");
        let listener = bind(&path).unwrap();
        let file = SocketFile::find(&path).unwrap();
        std::fs::rename(&path, folder.join("moved")).unwrap();
        let other = bind(&path).unwrap();
        file.remove().unwrap();
        let file = SocketFile::find(&path).unwrap();
        assert!(!file.remove_unused().unwrap() && path.exists());
        drop(other);
        assert!(file.remove_unused().unwrap() && !path.exists());
        drop(listener);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
