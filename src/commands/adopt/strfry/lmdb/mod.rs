//! Reads an LMDB database, and writes neither the database file nor its lock file.
//!
//! All LMDB crates use LMDB's C library, which maps the file and trusts every byte: a truncated or
//! damaged file crashes the process. The library also writes into the lock file and occupies a slot
//! there. While the library reads, the program that owns the file cannot reuse pages. The format to
//! read is small, and has not changed since LMDB 0.9.0. So this module reads pages with ordinary
//! reads, checks every page number and offset before use, and writes nothing.
//!
//! **Beside a writer.** A file has two meta pages, and each names the root of a snapshot.
//! Transaction N writes its pages to unused places, and then the meta page N modulo 2. Pages that N
//! frees belong to the previous snapshot, and are not reused before transaction N + 2. So
//! transaction N + 2 overwrites the meta page of snapshot N, and N + 3 is the first transaction
//! that may overwrite other pages of snapshot N. While the meta page of a snapshot is unchanged,
//! all pages of the snapshot are unchanged. [`LmdbFile::read`] compares the meta page after each
//! read, and reads again if the page has changed.

mod page;
mod snapshot;

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use self::page::{META_END, MetaPage};
pub(super) use self::snapshot::{DamagedPages, LmdbSnapshot, LmdbTable, LmdbValue};

/// Maximum number of attempts of a read while the file changes.
const TRIES: u32 = 200;

/// The number of the system's error for a part that the disk cannot read.
const EIO: i32 = 5;

/// The reason why a part of a file cannot be read.
#[derive(Debug)]
pub(super) enum LmdbFault {
    /// The operating system's error.
    File(Error),
    /// A description of the damage.
    Damage(String),
}

impl From<Error> for LmdbFault {
    fn from(error: Error) -> Self {
        if error.raw_os_error() == Some(EIO) {
            return Self::Damage("the disk cannot read it".into());
        }
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Damage("the file ends before it".into()),
            _ => Self::File(error),
        }
    }
}

/// A file, opened for reading.
#[derive(Debug)]
pub(super) struct LmdbFile {
    file: File,
    path: PathBuf,
    page_bytes: usize,
}

impl LmdbFile {
    /// Opens a file, and checks that it is an LMDB file.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("{} cannot be read; nothing was done", path.display());
        let file = File::open(path).with_context(cannot)?;
        let mut first = [0; META_END];
        match file.read_exact_at(&mut first, 0) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
                return Err(error).with_context(cannot);
            }
            _ => {}
        }
        let meta = MetaPage::read(&first)
            .map_err(|words| anyhow::anyhow!("{}: {words}. Nothing was done", path.display()))?;
        Ok(Self { file, path: path.into(), page_bytes: meta.page_bytes })
    }

    /// Reads from a snapshot of the file. If the file changes meanwhile, reads again from a newer
    /// snapshot: `read` gets the number of earlier tries, and should read less with each try.
    pub(super) fn read<T>(
        &self,
        mut read: impl FnMut(&LmdbSnapshot<'_>, u32) -> Result<T, LmdbFault>,
    ) -> anyhow::Result<T> {
        for tries in 0..TRIES {
            let metas = self.metas()?;
            let newest = metas.each_ref().map(MetaPage::read);
            let (slot, meta) = match newest {
                [Ok(first), Ok(second)] if second.transaction > first.transaction => (1, second),
                [Ok(first), _] => (0, first),
                [_, Ok(second)] => (1, second),
                [Err(words), _] => bail!("{}: {words}", self.path.display()),
            };
            let snapshot = LmdbSnapshot::new(self, &meta);
            let result = read(&snapshot, tries);
            if self.metas()?[slot] == metas[slot] {
                return result.map_err(|fault| self.error(fault));
            }
        }
        bail!(
            "{} changes faster than it can be read; what was brought over is safe. Adopt a copy \
             instead, which `mdb_copy` makes",
            self.path.display()
        )
    }

    /// Reads both meta pages.
    fn metas(&self) -> anyhow::Result<[[u8; META_END]; 2]> {
        let mut metas = [[0; META_END]; 2];
        for (meta, at) in metas.iter_mut().zip([0, self.page_bytes as u64]) {
            self.bytes_at(meta, at).map_err(|fault| self.error(fault))?;
        }
        Ok(metas)
    }

    /// The number of the file's pages.
    fn pages(&self) -> Result<u64, LmdbFault> {
        Ok(self.file.metadata()?.len().div_ceil(self.page_bytes as u64))
    }

    fn bytes_at(&self, bytes: &mut [u8], at: u64) -> Result<(), LmdbFault> {
        Ok(self.file.read_exact_at(bytes, at)?)
    }

    fn error(&self, fault: LmdbFault) -> anyhow::Error {
        let path = self.path.display();
        match fault {
            LmdbFault::File(error) => {
                anyhow::Error::new(error).context(format!("{path} cannot be read"))
            }
            LmdbFault::Damage(words) => anyhow::anyhow!("{path} is damaged: {words}"),
        }
    }
}

#[cfg(test)]
mod tests;
