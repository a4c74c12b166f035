//! The result of a check of a shelf, for every store.

use serde_json::{Map, Value};

/// Shows the progress of a check: the finished steps, all steps, and a short text.
pub type CheckMeter<'a> = &'a mut dyn FnMut(u64, u64, &str);

/// The result of a check of a shelf.
#[derive(Clone, Debug, Default)]
pub struct ArchiveCheck {
    /// The compared things with their numbers, such as `12 events`.
    pub compared: Vec<String>,
    /// The same for programs, by name.
    pub fields: Map<String, Value>,
    /// The number of all faults.
    pub faults: u64,
    /// The number of faults of each sort, if the store has sorts of faults.
    pub sorts: Vec<(&'static str, u64)>,
    /// Descriptions of the first faults.
    pub listed: Vec<String>,
    /// Messages that are printed also without faults.
    pub notes: Vec<String>,
    /// Advice for the faults.
    pub advice: String,
}
