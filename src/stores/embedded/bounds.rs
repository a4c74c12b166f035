//! Derives the bounds of a shelf's files from the rules for deleting records.

use std::time::Duration;

use hark_archive::retention::RetentionPolicy;
use hark_archive::store::SpaceBounds;

use crate::config::Config;

/// An archive that is bounded in bytes is split into at least this many logs, unless a log would
/// then be smaller than [`LOG_BYTES_MIN`].
const LOGS_MIN: u64 = 40;
const LOG_BYTES_MIN: u64 = 256 << 10;
/// Sealing or rewriting a log needs about as much free space as the log has bytes. So a log has at
/// most this part of the space that retention keeps free.
const FREE_PARTS: u64 = 4;
/// Deleted records may permanently occupy a twentieth of a bound in bytes.
const DEAD_SHARE: u64 = 20;

/// Returns the bounds of the files of a shelf that has these rules for deleting records.
pub(crate) fn space_bounds(config: &Config, retention: &RetentionPolicy) -> SpaceBounds {
    let bytes_max = retention.bytes_max;
    // Disk space is freed in units of whole logs, so the archive may exceed its bound by the size
    // of a log.
    let share = bytes_max.map_or(u64::MAX, |bytes| (bytes / LOGS_MIN).max(LOG_BYTES_MIN));
    let free_bytes_min = retention.free_bytes_min.unwrap_or(0);
    let free_share = match free_bytes_min {
        0 => u64::MAX,
        bytes => (bytes / FREE_PARTS).max(LOG_BYTES_MIN),
    };
    SpaceBounds {
        log_bytes_max: config.log_bytes_max.min(share).min(free_share),
        // Space occupied by deleted records is not available to other records.
        dead_bytes_max: bytes_max.map_or(u64::MAX, |bytes| bytes / DEAD_SHARE),
        free_bytes_min,
        erase_within: config.erase_within.0.map(Duration::from_secs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_small_enough_for_the_bounds_of_the_space() {
        const MB: u64 = 1_000_000;
        let config = Config::default();
        let whole = config.log_bytes_max;
        let table = [
            (None, None, whole),
            (Some(4_000 * MB), None, 100 * MB),
            (None, Some(5_000 * MB), whole),
            (None, Some(100 * MB), 25 * MB),
            (Some(400 * MB), Some(100 * MB), 10 * MB),
            (Some(1), Some(1), LOG_BYTES_MIN),
            (None, Some(0), whole),
        ];
        for (bytes_max, free_bytes_min, expected) in table {
            let retention =
                RetentionPolicy { bytes_max, free_bytes_min, ..RetentionPolicy::default() };
            let bounds = space_bounds(&config, &retention);
            assert_eq!(bounds.log_bytes_max, expected, "{bytes_max:?} {free_bytes_min:?}");
        }
    }
}
