//! The numbers of records with listed values. Plans depend on these numbers.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Maximum age of a number that is used without reading it again. An old number can only make a
/// search slower.
const FRESH: Duration = Duration::from_secs(30);
/// Maximum number of remembered sets of values.
const SETS_MAX: usize = 256;

/// How many records have any of some listed values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedSize {
    pub(crate) matching: u64,
    /// Number of all records.
    pub(crate) all: u64,
}

/// The numbers that were read last. The pages of an answer have the same values, so the numbers are
/// not read again for each page.
#[derive(Default)]
pub(crate) struct ListedSizes {
    hasher: RandomState,
    read: Mutex<HashMap<u64, (Instant, ListedSize)>>,
}

impl ListedSizes {
    /// Returns the number of records with any of these terms, if the number was read recently.
    pub(crate) fn find(&self, terms: &[i64]) -> Option<ListedSize> {
        let read = self.read.lock();
        let (at, size) = read.get(&self.hasher.hash_one(terms))?;
        (at.elapsed() < FRESH).then_some(*size)
    }

    /// Remembers the number of records with any of these terms.
    pub(crate) fn insert(&self, terms: &[i64], size: ListedSize) {
        let mut read = self.read.lock();
        if read.len() >= SETS_MAX {
            read.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if read.len() < SETS_MAX {
            read.insert(self.hasher.hash_one(terms), (Instant::now(), size));
        }
    }
}
