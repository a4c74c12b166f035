//! The results of a check and of a rebuild of a shelf, for every store.

use serde_json::{Map, Value};

/// Shows the progress of a check or of a rebuild: the finished steps, all steps, and a short text.
pub type CheckMeter<'a> = &'a mut dyn FnMut(u64, u64, &str);

/// The result of a check of a shelf.
#[derive(Clone, Debug, Default)]
pub struct ArchiveCheck {
    /// The compared things with their numbers, such as `12 events`.
    pub compared: Vec<String>,
    /// The result of the check for programs, by name.
    pub fields: Map<String, Value>,
    /// The number of all faults.
    pub faults: u64,
    /// The number of faults of each kind, if the store distinguishes kinds of faults.
    pub sorts: Vec<(&'static str, u64)>,
    /// Descriptions of the first faults.
    pub listed: Vec<String>,
    /// Messages that are printed even if there are no faults.
    pub notes: Vec<String>,
    /// Advice for the faults.
    pub advice: String,
}

/// The result of a rebuild of a shelf.
#[derive(Clone, Debug, Default)]
pub struct ArchiveRebuild {
    /// The result as a sentence.
    pub summary: String,
    /// The result for programs, by name.
    pub fields: Map<String, Value>,
    /// The number of repaired faults of each kind, if the store distinguishes kinds of faults.
    pub repaired: Vec<(&'static str, u64)>,
    /// The last check, with the faults that remain; without faults if the store makes no check.
    pub last: ArchiveCheck,
}
