//! Makes a query fail if a page of a map could not be read during the query. [`crate::map`]
//! describes how zeros replace such a page.

use std::path::PathBuf;

use hark_archive::SearchError;

use super::current_view::ReadFaults;
use super::files::ShelfFiles;
use super::shelf::OpenShelf;
use super::shelf_view::ShelfView;
use crate::maintenance::jobs::ShelfJobs;
use crate::map;

/// Whether a read of a file in the view has failed since `before`.
pub(crate) fn has_lost(shelf: &OpenShelf, view: &ShelfView, before: &ReadFaults) -> bool {
    if !before.have_grown() {
        return false;
    }
    // Another thread may have noted the failed read already, so the result does not matter: in both
    // cases the number of losses has grown since `before`.
    note_unreadable(shelf, view);
    shelf.view.has_losses_since(before)
}

/// Returns an error if a read of a file has failed since `before`, or if `trouble` gives a reason
/// not to trust the result.
#[inline]
pub(super) fn check_reads(
    shelf: &OpenShelf,
    view: &ShelfView,
    before: &ReadFaults,
    trouble: impl FnOnce() -> Option<String>,
) -> Result<(), SearchError> {
    if map::faults() == 0 {
        return Ok(());
    }
    if has_lost(shelf, view, before) {
        let words = "a part of a file could not be read, and will be left out";
        return Err(SearchError::LeftOut(words.into()));
    }
    trouble().map_or(Ok(()), |trouble| Err(SearchError::Failed(trouble)))
}

/// Notes the files of a view in which reads have failed, logs each file once, and wakes
/// maintenance.
pub(crate) fn note_unreadable(shelf: &OpenShelf, view: &ShelfView) {
    let files = || view.unreadable(shelf.files.dir());
    if shelf.jobs.note_unreadable(files, || shelf.view.note_loss()) {
        shelf.jobs.call();
    }
}

/// Returns the damaged or partly unreadable files, sorted by name.
pub(super) fn damaged_files(
    (files, jobs): (&ShelfFiles, &ShelfJobs),
    view: &ShelfView,
) -> Vec<String> {
    let mut damaged = jobs.damaged_files();
    let unreadable = if map::faults() > 0 { view.unreadable(files.dir()) } else { Vec::new() };
    damaged.extend(unreadable.into_iter().map(|(path, _): (PathBuf, u32)| path));
    damaged.sort_unstable();
    damaged.dedup();
    damaged.iter().map(|path| path.display().to_string()).collect()
}
