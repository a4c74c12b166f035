//! The result of a check.

use std::fmt;
use std::path::PathBuf;

/// A fault in a file of a shelf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The file with the fault.
    pub file: PathBuf,
    /// A description of the fault.
    pub what: String,
    /// Whether `hark rebuild` repairs the fault: the file is made from logs, or is a log that is
    /// only too long.
    pub mendable: bool,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.what)?;
        f.write_str(if self.mendable {
            " (`hark rebuild` makes it again from the log)"
        } else {
            " (restore the archive from a backup, or salvage the rest)"
        })
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Number of live records.
    pub records: u64,
    /// Number of deleted records that still take disk space.
    pub dead: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of logs.
    pub logs: u64,
    /// Number of bytes of an unfinished batch at the end of the last log. The next start cuts these
    /// bytes off.
    pub torn_bytes: u64,
    /// The faults that were found.
    pub faults: Vec<FileFault>,
}
