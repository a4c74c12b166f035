//! Settings of an embedded shelf, and the progress of long jobs.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::TextSource;
use hark_archive::store::SpaceBounds;

use crate::disk;
use crate::head;
use crate::log::LOG_BYTES_MAX;
use crate::space::reserve::DiskReserve;

/// Settings of an embedded shelf. [`Store::set_space`](hark_archive::Store::set_space) changes the
/// settings of [`SpaceBounds`] while the shelf is open.
#[derive(Clone)]
pub struct EmbeddedOptions {
    /// Number of records at which a head is full and is sealed into a segment. Values above
    /// [`SEAL_RECORDS_MAX`] count as this maximum.
    pub seal_records: u32,
    /// Length of a log, in bytes, at which its head is sealed, even if the head has few records.
    /// Values above [`LOG_BYTES_MAX`] count as this maximum.
    pub log_bytes_max: u64,
    /// Approximate memory in bytes at which a head is sealed. All heads together, including those
    /// that wait for sealing, may take four times as much. Above four times this size, writes wait
    /// until a head is sealed.
    pub head_bytes_max: u64,
    /// Number of segments of similar size that are merged into a larger segment.
    pub merge_fan_in: usize,
    /// Maximum number of records in a merged segment. A merge needs some 40 bytes of memory per
    /// record, and larger segments would have no advantage.
    pub segment_records_max: u64,
    /// Share of dead bytes above which a sealed log is rewritten.
    pub rewrite_dead_share: f64,
    /// Maximum total of dead bytes in sealed logs whose share of dead bytes is at most
    /// `rewrite_dead_share`. Above this maximum, the logs with the largest shares are rewritten,
    /// too.
    pub dead_bytes_max: u64,
    /// Whether sealing, merging and rewriting run on a separate thread. If false, the commit that
    /// makes a job necessary also runs the job, which is slower but deterministic.
    pub background: bool,
    /// Time within which the slow check reads the whole shelf in the background. With `None` or
    /// zero, no slow check runs.
    pub scrub_within: Option<Duration>,
    /// Names of the labels whose values are listed in segments, for
    /// [`Store::label_values`](hark_archive::Store::label_values). Maintenance replaces segments
    /// that list other labels, one segment at a time.
    pub listed_labels: &'static [u8],
    /// Defines the texts whose words are indexed. With `None`, searches read the words from the
    /// records. Maintenance replaces segments that index other texts, one segment at a time.
    pub texts: Option<Arc<dyn TextSource>>,
    /// Time within which deleted records are gone from all files. With `None`, they stay until
    /// their log is rewritten for another reason. The setting needs `background`.
    pub erase_within: Option<Duration>,
    /// Number of free bytes of the disk below which maintenance frees the space of all deleted
    /// records at once.
    pub free_bytes_min: u64,
    /// The reserve of disk space in the shelf's directory; `None` for no reserve.
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

/// Maximum value of `seal_records`: half of the rows that a head can have. The other half is for
/// the batch that fills the head.
pub const SEAL_RECORDS_MAX: u32 = (head::ROWS_MAX / 2) as u32;

/// Maximum memory of all heads together, as a multiple of [`EmbeddedOptions::head_bytes_max`].
const HEADS: u64 = 4;

impl EmbeddedOptions {
    /// Number of records at which a head is sealed.
    pub(crate) fn rows_max(&self) -> u32 {
        self.seal_records.clamp(1, SEAL_RECORDS_MAX)
    }

    /// Number of rows for which a new head reserves memory at once.
    pub(crate) fn rows_expected(&self) -> u32 {
        // The reservation for a row takes a quarter of the row's memory. So all reservations take
        // at most a sixteenth of `head_bytes_max`, and the rest is for rows and for lists, which
        // may outnumber the rows.
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

    /// Whether a head with `rows` rows, `bytes` bytes of memory and a log of `log_bytes` bytes must
    /// be sealed. `log_bytes_max` is the current bound for the log.
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

    /// Whether `heads_bytes`, the memory of all heads, exceeds the maximum.
    pub(crate) fn are_too_many(&self, heads_bytes: u64) -> bool {
        heads_bytes > self.head_bytes_max.saturating_mul(HEADS)
    }

    /// Whether the heads that wait for sealing leave too little memory for the active head and for
    /// the batch that fills this head.
    pub(crate) fn must_seal_first(&self, frozen_bytes: u64) -> bool {
        frozen_bytes > self.head_bytes_max.saturating_mul(HEADS - 2)
    }
}

/// The progress of a long job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// The step being done.
    pub what: &'static str,
    /// Number of units done.
    pub done: u64,
    /// Number of units in total.
    pub total: u64,
}

/// A callback that receives the progress of a long job.
pub type OnProgress<'a> = &'a mut dyn FnMut(JobProgress);
