//! Derives the bounds of a shelf's files from the rules for deleting records.

use std::time::Duration;

use hark_archive::retention::RetentionPolicy;
use hark_archive::store::SpaceBounds;

use crate::config::Config;

/// An archive that is bounded in bytes is split into at least this many logs, unless a log would
/// then be smaller than [`LOG_BYTES_MIN`].
const LOGS_MIN: u64 = 40;
const LOG_BYTES_MIN: u64 = 256 << 10;
/// Deleted records may permanently occupy a twentieth of a bound in bytes.
const DEAD_SHARE: u64 = 20;

/// Returns the bounds of the files of a shelf that has these rules for deleting records.
pub(crate) fn space_bounds(config: &Config, retention: &RetentionPolicy) -> SpaceBounds {
    let bytes_max = retention.bytes_max;
    // Disk space is freed in units of whole logs, so the archive may exceed its bound by the size
    // of a log.
    let share = bytes_max.map_or(u64::MAX, |bytes| (bytes / LOGS_MIN).max(LOG_BYTES_MIN));
    SpaceBounds {
        log_bytes_max: config.log_bytes_max.min(share),
        // Space occupied by deleted records is not available to other records.
        dead_bytes_max: bytes_max.map_or(u64::MAX, |bytes| bytes / DEAD_SHARE),
        free_bytes_min: retention.free_bytes_min.unwrap_or(0),
        erase_within: config.erase_within.0.map(Duration::from_secs),
    }
}
