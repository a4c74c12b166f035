//! The writer of an import. If the archive does not exist yet, the first record creates the
//! archive, so an import without records creates no archive.

use hark_archive::Outcome;

use crate::location::ArchiveLocation;
use crate::writer::HistoryWriter;

/// The writer of an import, which is opened before the first record if the archive exists.
pub(super) struct LazyWriter<'a> {
    location: &'a ArchiveLocation,
    opened: Option<HistoryWriter>,
}

impl<'a> LazyWriter<'a> {
    /// Opens the writer if the archive exists. Otherwise the first record creates the archive.
    /// Fails, with advice, if a new archive is probably a mistake: a service of this machine has an
    /// archive, and the user named no archive.
    pub(super) fn new(location: &'a ArchiveLocation) -> anyhow::Result<Self> {
        let opened = if location.is_yet_to_be_created()? { None } else { Some(location.import()?) };
        Ok(Self { location, opened })
    }

    /// The open writer. `None` as long as there is no archive.
    pub(super) fn opened(&self) -> Option<&HistoryWriter> {
        self.opened.as_ref()
    }

    /// Puts records, like [`HistoryWriter::put`].
    pub(super) fn put(
        &mut self,
        records: Vec<Box<[u8]>>,
    ) -> anyhow::Result<Vec<Result<Outcome, String>>> {
        let writer = match &mut self.opened {
            Some(writer) => writer,
            opened => opened.insert(self.location.import()?),
        };
        writer.put(records)
    }
}
