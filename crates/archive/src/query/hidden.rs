//! Records that searches and live messages leave out for every reader, for example because an
//! operator has banned their author.

use std::fmt;
use std::sync::Arc;

use hark_codec::record::Record;

/// Decides which records are hidden. The decision may change while a search is under way. The new
/// decision then applies to the records that the search has not delivered yet.
pub trait HideRecords: Send + Sync {
    /// Whether the record is hidden.
    fn hides(&self, record: &Record<'_>) -> bool;
}

/// The hidden records of a query. They do not count towards the limit of a search. If an index
/// computes a count or a sum of ids without reading records, the result includes hidden records. So
/// hidden records must not be secret.
#[derive(Clone)]
pub struct HiddenRecords(Arc<dyn HideRecords>);

impl HiddenRecords {
    /// Makes the condition that hides these records.
    pub fn new(hidden: Arc<dyn HideRecords>) -> Self {
        Self(hidden)
    }

    /// Whether the record is hidden.
    pub fn have(&self, record: &Record<'_>) -> bool {
        self.0.hides(record)
    }
}

impl fmt::Debug for HiddenRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HiddenRecords").finish_non_exhaustive()
    }
}

impl PartialEq for HiddenRecords {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HiddenRecords {}
