//! The result of a salvage, and the lost parts.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hark_archive::Id;

/// A part of a log without a whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// The log file.
    pub file: PathBuf,
    /// The range of bytes in the file. The range ends at `u64::MAX` if the file is gone.
    pub bytes: Range<u64>,
    /// Number of live records that began in the part, if a segment has this information.
    pub records: Option<u64>,
    /// The oldest and the newest time of these records, if a segment has this information.
    pub times: Option<(u64, u64)>,
    /// Ids of such records that a segment confirms.
    pub ids: Vec<Id>,
    /// The unconfirmed id in the damaged bytes.
    pub likely_id: Option<Id>,
    /// The reason why the file could not be opened; `None` if the file was opened or is gone.
    pub unopened: Option<String>,
    /// Whether the part is the end of the last log. Unless other damage caused the loss, a crash
    /// cut the batch short, and its records were never acknowledged.
    pub may_be_torn: bool,
}

impl LostPart {
    /// A lost part of the log file `file`.
    pub(super) fn new(file: &Path, bytes: Range<u64>) -> Self {
        Self {
            file: file.into(),
            bytes,
            records: None,
            times: None,
            ids: Vec::new(),
            likely_id: None,
            unopened: None,
            may_be_torn: false,
        }
    }
}

impl fmt::Display for LostPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        match self.bytes.end {
            u64::MAX => write!(f, "the file is gone")?,
            end => write!(f, "bytes {} to {end}", self.bytes.start)?,
        }
        if let Some(records) = self.records {
            write!(f, ", with {records} live records")?;
        }
        if let Some(why) = &self.unopened {
            write!(f, ", as the file could not be opened: {why}")?;
        }
        if self.may_be_torn {
            write!(f, ", perhaps a batch that a crash cut short")?;
        }
        Ok(())
    }
}

/// The result of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Number of log files that were read.
    pub logs: u64,
    /// Total length of these files.
    pub bytes: u64,
    /// Number of records in the new store.
    pub records: u64,
    /// Number of records that the source had deleted.
    pub deleted: u64,
    /// Number of records that other records replace or delete, or that the source had twice.
    pub replaced: u64,
    /// The lost parts, at most 10,000, by log and byte.
    pub lost: Vec<LostPart>,
    /// Number of further lost parts.
    pub more_lost: u64,
    /// Total length of all lost parts, without missing files.
    pub lost_bytes: u64,
    /// The reason why MANIFEST could not be used. Without MANIFEST, segments give no information
    /// about deleted records.
    pub manifest: Option<String>,
}
