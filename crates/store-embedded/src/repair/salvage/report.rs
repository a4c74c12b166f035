//! The result of a salvage, and the parts of logs that were lost.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hark_archive::Id;

/// A part of a log in which no whole frame was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// The log file.
    pub file: PathBuf,
    /// The range of bytes in the file. The end is `u64::MAX` if the file is gone.
    pub bytes: Range<u64>,
    /// Number of live records that began in this part, if a segment knows this number.
    pub records: Option<u64>,
    /// The oldest and the newest time of these records, if a segment knows the times.
    pub times: Option<(u64, u64)>,
    /// Ids of these records that a segment confirms.
    pub ids: Vec<Id>,
    /// An id in the damaged bytes that no segment confirms.
    pub likely_id: Option<Id>,
    /// Why the file could not be opened; `None` if the file was opened or is gone.
    pub unopened: Option<String>,
    /// Whether the part is the end of the last log. If there is no other damage, a crash has
    /// interrupted the last batch, and its records were never acknowledged.
    pub may_be_torn: bool,
}

impl LostPart {
    /// Makes the description of a lost part of `file`.
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
    /// Number of records that other records replace or delete, plus the number of extra copies.
    pub replaced: u64,
    /// The lost parts, at most 10,000, ordered by log and offset.
    pub lost: Vec<LostPart>,
    /// Number of further lost parts.
    pub more_lost: u64,
    /// Total length of all lost parts, without missing files.
    pub lost_bytes: u64,
    /// The reason why MANIFEST could not be used. Without MANIFEST, segments cannot show which
    /// records were deleted.
    pub manifest: Option<String>,
}
