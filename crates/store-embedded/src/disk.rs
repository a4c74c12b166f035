//! All that a shelf does to its files, behind one small trait, so that tests can lose, tear and
//! reorder what was not synced, and let calls fail.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::map::Map;

/// A file that is written from front to back.
pub trait DiskFile: Send {
    /// Appends all of `bytes`.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns once everything written is on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// A disk.
pub trait Disk: Send + Sync {
    /// Makes a new, empty file, in place of an old one if there is one.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file to go on behind its first `len` bytes; the rest is cut off.
    fn append(&self, path: &Path, len: u64) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name, in place of an old one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Takes a file away.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory, parents included.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Returns once the names in a directory are on the disk.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Names and lengths of the files in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            files.push((name, entry.metadata()?.len()));
        }
        files.sort();
        Ok(files)
    }

    /// Reads a file from the front.
    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(fs::File::open(path)?))
    }

    /// Maps a file to be read once; see [`Map::open_sequential`].
    fn map_sequential(&self, path: &Path) -> io::Result<Map> {
        Map::open_sequential(path)
    }

    /// Maps a file; see [`Map::open`].
    fn map(&self, path: &Path, reserve: Option<usize>) -> io::Result<Map> {
        Map::open(path, reserve)
    }
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
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(fs::File::create(path)?))
    }

    fn append(&self, path: &Path, len: u64) -> io::Result<Box<dyn DiskFile>> {
        let file = fs::OpenOptions::new().append(true).open(path)?;
        file.set_len(len)?;
        file.sync_all()?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }
}
