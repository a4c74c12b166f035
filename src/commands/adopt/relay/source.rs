//! The database of a relay that numbers its events, and its rows.

use crate::commands::adopt::events::{EventRow, EventRowFault};
use crate::commands::adopt::source_file::FileIdentity;

/// A batch ends once its events have at least this number of bytes.
pub(in crate::commands::adopt) const BATCH_BYTES_MAX: usize = 32 << 20;

/// A row of the relay's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands::adopt) struct RelayRow {
    /// The number under which the relay stores the event.
    pub(in crate::commands::adopt) number: u64,
    /// The event as JSON, or the reason why the row has no event.
    pub(in crate::commands::adopt) event: Result<Vec<u8>, EventRowFault>,
}

impl EventRow for RelayRow {
    fn name(&self) -> String {
        format!("number {}", self.number)
    }

    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), EventRowFault> {
        out.extend_from_slice(self.event.as_ref().map_err(Clone::clone)?);
        Ok(())
    }
}

/// A relay's database, which is only read.
pub(in crate::commands::adopt) trait RelaySource: Send {
    /// The name under which the position in this database is saved.
    fn name(&self) -> String;
    /// The file from which the last rows were read.
    fn file(&self) -> Option<FileIdentity>;
    /// Returns the next rows after a number, at most `limit`. At the end, the list is empty. If
    /// another file has taken the place of the opened file, the rows are from the other file.
    fn batch(&mut self, after: u64, limit: u32) -> anyhow::Result<Vec<RelayRow>>;
    /// Returns the highest number.
    fn last(&mut self) -> anyhow::Result<u64>;
    /// Returns the number of damaged pages that were skipped, and a description of the first.
    fn damage(&self) -> (u64, &str) {
        (0, "")
    }
}
