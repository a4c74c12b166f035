//! The position in nwaku's rows, saved after each batch.

use anyhow::Context as _;
use hark_codec::hex;
use serde_json::{Value, json};

use super::row::NwakuCursor;
use crate::commands::adopt::position::PositionFile;
use crate::commands::adopt::rows::text;
use crate::location::ArchiveLocation;

/// The position in one source.
pub(super) struct NwakuProgress {
    file: PositionFile,
    source: String,
    /// All rows up to this position were copied.
    pub(super) at: NwakuCursor,
    /// Number of rows copied so far, including earlier runs.
    pub(super) messages: u64,
}

impl NwakuProgress {
    /// Reads the position that an earlier run on this source has saved, if any.
    pub(super) fn open(location: &ArchiveLocation, source: &str) -> anyhow::Result<Self> {
        let file = PositionFile::new(location, "adopt-nwaku.json");
        // A position in another source, or in another order, is ignored.
        let is_ours = |found: &Value| found["source"] == source;
        let read = |found: &Value| is_ours(found).then(|| read(found)).transpose();
        let (at, messages) = file.load(read)?.flatten().unwrap_or((NwakuCursor::start(), 0));
        Ok(Self { file, source: source.into(), at, messages })
    }

    /// Saves the position.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        self.file.save(&json!({
            "source": self.source,
            "time": self.at.time,
            "key": text(&self.at.key),
            "topic": text(&self.at.topic),
            "messages": self.messages,
        }))
    }
}

fn read(found: &Value) -> anyhow::Result<(NwakuCursor, u64)> {
    let bytes = |name: &str| {
        let digits = found[name].as_str().with_context(|| format!("no {name}"))?;
        let mut bytes = Vec::new();
        anyhow::ensure!(
            hex::decode_into(digits.as_bytes(), &mut bytes),
            "`{name}` is not hex digits"
        );
        Ok(bytes)
    };
    let time = found["time"].as_i64().context("no time")?;
    let at = NwakuCursor { time, key: bytes("key")?, topic: bytes("topic")? };
    Ok((at, found["messages"].as_u64().context("no messages")?))
}
