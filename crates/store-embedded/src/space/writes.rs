//! Disk space for the writer. A batch that could fill the disk is refused before anything is
//! written. So a full disk only pauses the writer, and writing continues once the disk has space.

use std::io;
use std::sync::Arc;

use hark_archive::limits::ERASE_STEP;
use hark_archive::store::{DiskUse, StoreStats};
use hark_archive::{CommitError, Write};

use super::job_room::ByteSize;
use super::reserve::ShelfSpace;
use crate::engine::files::ShelfFiles;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_view::ShelfView;
use crate::engine::tail::LogTail;
use crate::log::{FRAME, LogFrame};
use crate::maintenance::jobs::ShelfJobs;

/// Number of bytes that a batch leaves free: enough for a manifest and the header of a log.
const BESIDE_WRITES: u64 = 128 << 10;
/// Number of bytes that the writer needs in addition to the records of a batch: for the deletions
/// of a step, and for the same number of deletions of replaced records.
const DELETIONS: u64 = 2 * ERASE_STEP as u64 * LogFrame::DELETE_BYTES;

/// Upper bound for the bytes of a batch: its records, one deletion for each of these records, and
/// the deletions of a step.
pub(crate) fn needs(writes: &[Write]) -> u64 {
    let bytes = |write: &Write| match write {
        Write::Put(record) => (FRAME + record.len()) as u64 + LogFrame::DELETE_BYTES,
        Write::Erase(_) => 0,
    };
    writes.iter().map(bytes).sum::<u64>() + DELETIONS
}

/// Reserves the space of a batch on the disk before any part of the batch is written, because other
/// programs may use up the free space at any moment.
pub(crate) fn reserve_space(
    jobs: &ShelfJobs,
    tail: Option<&mut LogTail>,
    needs: u64,
) -> Result<(), CommitError> {
    let Some(tail) = tail else { return Ok(()) };
    tail.reserve_for(needs).map_err(|error| refuse(jobs, &format!("a batch does not fit: {error}")))
}

/// Returns an error unless the disk has space for a batch, of which no part has been written yet. A
/// batch with a deletion may use the space of the reserve.
pub(crate) fn check_space(
    (files, jobs): (&ShelfFiles, &ShelfJobs),
    tail: Option<&LogTail>,
    writes: &[Write],
    needs: u64,
) -> Result<(), CommitError> {
    if tail.is_some_and(|tail| tail.has_reserved(needs)) {
        return Ok(());
    }
    let deletes = writes.iter().any(|write| matches!(write, Write::Erase(_)));
    // If the disk does not report its free space, only the write will show whether the batch fits.
    let Ok(lack) = lack(files, needs, deletes) else { return Ok(()) };
    if lack == 0 {
        return Ok(());
    }
    if deletes
        && let Some(reserve) = &files.options().reserve
        && reserve.remove_file().is_ok_and(|given_up| given_up)
        && self::lack(files, needs, true).is_ok_and(|lack| lack == 0)
    {
        return Ok(());
    }
    Err(refuse(jobs, &wanting(files, lack)))
}

fn wanting(files: &ShelfFiles, lack: u64) -> String {
    format!(
        "{} more must be free in {} for new records; deletions and `hark compact` free space",
        ByteSize(&lack),
        files.dir().display()
    )
}

/// Returns the reason why a batch would be refused now, if the reserve has been removed and too
/// little space is free. This is known even before a client sends a record.
pub(crate) fn would_lack(files: &ShelfFiles) -> Option<String> {
    files.options().reserve.as_ref().filter(|reserve| reserve.missing() > 0)?;
    let lack = lack(files, DELETIONS, false).ok().filter(|lack| *lack > 0)?;
    Some(format!(
        "the disk is full, and the space reserved for this is in use: {}",
        wanting(files, lack)
    ))
}

/// Notes that a batch is refused for lack of space, and wakes maintenance, which frees space.
pub(crate) fn refuse(jobs: &ShelfJobs, why: &str) -> CommitError {
    // The refusal is noted first. Otherwise the round of maintenance could end before the refusal
    // is noted, and would not check again whether the disk has space.
    let error = jobs.space().lacks(why);
    jobs.call();
    error
}

/// Number of bytes that must become free before a batch of `needs` bytes fits.
fn lack(files: &ShelfFiles, needs: u64, deletes: bool) -> io::Result<u64> {
    let free = files.free_bytes()?;
    let missing = files.options().reserve.as_ref().map_or(0, |reserve| reserve.missing());
    // Deletions leave half of the reserve's space for the compaction that follows.
    let kept = if deletes { missing / 2 } else { missing };
    Ok((needs + BESIDE_WRITES + kept).saturating_sub(free))
}

/// Notes the disk space that the shelf uses, and returns the total of all shelves in the directory.
pub(crate) fn note_space(shelf: &Arc<OpenShelf>, view: &ShelfView, stats: &StoreStats) -> DiskUse {
    let reclaimable = stats.reclaimable_bytes;
    let usage = DiskUse { kept: stats.bytes.saturating_sub(reclaimable), reclaimable };
    let files = &shelf.files;
    let Some(reserve) = &files.options().reserve else {
        return DiskUse { reclaimable: reclaimable + lent_bytes(shelf), ..usage };
    };
    let addresses = view.segments.iter().map(|segment| segment.addresses.bytes()).max();
    let sidecars = addresses.unwrap_or_default() + view.dead_files_max();
    let space = ShelfSpace { usage, sidecars };
    let lender = Arc::downgrade(shelf);
    let lent = move || lender.upgrade().map_or(0, |shelf| lent_bytes(&shelf));
    reserve.note(files.dir(), space, Box::new(lent))
}

/// Number of bytes that the disk gets back from a shelf when the running job and the present
/// readers end.
fn lent_bytes(shelf: &OpenShelf) -> u64 {
    shelf.jobs.space().borrowed_bytes() + shelf.view.held_bytes()
}

/// Recreates the reserve if necessary. After a refused batch, checks whether the disk has space
/// again.
pub(crate) fn recheck_space(files: &ShelfFiles, jobs: &ShelfJobs) {
    if let Some(reserve) = &files.options().reserve
        && let Err(error) = reserve.make()
    {
        tracing::debug!(%error, "the reserve cannot be recreated yet");
    }
    let is_lacking = jobs.space().lacking().is_some();
    if is_lacking && lack(files, DELETIONS, false).is_ok_and(|lack| lack == 0) {
        jobs.space().suffices();
    }
}
