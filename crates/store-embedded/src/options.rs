//! Settings of an embedded shelf, and the progress of long jobs.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::TextSource;
use hark_archive::store::SpaceBounds;

use crate::disk;
use crate::head;
use crate::log::LOG_BYTES_MAX;
use crate::space::reserve::DiskReserve;

/// Settings of an embedded shelf. The settings of [`SpaceBounds`] can change while the shelf is
/// open, by [`Store::set_space`](hark_archive::Store::set_space).
#[derive(Clone)]
pub struct EmbeddedOptions {
    /// Number of records at which the head is sealed into a segment. Values above
    /// [`SEAL_RECORDS_MAX`] count as this maximum.
    pub seal_records: u32,
    /// Length of a log in bytes at which its head is sealed, however few records the head has.
    /// Values above [`LOG_BYTES_MAX`] count as this maximum.
    pub log_bytes_max: u64,
    /// Approximate memory in bytes at which a head is sealed. All heads together, including heads
    /// that wait to be sealed, take up to four times as much. Above this bound, writes wait for
    /// sealing.
    pub head_bytes_max: u64,
    /// Number of segments of similar size that are merged into a larger segment.
    pub merge_fan_in: usize,
    /// Maximum number of records in a merged segment. The memory of a merge grows with this number
    /// (some 40 bytes per record), and fewer, larger segments bring no advantage.
    pub segment_records_max: u64,
    /// Share of a sealed log that must be dead before the log is rewritten.
    pub rewrite_dead_share: f64,
    /// Total of dead bytes that may stay in the sealed logs below `rewrite_dead_share`. Above this
    /// total, the worst of these logs are rewritten, too.
    pub dead_bytes_max: u64,
    /// Whether sealing, merging and rewriting run on a separate thread. Otherwise they run inside
    /// the commit that requires them: slower, but deterministic.
    pub background: bool,
    /// Time within which the slow check reads the whole shelf, in the background. `None` or zero:
    /// no slow check runs.
    pub scrub_within: Option<Duration>,
    /// Names of labels whose values are listed in segments, for
    /// [`Store::label_values`](hark_archive::Store::label_values). Maintenance makes segments that
    /// list other labels again, one segment at a time.
    pub listed_labels: &'static [u8],
    /// The texts whose words are indexed. `None`: searches read the words from the records.
    /// Maintenance makes segments that index other texts again, one segment at a time.
    pub texts: Option<Arc<dyn TextSource>>,
    /// Time within which deleted records are gone from all files. `None` leaves them until their
    /// log is rewritten for other reasons. Needs `background`.
    pub erase_within: Option<Duration>,
    /// Free bytes of the disk below which maintenance frees all space of deleted records at once.
    pub free_bytes_min: u64,
    /// The disk reserve of the shelf's directory. `None`: no reserve.
    pub reserve: Option<Arc<DiskReserve>>,
    /// The disk with the shelf's files.
    pub disk: Arc<dyn disk::Disk>,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            seal_records: 65_536,
            log_bytes_max: 256 << 20,
            head_bytes_max: 64 << 20,
            merge_fan_in: 8,
            segment_records_max: 8 << 20,
            rewrite_dead_share: 0.3,
            dead_bytes_max: u64::MAX,
            background: true,
            scrub_within: None,
            listed_labels: &[],
            texts: None,
            erase_within: None,
            free_bytes_min: 0,
            reserve: None,
            disk: Arc::new(disk::RealDisk),
        }
    }
}

/// Maximum number of records at which a head is sealed: half of the head's capacity. The other half
/// is for the batch that fills the head.
pub const SEAL_RECORDS_MAX: u32 = (head::ROWS_MAX / 2) as u32;

/// Memory that all heads together may take, in units of [`EmbeddedOptions::head_bytes_max`].
const HEADS: u64 = 4;

impl EmbeddedOptions {
    /// Number of records at which a head is sealed.
    pub(crate) fn rows_max(&self) -> u32 {
        self.seal_records.clamp(1, SEAL_RECORDS_MAX)
    }

    /// Number of rows for which a new head reserves memory at once.
    pub(crate) fn rows_expected(&self) -> u32 {
        // Reserving a row costs a quarter of a row's memory, and there may be more lists than rows.
        let fit = self.head_bytes_max / head::ROW_BYTES / 4;
        self.rows_max().min(fit.try_into().unwrap_or(u32::MAX))
    }

    /// The bounds that can change while the shelf is open.
    pub(crate) fn space_bounds(&self) -> SpaceBounds {
        SpaceBounds {
            log_bytes_max: self.log_bytes_max,
            dead_bytes_max: self.dead_bytes_max,
            free_bytes_min: self.free_bytes_min,
            erase_within: self.erase_within,
        }
    }

    /// Whether a head must be sealed that has `rows` rows, `bytes` of memory and a log of
    /// `log_bytes`. The log may have `log_bytes_max`.
    pub(crate) fn is_full(
        &self,
        rows: u32,
        bytes: u64,
        log_bytes: u64,
        log_bytes_max: u64,
    ) -> bool {
        rows >= self.rows_max()
            || log_bytes >= log_bytes_max.min(LOG_BYTES_MAX)
            || bytes >= self.head_bytes_max
    }

    /// Whether `heads_bytes`, the memory of all heads, exceeds the limit.
    pub(crate) fn are_too_many(&self, heads_bytes: u64) -> bool {
        heads_bytes > self.head_bytes_max.saturating_mul(HEADS)
    }

    /// Whether the heads that wait to be sealed leave too little memory for the active head and the
    /// batch that fills the active head.
    pub(crate) fn must_seal_first(&self, frozen_bytes: u64) -> bool {
        frozen_bytes > self.head_bytes_max.saturating_mul(HEADS - 2)
    }
}

/// The progress of a long job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// The step being done.
    pub what: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in total.
    pub total: u64,
}

/// A callback that receives the progress of a long job.
pub type OnProgress<'a> = &'a mut dyn FnMut(JobProgress);
