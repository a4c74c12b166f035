//! Merges all tables and logs of a LevelDB to one sequence of keys.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

use super::entry::{Entry, FileError, LevelDbRow, ScanState};
use super::manifest::{DatabaseVersion, TableFile};
use super::table::{InternalKey, TableFault, TableReader};

/// A source of entries in key order.
enum EntrySource {
    /// Entries of the logs.
    Logs(IntoIter<Entry>),
    /// Entries of tables that do not overlap, one table after the other.
    Tables {
        dir: PathBuf,
        files: VecDeque<TableFile>,
        open: Option<Box<TableReader>>,
        after: Vec<u8>,
    },
}

impl EntrySource {
    fn next(&mut self, state: &mut ScanState) -> Result<Option<Entry>, FileError> {
        let (dir, files, open, after) = match self {
            Self::Logs(entries) => return Ok(entries.next()),
            Self::Tables { dir, files, open, after } => (dir, files, open, after),
        };
        loop {
            if let Some(table) = open
                && let Some(entry) = table.next(state)?
            {
                return Ok(Some(entry));
            }
            *open = None;
            let Some(file) = files.pop_front() else { return Ok(None) };
            if !after.is_empty() && user_key(&file.last) <= &after[..] {
                state.bytes_done += file.bytes;
                continue;
            }
            match TableReader::open(dir, file.number, after) {
                Ok(table) => *open = Some(Box::new(table)),
                Err((path, TableFault::File(error))) => return Err(FileError { path, error }),
                Err((path, TableFault::Damage(words))) => state.damage(&path, words),
            }
        }
    }
}

/// Returns the user's part of a key.
fn user_key(key: &[u8]) -> &[u8] {
    InternalKey::read(key).map_or(key, |key| key.user)
}

/// The next entry of a source. The heap returns the greatest entry first, so a lower key makes an
/// entry greater. Of two entries with one key, the entry with the higher sequence number is
/// greater.
struct NextEntry {
    entry: Entry,
    source: usize,
}

impl Ord for NextEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = other.entry.key.cmp(&self.entry.key);
        by_key.then(self.entry.sequence.cmp(&other.entry.sequence))
    }
}

impl PartialOrd for NextEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for NextEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for NextEntry {}

/// A scan over the keys that are not deleted, in key order, each key once.
pub(super) struct MergedScan {
    sources: Vec<EntrySource>,
    heap: BinaryHeap<NextEntry>,
    /// The key whose entries are being read.
    last: Option<Vec<u8>>,
}

impl MergedScan {
    /// Starts a scan after the key `after`. A missing table is noticed only when the scan opens the
    /// table.
    pub(super) fn open(
        dir: &Path,
        version: DatabaseVersion,
        mut of_logs: Vec<Entry>,
        after: &[u8],
    ) -> Self {
        of_logs.sort_unstable_by(|a, b| a.key.cmp(&b.key).then(b.sequence.cmp(&a.sequence)));
        let tables = |files: VecDeque<TableFile>| EntrySource::Tables {
            dir: dir.into(),
            files,
            open: None,
            after: after.to_vec(),
        };
        let mut sources = vec![EntrySource::Logs(of_logs.into_iter())];
        for (level, files) in version.levels {
            let mut files: Vec<_> = files.into_values().collect();
            if level == 0 {
                // Tables of level 0 may overlap.
                sources.extend(files.into_iter().map(|file| tables(VecDeque::from([file]))));
            } else {
                files.sort_unstable_by(|a, b| user_key(&a.first).cmp(user_key(&b.first)));
                sources.push(tables(files.into()));
            }
        }
        Self { sources, heap: BinaryHeap::new(), last: None }
    }

    /// Returns the next key and its value.
    pub(super) fn next(&mut self, state: &mut ScanState) -> Result<Option<LevelDbRow>, FileError> {
        if self.last.is_none() && self.heap.is_empty() {
            for source in 0..self.sources.len() {
                self.refill(source, state)?;
            }
        }
        while let Some(NextEntry { entry, source }) = self.heap.pop() {
            self.refill(source, state)?;
            // The current version of a key comes first; later entries of the same key are older
            // versions.
            let is_older = self.last.as_ref().is_some_and(|last| entry.key <= *last);
            if is_older {
                continue;
            }
            self.last = Some(entry.key.clone());
            if let Some(value) = entry.value {
                return Ok(Some((entry.key, value)));
            }
        }
        Ok(None)
    }

    fn refill(&mut self, source: usize, state: &mut ScanState) -> Result<(), FileError> {
        let Some(of) = self.sources.get_mut(source) else { return Ok(()) };
        if let Some(entry) = of.next(state)? {
            self.heap.push(NextEntry { entry, source });
        }
        Ok(())
    }
}
