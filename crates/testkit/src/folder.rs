//! Temporary directories.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A temporary directory. Dropping the last clone of this value removes the directory.
#[derive(Clone, Debug)]
pub struct Folder(Arc<Removed>);

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
struct Removed(PathBuf);

/// Returns a new path for a temporary directory, in memory if the machine has /dev/shm.
pub fn scratch(name: &str) -> PathBuf {
    let (memory, temporary) = (Path::new("/dev/shm"), std::env::temp_dir());
    unused(if memory.is_dir() { memory } else { &temporary }, name)
}

/// Returns a path in `base` that no other call returns.
fn unused(base: &Path, name: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    base.join(format!("hark-{name}-{}-{count}", std::process::id()))
}

impl Folder {
    /// Makes an empty directory, in memory if the machine has /dev/shm.
    pub fn new(name: &str) -> Self {
        Self::at(scratch(name))
    }

    /// Makes an empty directory on a disk. Files in memory would count as memory of the writing
    /// program.
    pub fn on_disk(name: &str) -> Self {
        Self::at(unused(&std::env::temp_dir(), name))
    }

    /// Makes the directory `path`, and removes its earlier content.
    pub fn at(path: PathBuf) -> Self {
        // A process that was killed may have left this directory behind.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory is made");
        Self(Arc::new(Removed(path)))
    }

    /// Returns the path of a directory that the test itself will make.
    pub fn to_be_made(name: &str) -> Self {
        Self(Arc::new(Removed(scratch(name))))
    }

    /// Writes a file, and returns its path.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, bytes).expect("a file is written");
        path
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        // A failure is ignored: files that remain in the temporary directory do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies a directory and all its content.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory is made");
    for entry in fs::read_dir(from).expect("a directory is there") {
        let entry = entry.expect("an entry is read");
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).expect("a file is copied");
        }
    }
}
