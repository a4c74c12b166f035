//! The position in a relay's database, saved after each batch.

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::commands::adopt::position::PositionFile;
use crate::location::ArchiveLocation;

/// The position in one source.
pub(super) struct RelayProgress {
    file: PositionFile,
    source: String,
    /// All rows up to this number are in the archive; 0 before the first batch.
    pub(super) number: u64,
    /// Number of rows copied so far, including earlier runs.
    pub(super) events: u64,
}

impl RelayProgress {
    /// Reads the position that an earlier run on this source has saved, if any.
    pub(super) fn open(
        location: &ArchiveLocation,
        file: &str,
        source: &str,
    ) -> anyhow::Result<Self> {
        let file = PositionFile::new(location, file);
        // A position in another source is ignored.
        let is_ours = |found: &Value| found["source"] == source;
        let read =
            |found: &Value| if is_ours(found) { read(found) } else { Ok(Default::default()) };
        let (number, events) = file.load(read)?.unwrap_or_default();
        Ok(Self { file, source: source.into(), number, events })
    }

    /// Saves the position.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        self.file.save(&json!({
            "source": self.source,
            "number": self.number,
            "events": self.events,
        }))
    }
}

/// Reads the number of the last row, and the count of rows so far.
fn read(found: &Value) -> anyhow::Result<(u64, u64)> {
    let number = found["number"].as_u64().context("no number")?;
    Ok((number, found["events"].as_u64().context("no events")?))
}
