//! The position in a mail server's keys, saved after each batch.

use anyhow::Context as _;
use hark_codec::hex;
use serde_json::{Value, json};

use crate::commands::adopt::position::PositionFile;
use crate::commands::adopt::rows::text;
use crate::location::ArchiveLocation;

/// The position in one source.
pub(super) struct MailProgress {
    file: PositionFile,
    source: String,
    /// All rows up to this key are in the archive. The key is empty before the first batch.
    pub(super) key: Vec<u8>,
    /// Number of rows copied so far, including earlier runs.
    pub(super) envelopes: u64,
}

impl MailProgress {
    /// Reads the position that an earlier run on this source has saved, if any.
    pub(super) fn open(location: &ArchiveLocation, source: &str) -> anyhow::Result<Self> {
        let file = PositionFile::new(location, "adopt-mailserver.json");
        // A position in another source is ignored.
        let is_ours = |found: &Value| found["source"] == source;
        let read =
            |found: &Value| if is_ours(found) { read(found) } else { Ok(Default::default()) };
        let (key, envelopes) = file.load(read)?.unwrap_or_default();
        Ok(Self { file, source: source.into(), key, envelopes })
    }

    /// Saves the position.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        self.file.save(&json!({
            "source": self.source,
            "key": text(&self.key),
            "envelopes": self.envelopes,
        }))
    }
}

/// Reads the key and the number of rows.
fn read(found: &Value) -> anyhow::Result<(Vec<u8>, u64)> {
    let digits = found["key"].as_str().context("no key")?;
    let mut key = Vec::new();
    if !hex::decode_into(digits.as_bytes(), &mut key) {
        anyhow::bail!("`key` is not hex digits");
    }
    Ok((key, found["envelopes"].as_u64().context("no envelopes")?))
}
