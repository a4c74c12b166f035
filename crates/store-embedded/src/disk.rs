//! All file operations of a shelf, as one small trait. Tests replace the disk with a disk that can
//! lose, tear and reorder unsynced writes, and can make calls fail.

use std::fs;
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::OFlags;

use crate::links::SafePath;
use crate::map::Map;
use crate::permissions;
use crate::space::errors::lacks_descriptors;

/// A file that is written from front to back.
pub trait DiskFile: Send {
    /// Appends all of `bytes`.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Syncs the file: returns once all written bytes are durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Reserves disk space after the file's `len` bytes, up to offset `end`, so that a sync need
    /// not allocate space. Reserved space beyond `end` is released. The content of the file does
    /// not change.
    fn reserve(&mut self, len: u64, end: u64) -> io::Result<()>;
    /// Truncates the file to `len` bytes after a failed write; the next write continues there. By
    /// default a file cannot be truncated.
    fn cut(&mut self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A disk.
pub trait Disk: Send + Sync {
    /// Creates an empty file, or empties an existing file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for appending after its first `len` bytes, and cuts off all later bytes. On
    /// return the first `len` bytes are durable. The bytes from `sure` to `len` are read and
    /// written again: after a failed sync, the system's cache may wrongly mark these bytes as
    /// written, and the next sync would skip these bytes.
    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file, and replaces an existing file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames a file within its directory, and replaces an existing file. On return the name is
    /// durable. If the operation fails because too many files are open, nothing has changed.
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.rename(from, to)?;
        self.sync_dir(folder_of(to))
    }
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory and its missing parents.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Returns once the names in a directory are durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Free bytes on the disk that contains `path`.
    fn free(&self, path: &Path) -> io::Result<u64> {
        let known = rustix::fs::statvfs(path)?;
        Ok(known.f_bavail.saturating_mul(known.f_frsize))
    }

    /// Names and lengths of the files in a directory. A file that is removed during the call may be
    /// missing.
    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>> {
        SafePath::of(path)?.list()
    }

    /// Reads a file from the front.
    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(SafePath::of(path)?.open(OFlags::RDONLY, 0)?))
    }

    /// Maps a file that is read once, from front to back; see `Map::open_sequential`.
    fn map_sequential(&self, path: &Path) -> io::Result<Map> {
        Map::open_sequential(path)
    }

    /// Maps a file; see `Map::open`.
    fn map(&self, path: &Path, reserve: Option<usize>) -> io::Result<Map> {
        Map::open(path, reserve)
    }
}

/// Creates a directory and its missing parents. On return the names of all created directories are
/// durable.
pub fn make_dir(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.is_dir();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    let Some(first) = missing.last() else { return Ok(()) };
    // An earlier process may have created the lowest existing directory, and may have ended before
    // the name was durable. So the parent is synced. A parent that this user may not read needs no
    // sync, because no process of this user has created a name in the parent.
    match parent(first).map_or(Ok(()), |there| disk.sync_dir(folder_of(there))) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
        _ => {}
    }
    for dir in missing.into_iter().rev() {
        disk.create_dir(dir)?;
        disk.sync_dir(folder_of(dir))?;
    }
    Ok(())
}

fn parent(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

/// The parent directory of a file or directory.
fn folder_of(path: &Path) -> &Path {
    parent(path).unwrap_or_else(|| Path::new(if path.has_root() { "/" } else { "." }))
}

/// The machine's disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl DiskFile for fs::File {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Write::write_all(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn reserve(&mut self, len: u64, end: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        if end <= len {
            return self.set_len(len);
        }
        Ok(fallocate(self, FallocateFlags::KEEP_SIZE, len, end - len)?)
    }

    #[cfg(not(target_os = "linux"))]
    fn reserve(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)?;
        self.seek(SeekFrom::Start(len)).map(drop)
    }
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(permissions::create_file(path)?))
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        let mut file = SafePath::of(path)?.open(OFlags::RDWR, 0)?;
        file.set_len(len)?;
        let mut again = vec![0; len.saturating_sub(sure) as usize];
        file.seek(SeekFrom::Start(sure))?;
        file.read_exact(&mut again)?;
        file.seek(SeekFrom::Start(sure))?;
        Write::write_all(&mut file, &again)?;
        file.sync_all()?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SafePath::of(from)?.rename(&SafePath::of(to)?)
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        let folder = SafePath::of(folder_of(to))?.open(OFlags::RDONLY, 0)?;
        self.rename(from, to)?;
        folder.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SafePath::of(path)?.remove()
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        permissions::create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        SafePath::of(path)?.open(OFlags::RDONLY, 0)?.sync_all()
    }
}

/// A disk that refuses to write after the first failed sync or rename. After such a failure the
/// state of the files is unknown, and a later successful sync would prove nothing. Reads are still
/// possible. The error "too many open files" does not count as a failure, because the operation did
/// not begin.
pub(crate) struct FailStopDisk {
    disk: Arc<dyn Disk>,
    failed: DiskFailure,
}

/// The first failure of a disk, if any.
#[derive(Clone, Default)]
struct DiskFailure(Arc<OnceLock<String>>);

struct FailStopFile {
    file: Box<dyn DiskFile>,
    failed: DiskFailure,
}

impl FailStopDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, failed: DiskFailure::default() }
    }
}

impl DiskFailure {
    fn refuse(&self) -> io::Result<()> {
        match self.0.get() {
            Some(reason) => Err(io::Error::other(format!(
                "nothing more is written since the disk failed once ({reason}); check the disk, \
                 then start Hark again"
            ))),
            None => Ok(()),
        }
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            if !lacks_descriptors(error) {
                self.0.get_or_init(|| error.to_string());
            }
        })
    }
}

impl DiskFile for FailStopFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.failed.refuse()?;
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.failed.refuse()?;
        self.failed.note(self.file.sync())
    }

    fn reserve(&mut self, len: u64, end: u64) -> io::Result<()> {
        self.failed.refuse()?;
        self.file.reserve(len, end)
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.failed.refuse()?;
        self.file.cut(len)
    }
}

impl Disk for FailStopDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.failed.refuse()?;
        let file = self.disk.create(path)?;
        Ok(Box::new(FailStopFile { file, failed: self.failed.clone() }))
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        self.failed.refuse()?;
        let file = self.failed.note(self.disk.append(path, sure, len))?;
        Ok(Box::new(FailStopFile { file, failed: self.failed.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.failed.refuse()?;
        self.failed.note(self.disk.rename(from, to))
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.failed.refuse()?;
        self.failed.note(self.disk.replace(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.failed.refuse()?;
        self.disk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.failed.refuse()?;
        self.disk.create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.failed.refuse()?;
        self.failed.note(self.disk.sync_dir(path))
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        self.disk.free(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>> {
        self.disk.list(path)
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        self.disk.read(path)
    }

    fn map_sequential(&self, path: &Path) -> io::Result<Map> {
        self.disk.map_sequential(path)
    }

    fn map(&self, path: &Path, reserve: Option<usize>) -> io::Result<Map> {
        self.disk.map(path, reserve)
    }
}
