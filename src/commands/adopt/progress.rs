//! The position of an adoption. It is saved beside the archive after each batch, so that the next
//! run continues there.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use hark_codec::hex;
use hark_store_embedded::permissions;
use serde_json::{Value, json};

use super::source::RowCursor;
use crate::location::ArchiveLocation;

/// The position in one source.
pub(super) struct AdoptProgress {
    file: PathBuf,
    source: String,
    /// All rows up to this position were put into the archive.
    pub(super) at: RowCursor,
    /// Rows brought over so far, by earlier runs as well.
    pub(super) events: u64,
    /// Rows that this or a later transaction of the source has written may have an earlier time
    /// than `at`, and still be missing. `None` if nothing has looked for such rows.
    pub(super) since: Option<u64>,
}

impl AdoptProgress {
    /// Reads the position that an earlier run on this source has saved, if any.
    pub(super) fn open(location: &ArchiveLocation, source: &str) -> anyhow::Result<Self> {
        let file = location.data.join("adopt.json");
        let (source, at) = (source.into(), RowCursor::default());
        let mut progress = Self { file, source, at, events: 0, since: None };
        match fs::read(&progress.file) {
            Ok(text) => progress.read(&text).with_context(|| {
                format!(
                    "{} has the position of an earlier run, and cannot be read; remove it to start \
                     over: what is stored already is skipped",
                    progress.file.display()
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).context(format!("{} cannot be read", progress.file.display()));
            }
        }
        Ok(progress)
    }

    fn read(&mut self, text: &[u8]) -> anyhow::Result<()> {
        let found: Value = serde_json::from_slice(text)?;
        // A position in another source is ignored.
        if found["source"] == self.source.as_str() {
            let id = found["id"].as_str().and_then(|id| hex::decode_32(id.as_bytes()));
            self.at = RowCursor {
                created_at: found["created_at"].as_i64().context("no created_at")?,
                id: id.context("no id")?,
            };
            self.events = found["events"].as_u64().context("no events")?;
            self.since = found["transaction"].as_u64();
        }
        Ok(())
    }

    /// Saves the position. The file appears under its name only when it is complete.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let id = hex::encode_32(&self.at.id);
        let text = json!({
            "source": self.source,
            "created_at": self.at.created_at,
            "id": String::from_utf8_lossy(&id),
            "events": self.events,
            "transaction": self.since,
        });
        let unfinished = self.file.with_extension("unfinished");
        let saved = (|| {
            let mut file = permissions::create_file(&unfinished)?;
            file.write_all(text.to_string().as_bytes())?;
            file.sync_all()?;
            fs::rename(&unfinished, &self.file)
        })();
        saved.with_context(|| format!("{} could not be written", self.file.display()))
    }
}
