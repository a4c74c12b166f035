//! Reads an LMDB file, and never writes: neither into it nor into the lock file beside it.
//!
//! There are crates for LMDB. All of them are LMDB's C library, which maps the file and trusts each
//! byte of it: a file that is cut off or damaged ends the process. It also writes into the lock file
//! and keeps a slot in it, and while it reads, the program whose file it is cannot use its pages
//! again. What has to be read is small, and the same since LMDB 0.9.0. So this reads pages with
//! ordinary reads, checks all that it follows, and leaves no trace.
//!
//! **Beside a writer.** A file has two meta pages, and each names the root of a snapshot. Transaction
//! N writes its pages to unused places, and then the meta page N modulo 2. Pages that N frees belong
//! to the snapshot before it, and no transaction before N + 2 uses them again. So as long as a
//! snapshot's own meta page is as it was, all pages of the snapshot are: the transaction that
//! overwrites the meta page of snapshot N is N + 2, and the first one that may overwrite a page of it
//! is N + 3. [`LmdbFile::read`] compares the meta page after each read, and reads again if it has
//! changed.

mod page;
mod snapshot;

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use self::page::{META_END, MetaPage};
pub(super) use self::snapshot::{DamagedPages, LmdbSnapshot, LmdbTable, LmdbValue};

/// How often a read is begun anew, while the file changes.
const TRIES: u32 = 200;

/// Why something of a file cannot be read.
#[derive(Debug)]
pub(super) enum LmdbFault {
    /// The operating system's error.
    File(Error),
    /// What is damaged.
    Damage(String),
}

impl From<Error> for LmdbFault {
    fn from(error: Error) -> Self {
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
    /// Opens a file, and checks that it is LMDB's.
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
    /// snapshot: `read` gets the number of tries before, and should read less each time.
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
