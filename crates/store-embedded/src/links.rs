//! Safe paths for root: a symbolic link is followed only if root owns the link.
//!
//! The archive's directory usually belongs to the user of a service. Root may run a command on this
//! directory. A link that this user puts there could redirect root's command to any other file, and
//! the command would truncate or overwrite that file, or change the file's owner. So root opens a
//! path directory by directory, each relative to its parent, and follows no other user's link
//! anywhere in the path. Links of root are followed, since /var/lib/hark may be such a link.
//! Through a link, a process of any other user gets no access that it lacks anyway, so such a
//! process uses paths unchanged.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, mkdirat, openat,
    readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// Maximum number of links that are followed in one path.
const LINKS_MAX: usize = 40;

/// A name in an open directory. A link that is created later can redirect neither the directory nor
/// the name.
pub(crate) struct SafePath {
    dir: Option<OwnedFd>,
    name: OsString,
}

/// The directory and the name of a path, as arguments of a system call.
macro_rules! at {
    ($place:expr) => {
        match &$place.dir {
            Some(dir) => (std::os::fd::AsFd::as_fd(dir), &*$place.name),
            None => (CWD, &*$place.name),
        }
    };
}

impl SafePath {
    /// Resolves a path.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        if cfg!(not(target_os = "linux")) || !rustix::process::geteuid().is_root() {
            return Ok(Self { dir: None, name: path.into() });
        }
        Self::of_root(path)
    }

    fn of_root(path: &Path) -> io::Result<Self> {
        let mut left = Vec::new();
        let mut dir = open_first(path)?;
        push(path, &mut left);
        let mut links = 0;
        while let Some(name) = left.pop() {
            let is_last = left.is_empty();
            let found = match openat(&dir, &*name, name_flags() | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(found) => found,
                Err(Errno::NOENT) if is_last => return Ok(Self { dir: Some(dir), name }),
                Err(error) => return Err(error.into()),
            };
            let about = fstat(&found)?;
            if FileType::from_raw_mode(about.st_mode) == FileType::Symlink {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                if about.st_uid != 0 {
                    return Err(refused(path, &name, about.st_uid));
                }
                let target = readlinkat(&found, "", Vec::new())?;
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                if target.has_root() {
                    dir = open_first(target)?;
                }
                push(target, &mut left);
            } else if is_last {
                return Ok(Self { dir: Some(dir), name });
            } else {
                dir = found;
            }
        }
        Ok(Self { dir: Some(dir), name: ".".into() })
    }

    /// Opens the file or directory. If a link has replaced the file in the meantime, the link is
    /// not followed.
    pub(crate) fn open(&self, flags: OFlags, mode: u32) -> io::Result<File> {
        let flags = if self.dir.is_some() { flags | OFlags::NOFOLLOW } else { flags };
        let (dir, name) = at!(self);
        Ok(openat(dir, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode as _))?.into())
    }

    /// Creates a directory.
    pub(crate) fn make_dir(&self, mode: u32) -> io::Result<()> {
        let (dir, name) = at!(self);
        Ok(mkdirat(dir, name, Mode::from_raw_mode(mode as _))?)
    }

    /// Returns the metadata of the file or directory, or of the link itself; `None` if the name
    /// does not exist.
    pub(crate) fn about(&self) -> io::Result<Option<Stat>> {
        let (dir, name) = at!(self);
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(Some(about)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the metadata of the parent directory; `None` unless the process runs as root.
    pub(crate) fn about_folder(&self) -> io::Result<Option<Stat>> {
        Ok(self.dir.as_ref().map(fstat).transpose()?)
    }

    /// Changes the owner of the file or directory, or of the link itself.
    pub(crate) fn change_owner(&self, user: u32, group: u32) -> io::Result<()> {
        let (dir, name) = at!(self);
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        Ok(chownat(dir, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Renames the file, and replaces an existing file at `to`.
    pub(crate) fn rename(&self, to: &Self) -> io::Result<()> {
        let ((dir, name), (to, new)) = (at!(self), at!(to));
        Ok(renameat(dir, name, to, new)?)
    }

    /// Removes a file.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let (dir, name) = at!(self);
        Ok(unlinkat(dir, name, AtFlags::empty())?)
    }

    /// Returns the names and lengths of the directory's entries. An entry that is removed during
    /// the call may be missing.
    pub(crate) fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let folder = self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        let mut files = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if [&b"."[..], b".."].contains(&name.to_bytes()) {
                continue;
            }
            match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(known) => {
                    files.push((name.to_string_lossy().into_owned(), known.st_size as u64));
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        files.sort();
        Ok(files)
    }
}

/// The flags for opening a directory only as the parent of further names.
fn name_flags() -> OFlags {
    #[cfg(target_os = "linux")]
    return OFlags::PATH | OFlags::CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    return OFlags::RDONLY | OFlags::CLOEXEC;
}

/// Opens the directory in which a path begins.
fn open_first(path: &Path) -> io::Result<OwnedFd> {
    let first = if path.has_root() { "/" } else { "." };
    Ok(openat(CWD, first, name_flags() | OFlags::DIRECTORY, Mode::empty())?)
}

/// Pushes the names of a path onto the stack of names to resolve; the first name ends up on top.
fn push(path: &Path, left: &mut Vec<OsString>) {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    left.extend(names);
}

fn refused(path: &Path, name: &OsStr, user: u32) -> io::Error {
    let (path, name) = (path.display(), name.display());
    let words = format!(
        "{path} leads through `{name}`, a link that user {user} has made; root follows only its own \
         links: run the command as that user, or make the link as root"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, words)
}
