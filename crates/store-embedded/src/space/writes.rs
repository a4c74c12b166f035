//! Disk space for the writer. A batch that could fill the disk is refused before anything is
//! written. So a full disk only pauses the writer, and writing continues once the disk has space.

use std::sync::Arc;

use hark_archive::store::{DiskUse, StoreStats};
use hark_archive::{CommitError, Write};

use super::errors::ByteSize;
use super::reserve::ShelfSpace;
use super::rule::{DELETIONS, SpaceState, SpaceUse};
use crate::engine::files::ShelfFiles;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_view::ShelfView;
use crate::engine::tail::LogTail;
use crate::log::{FRAME, LogFrame};
use crate::maintenance::jobs::ShelfJobs;

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
    let of = if deletes { SpaceUse::Deletions } else { SpaceUse::Puts };
    // If the disk does not report its free space, only the write will show whether the batch fits.
    let Ok(state) = SpaceState::read(files, jobs) else { return Ok(()) };
    let lack = state.lack(of, needs);
    if lack == 0 {
        return Ok(());
    }
    if deletes
        && let Some(reserve) = &files.options().reserve
        && reserve.remove_file().is_ok_and(|given_up| given_up)
        && SpaceState::read(files, jobs).is_ok_and(|state| state.lack(of, needs) == 0)
    {
        return Ok(());
    }
    jobs.space().set_wanted(state.free.saturating_add(lack));
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
pub(crate) fn would_lack(files: &ShelfFiles, jobs: &ShelfJobs) -> Option<String> {
    let state = SpaceState::read(files, jobs).ok().filter(|state| state.missing > 0)?;
    let lack = Some(state.lack(SpaceUse::Puts, DELETIONS)).filter(|lack| *lack > 0)?;
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

/// Notes the disk space that the shelf uses, and returns the total of all shelves in the directory.
pub(crate) fn note_space(shelf: &Arc<OpenShelf>, view: &ShelfView, stats: &StoreStats) -> DiskUse {
    let reclaimable = stats.reclaimable_bytes;
    let files = &shelf.files;
    let state = SpaceState::read(files, &shelf.jobs);
    let usage = DiskUse {
        kept: stats.bytes.saturating_sub(reclaimable),
        reclaimable,
        free_wanted: state.map_or(0, |state| state.free_target()),
    };
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
    let Ok(state) = SpaceState::read(files, jobs) else { return };
    if state.lack(SpaceUse::Puts, DELETIONS) == 0 {
        jobs.space().suffices();
    }
    if state.free >= jobs.space().wanted_bytes() {
        jobs.space().set_wanted(0);
    }
}
