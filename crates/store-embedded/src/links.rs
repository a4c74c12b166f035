//! Paths as root may follow them: a link counts only if it is root's own.
//!
//! The archive's directory mostly belongs to the user that a service runs as. A command that root runs
//! there could be led by a link anywhere else, to a file that it would then empty, fill or give away. So
//! root opens directory by directory, each relative to the one before, and follows no link that another
//! user has made, wherever it stands in the path. Links that root has made are followed, as
//! /var/lib/hark may be one. For any other user nothing is gained by a link, and paths are used as they
//! are.

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

/// Links that are followed in one path.
const LINKS_MAX: usize = 40;

/// A name in a directory, neither of which a link can change any more.
pub(crate) struct SafePath {
    dir: Option<OwnedFd>,
    name: OsString,
}

/// A place as arguments of a system call.
macro_rules! at {
    ($place:expr) => {
        match &$place.dir {
            Some(dir) => (std::os::fd::AsFd::as_fd(dir), &*$place.name),
            None => (CWD, &*$place.name),
        }
    };
}

impl SafePath {
    /// The place of a path.
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
            let found = match openat(&dir, &*name, looking() | OFlags::NOFOLLOW, Mode::empty()) {
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

    /// Opens the file or directory. A link that has come in its place meanwhile is not followed.
    pub(crate) fn open(&self, flags: OFlags, mode: u32) -> io::Result<File> {
        let flags = if self.dir.is_some() { flags | OFlags::NOFOLLOW } else { flags };
        let (dir, name) = at!(self);
        Ok(openat(dir, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode as _))?.into())
    }

    /// Makes a directory.
    pub(crate) fn make_dir(&self, mode: u32) -> io::Result<()> {
        let (dir, name) = at!(self);
        Ok(mkdirat(dir, name, Mode::from_raw_mode(mode as _))?)
    }

    /// What is known of what is there, be it a link; `None` if nothing is.
    pub(crate) fn about(&self) -> io::Result<Option<Stat>> {
        let (dir, name) = at!(self);
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(Some(about)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What is known of the directory that the name is in. For root alone.
    pub(crate) fn about_folder(&self) -> io::Result<Option<Stat>> {
        Ok(self.dir.as_ref().map(fstat).transpose()?)
    }

    /// Gives what is there to another owner.
    pub(crate) fn give(&self, user: u32, group: u32) -> io::Result<()> {
        let (dir, name) = at!(self);
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        Ok(chownat(dir, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Renames what is there, in place of what `to` has.
    pub(crate) fn rename(&self, to: &Self) -> io::Result<()> {
        let ((dir, name), (to, new)) = (at!(self), at!(to));
        Ok(renameat(dir, name, to, new)?)
    }

    /// Removes a file.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let (dir, name) = at!(self);
        Ok(unlinkat(dir, name, AtFlags::empty())?)
    }

    /// Names and lengths of what is in the directory, except what is removed meanwhile.
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

/// The flags with which a directory is opened only to go on from it.
fn looking() -> OFlags {
    #[cfg(target_os = "linux")]
    return OFlags::PATH | OFlags::CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    return OFlags::RDONLY | OFlags::CLOEXEC;
}

/// The directory that a path begins with.
fn open_first(path: &Path) -> io::Result<OwnedFd> {
    let first = if path.has_root() { "/" } else { "." };
    Ok(openat(CWD, first, looking() | OFlags::DIRECTORY, Mode::empty())?)
}

/// Adds the names of a path to those that are left to be looked up, the first one last.
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
