//! Disk space for the writer: a batch is refused, with nothing written, before it could fill the
//! disk. So a full disk stops nothing for good, and writing continues once there is space.

use std::io;

use hark_archive::limits::ERASE_STEP;
use hark_archive::store::{DiskUse, StoreStats};
use hark_archive::{CommitError, Write};

use crate::log::{FRAME, LogFrame};
use crate::reserve::ShelfSpace;
use crate::room::ByteSize;
use crate::shelf::{EmbeddedShelf, LogWriterState};

/// Bytes that stay free beside a batch: enough for a manifest and the header of a log.
const BESIDE_WRITES: u64 = 128 << 10;
/// Bytes that the writer needs beside the records of a batch: for the most deletions that a step
/// has, with those of replaced records.
const DELETIONS: u64 = 2 * ERASE_STEP as u64 * LogFrame::DELETE_BYTES;

/// The most bytes that a batch takes: its records, a deletion for each that replaces one, and those
/// of a step.
pub(crate) fn needs(writes: &[Write]) -> u64 {
    let bytes = |write: &Write| match write {
        Write::Put(record) => (FRAME + record.len()) as u64 + LogFrame::DELETE_BYTES,
        Write::Erase(_) => 0,
    };
    writes.iter().map(bytes).sum::<u64>() + DELETIONS
}

impl EmbeddedShelf {
    /// Reserves the space of a batch, as others may take what was free a moment ago. Where the disk
    /// is full nothing of the batch has been written.
    pub(crate) fn reserve_space(
        &self,
        writing: &mut LogWriterState,
        needs: u64,
    ) -> Result<(), CommitError> {
        let Some(tail) = &mut writing.tail else { return Ok(()) };
        tail.reserve_for(needs)
            .map_err(|error| self.refuse(&format!("a batch does not fit: {error}")))
    }

    /// Returns an error unless there is space for a batch. A batch with a deletion may use what the
    /// reserve gives back. Nothing of the batch has been written.
    pub(crate) fn check_space(
        &self,
        writing: &LogWriterState,
        writes: &[Write],
        needs: u64,
    ) -> Result<(), CommitError> {
        if writing.tail.as_ref().is_some_and(|tail| tail.has_reserved(needs)) {
            return Ok(());
        }
        let deletes = writes.iter().any(|write| matches!(write, Write::Erase(_)));
        // Where the disk does not say what is free, the write itself finds out.
        let Ok(lack) = self.lack(needs, deletes) else { return Ok(()) };
        if lack == 0 {
            return Ok(());
        }
        if deletes
            && let Some(reserve) = &self.options.reserve
            && reserve.give_up().is_ok_and(|given_up| given_up)
            && self.lack(needs, true).is_ok_and(|lack| lack == 0)
        {
            return Ok(());
        }
        Err(self.refuse(&self.wanting(lack)))
    }

    fn wanting(&self, lack: u64) -> String {
        format!(
            "{} more must be free in {} for new records; deletions and `hark compact` give room back",
            ByteSize(&lack),
            self.dir.display()
        )
    }

    /// Why a batch would be refused now for lack of space, if the reserve is in use: nobody may have
    /// put anything since.
    pub(crate) fn would_lack(&self) -> Option<String> {
        self.options.reserve.as_ref().filter(|reserve| reserve.missing() > 0)?;
        let lack = self.lack(DELETIONS, false).ok().filter(|lack| *lack > 0)?;
        Some(format!(
            "the disk is full, and the space reserved for this is in use: {}",
            self.wanting(lack)
        ))
    }

    /// Notes that a batch is refused for lack of space, and has maintenance look for some.
    pub(crate) fn refuse(&self, why: &str) -> CommitError {
        // Noted first: a round that ends without knowing of it would look no more.
        let error = self.space.lacks(why);
        self.call_maintenance();
        error
    }

    /// Bytes that must become free before a batch of `needs` bytes fits.
    fn lack(&self, needs: u64, deletes: bool) -> io::Result<u64> {
        let free = self.options.disk.free(&self.dir)?;
        let missing = self.options.reserve.as_ref().map_or(0, |reserve| reserve.missing());
        // What deletions leave is for the compaction after them.
        let kept = if deletes { missing / 2 } else { missing };
        Ok((needs + BESIDE_WRITES + kept).saturating_sub(free))
    }

    /// Notes what the shelf takes, and returns what all shelves of the directory take.
    pub(crate) fn note_space(&self, stats: &StoreStats) -> Option<DiskUse> {
        let reclaimable = stats.reclaimable_bytes;
        let usage = DiskUse { kept: stats.bytes.saturating_sub(reclaimable), reclaimable };
        let view = self.view.load();
        let addresses = view.segments.iter().map(|segment| segment.addresses.bytes()).max();
        let sidecars = addresses.unwrap_or_default() + self.dead_files_max();
        let space = ShelfSpace { usage, sidecars };
        Some(self.options.reserve.as_ref()?.note(&self.dir, space))
    }

    /// Looks whether there is space again after a batch was refused, and makes the reserve again.
    pub(crate) fn look_for_space(&self) {
        if let Some(reserve) = &self.options.reserve
            && let Err(error) = reserve.make()
        {
            tracing::debug!(%error, "the reserve is not made again yet");
        }
        if self.space.lacking().is_some() && self.lack(DELETIONS, false).is_ok_and(|lack| lack == 0)
        {
            self.space.suffices();
            if let Some(wake) = &*self.wake.lock() {
                wake();
            }
        }
    }
}
