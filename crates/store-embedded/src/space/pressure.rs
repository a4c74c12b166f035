//! The reaction of maintenance to a lack of disk space, and to a series of deletes.

use hark_archive::store::SpaceBounds;

use super::rule::SpaceState;
use crate::engine::files::ShelfFiles;
use crate::engine::shelf_view::ShelfView;
use crate::maintenance::dead::DeadBytes;
use crate::maintenance::jobs::ShelfJobs;

/// The archive may grow by 1/`GROWTH_SHARE` of its size while rewrites wait for the end of a series
/// of deletes.
const GROWTH_SHARE: u64 = 5;

/// Whether the disk has less free space than the settings demand, or too little for the writer.
pub(crate) fn lacks_space(files: &ShelfFiles, jobs: &ShelfJobs) -> bool {
    // If the disk does not report its free space, the space is assumed to suffice.
    SpaceState::read(files, jobs).is_ok_and(|state| state.is_short())
}

/// Notes whether more deletes follow at once.
pub(crate) fn deletes_follow(jobs: &ShelfJobs, view: &ShelfView, follow: bool) {
    if follow {
        jobs.begin_deletes(view.bytes_on_disk());
    } else {
        jobs.end_deletes();
        jobs.call();
    }
}

/// Whether rewrites of partly dead logs are postponed during a series of deletes. More records of
/// each log will soon be deleted, so without the delay each log would be rewritten many times.
pub(crate) fn defers_rewrites(jobs: &ShelfJobs, view: &ShelfView) -> bool {
    let Some(bytes) = jobs.deletes_from_bytes() else { return false };
    view.bytes_on_disk() <= bytes + bytes / GROWTH_SHARE
}

/// Number of bytes of deleted records that maintenance will free even if no more records are
/// deleted.
pub(crate) fn reclaimable(files: &ShelfFiles, jobs: &ShelfJobs, dead: &DeadBytes) -> u64 {
    if jobs.deletes_from_bytes().is_some() || lacks_space(files, jobs) {
        return dead.due + dead.spread;
    }
    dead.reclaimable(files.bounds().dead_bytes_max)
}

/// Applies new bounds of disk space. If they differ from the old bounds, wakes maintenance.
pub(crate) fn set_bounds(files: &ShelfFiles, jobs: &ShelfJobs, bounds: &SpaceBounds) {
    if files.set_bounds(bounds) {
        jobs.call();
    }
}
