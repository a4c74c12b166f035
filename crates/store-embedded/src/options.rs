//! Settings of an embedded shelf, and the progress of long jobs.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::TextSource;
use hark_archive::store::SpaceBounds;

use crate::disk;
use crate::head;
use crate::log::LOG_BYTES_MAX;
use crate::reserve::DiskReserve;

/// Settings of an embedded shelf. Those of [`SpaceBounds`] can change while it is open, by
/// [`Store::set_space`](hark_archive::Store::set_space).
#[derive(Clone)]
pub struct EmbeddedOptions {
    /// Records at which the head is sealed into a segment, at most [`SEAL_RECORDS_MAX`]; larger
    /// values count as that.
    pub seal_records: u32,
    /// Bytes of a log at which its head is sealed, however few records the head has. At most
    /// [`LOG_BYTES_MAX`]; larger values count as that.
    pub log_bytes_max: u64,
    /// Approximate bytes of memory at which a head is sealed. All heads together, including those
    /// that wait to be sealed, take up to four times as much; above that, writes wait for sealing.
    pub head_bytes_max: u64,
    /// Number of segments of about the same size that are merged into one.
    pub merge_fan_in: usize,
    /// Most records of a merged segment. The memory of a merge grows with them (some 40 bytes per
    /// record), and fewer, larger segments gain nothing.
    pub segment_records_max: u64,
    /// Share of a sealed log that must be dead before the log is rewritten.
    pub rewrite_dead_share: f64,
    /// Dead bytes that may stay, in total, in the sealed logs below `rewrite_dead_share`. Above
    /// this total the worst of those logs are rewritten, too.
    pub dead_bytes_max: u64,
    /// Whether sealing, merging and rewriting run on a thread of their own. Otherwise they run
    /// inside the commit that calls for them: slower, but the same every time.
    pub background: bool,
    /// Time within which the slow check reads the whole shelf, in the background. `None` or zero:
    /// it reads nothing.
    pub scrub_within: Option<Duration>,
    /// Names of labels whose values are listed in segments, for
    /// [`Store::label_values`](hark_archive::Store::label_values). Segments that list others are
    /// made again, one at a time.
    pub listed_labels: &'static [u8],
    /// The texts whose words are indexed. `None`: words are looked for in the records. Segments that
    /// index others are made again, one at a time.
    pub texts: Option<Arc<dyn TextSource>>,
    /// Time within which deleted records are gone from all files. `None` leaves them until their
    /// log is rewritten for other reasons. Needs `background`.
    pub erase_within: Option<Duration>,
    /// Free bytes of the disk below which all space of deleted records is given back at once.
    pub free_bytes_min: u64,
    /// The reserve of the directory that the shelf is in. `None`: there is none.
    pub reserve: Option<Arc<DiskReserve>>,
    /// The disk that the files are on.
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

/// Most records at which a head is sealed: half of its capacity, which leaves the other half to the
/// batch that fills it.
pub const SEAL_RECORDS_MAX: u32 = (head::ROWS_MAX / 2) as u32;

/// Memory that all heads together may take, in units of [`EmbeddedOptions::head_bytes_max`].
const HEADS: u64 = 4;

impl EmbeddedOptions {
    /// Records at which a head is sealed.
    pub(crate) fn rows_max(&self) -> u32 {
        self.seal_records.clamp(1, SEAL_RECORDS_MAX)
    }

    /// Rows for which a new head reserves memory at once.
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

    /// Whether a head of `rows` rows, `bytes` of memory and a log of `log_bytes`, which may have
    /// `log_bytes_max`, is to be sealed.
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

    /// Whether `heads_bytes`, the memory of all heads, is more than allowed.
    pub(crate) fn are_too_many(&self, heads_bytes: u64) -> bool {
        heads_bytes > self.head_bytes_max.saturating_mul(HEADS)
    }

    /// Whether the heads that wait to be sealed leave too little memory for the head being written
    /// and the batch that fills it.
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
    /// Units in all.
    pub total: u64,
}

/// A callback that receives the progress of a long job.
pub type OnProgress<'a> = &'a mut dyn FnMut(JobProgress);
