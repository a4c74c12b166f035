//! Errors of reading a log to its end.

use std::io;
use std::path::PathBuf;

/// The fault of a log that is longer than [`BYTES_MAX`](super::BYTES_MAX).
pub(super) const TOO_LONG: &str = "it is longer than indices reach, so that its last records could not be \
                        found: stop what writes the archive and run `hark rebuild`, which divides it";

/// Why a log cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file could not be read.
    #[error("{path} could not be read: {cause}")]
    Io {
        /// The log's file.
        path: PathBuf,
        /// The error of the operation.
        cause: io::Error,
    },
    /// The first bytes are not the header of this log.
    #[error("the header of {path} is damaged, or belongs to another log")]
    Header {
        /// The log's file.
        path: PathBuf,
    },
    /// The log has records at offsets that no index can hold.
    #[error("{path}: {TOO_LONG}")]
    TooLong {
        /// The log's file.
        path: PathBuf,
    },
    /// A frame is damaged, although the frame was synced or is followed by other frames.
    #[error("{path} is damaged at byte {offset}, in what had been synced")]
    Damaged {
        /// The log's file.
        path: PathBuf,
        /// The offset at which the damage starts.
        offset: u64,
    },
}
