//! A file beside the archive that stores an adoption's position, so that the next run can continue.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use hark_store_embedded::permissions;
use serde_json::Value;

use crate::location::ArchiveLocation;

/// The file of one kind of source.
pub(super) struct PositionFile(PathBuf);

impl PositionFile {
    pub(super) fn new(location: &ArchiveLocation, name: &str) -> Self {
        Self(location.data.join(name))
    }

    /// Loads the position that an earlier run has saved, and parses the position with `read`.
    /// Returns `None` if no position was saved.
    pub(super) fn load<T>(
        &self,
        read: impl Fn(&Value) -> anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        let file = self.0.display();
        match fs::read(&self.0) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(anyhow::Error::new)
                .and_then(|value| read(&value))
                .map(Some)
                .with_context(|| {
                    format!(
                        "{file} has the position of an earlier run, and cannot be read; remove it \
                         to start from the beginning: stored records are skipped"
                    )
                }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(format!("{file} cannot be read")),
        }
    }

    /// Saves a position. The file appears under its name only when it is complete.
    pub(super) fn save(&self, position: &Value) -> anyhow::Result<()> {
        // Another adoption may save its position at the same time.
        let unfinished = self.0.with_extension(format!("{}.unfinished", std::process::id()));
        let saved = (|| {
            let mut file = permissions::create_file(&unfinished)?;
            file.write_all(position.to_string().as_bytes())?;
            file.sync_all()?;
            fs::rename(&unfinished, &self.0)
        })();
        if saved.is_err() {
            // Only the first failure is reported.
            let _ = fs::remove_file(&unfinished);
        }
        saved.with_context(|| format!("{} could not be written", self.0.display()))
    }
}
