//! The position in nostream's database, saved after each batch.

use anyhow::Context as _;
use hark_codec::hex;
use serde_json::{Value, json};

use super::source::RowCursor;
use crate::commands::adopt::position::PositionFile;
use crate::location::ArchiveLocation;

/// The position in one source.
pub(super) struct NostreamProgress {
    file: PositionFile,
    source: String,
    /// All rows up to this position were put into the archive.
    pub(super) at: RowCursor,
    /// Number of rows copied so far, including earlier runs.
    pub(super) events: u64,
    /// A transaction number of the source. The archive may lack rows that this transaction or a
    /// later one wrote, although their time is earlier than `at`. `None` if no scan for such rows
    /// has run.
    pub(super) since: Option<u64>,
}

impl NostreamProgress {
    /// Reads the position that an earlier run on this source has saved, if any.
    pub(super) fn open(location: &ArchiveLocation, source: &str) -> anyhow::Result<Self> {
        let file = PositionFile::new(location, "adopt.json");
        // A position in another source is ignored.
        let is_ours = |found: &Value| found["source"] == source;
        let read =
            |found: &Value| if is_ours(found) { read(found) } else { Ok(Default::default()) };
        let (at, events, since) = file.load(read)?.unwrap_or_default();
        Ok(Self { file, source: source.into(), at, events, since })
    }

    /// Saves the position.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let id = hex::encode_32(&self.at.id);
        self.file.save(&json!({
            "source": self.source,
            "created_at": self.at.created_at,
            "id": String::from_utf8_lossy(&id),
            "events": self.events,
            "transaction": self.since,
        }))
    }
}

/// Reads the position, the number of rows and the transaction.
fn read(found: &Value) -> anyhow::Result<(RowCursor, u64, Option<u64>)> {
    let id = found["id"].as_str().and_then(|id| hex::decode_32(id.as_bytes()));
    let at = RowCursor {
        created_at: found["created_at"].as_i64().context("no created_at")?,
        id: id.context("no id")?,
    };
    let events = found["events"].as_u64().context("no events")?;
    Ok((at, events, found["transaction"].as_u64()))
}
