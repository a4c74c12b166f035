//! Queries fail if a page of a map could not be read meanwhile; [`crate::map`] describes how such a
//! page is replaced with zeros.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hark_archive::query::merge::SnapshotSearch;
use hark_archive::query::plan::Set;
use hark_archive::{Record, Search, SearchError, SearchProgress};

use crate::map;
use crate::shelf::EmbeddedShelf;
use crate::view::ShelfView;

/// A search that fails if a needed part of a file could not be read.
pub(crate) struct WatchedSearch {
    pub search: SnapshotSearch,
    pub view: Arc<ShelfView>,
    pub shelf: Arc<EmbeddedShelf>,
}

/// The known failed reads before a query or a job.
pub(crate) struct ReadFaults {
    faults: u64,
    losses: u64,
}

impl Search for WatchedSearch {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError> {
        let before = self.shelf.before();
        let progress = self.search.slice(work, sink)?;
        self.shelf.believe(&self.view, &before, || self.search.trouble())?;
        Ok(progress)
    }

    fn seq(&self) -> u64 {
        self.search.seq()
    }

    fn visited(&self) -> u64 {
        self.search.visited()
    }

    fn damaged(&self) -> u64 {
        self.search.damaged()
    }

    fn driver(&self) -> Option<Set> {
        self.search.driver()
    }

    fn bytes(&self) -> usize {
        self.search.bytes()
    }
}

impl EmbeddedShelf {
    /// Returns the known failed reads.
    pub(crate) fn before(&self) -> ReadFaults {
        ReadFaults { faults: map::faults(), losses: self.losses.load(Ordering::Acquire) }
    }

    /// Whether a read of a file in the view has failed since `before`.
    pub(crate) fn has_lost(&self, view: &ShelfView, before: &ReadFaults) -> bool {
        if map::faults() == before.faults {
            return false;
        }
        // `losses` has grown even if another thread has noticed the failed read first.
        self.note_unreadable(view);
        self.losses.load(Ordering::Acquire) != before.losses
    }

    /// Returns an error if a read of a file has failed since `before`, or if `trouble` returns a
    /// reason not to trust the result.
    pub(crate) fn believe(
        &self,
        view: &ShelfView,
        before: &ReadFaults,
        trouble: impl FnOnce() -> Option<String>,
    ) -> Result<(), SearchError> {
        if map::faults() == 0 {
            return Ok(());
        }
        if self.has_lost(view, before) {
            let words = "a part of a file could not be read, and is left out from now on";
            return Err(SearchError::LeftOut(words.into()));
        }
        trouble().map_or(Ok(()), |trouble| Err(SearchError::Failed(trouble)))
    }

    /// Records the files of a view with failed reads, logs each file once, and wakes maintenance.
    pub(crate) fn note_unreadable(&self, view: &ShelfView) {
        let mut known = self.known.lock();
        let mut is_new = false;
        for (path, faults) in view.unreadable(&self.dir) {
            match known.unreadable.insert(path.clone(), faults) {
                Some(before) if before == faults => continue,
                Some(_) => {}
                None => tracing::error!(
                    file = %path.display(),
                    "a part of a file of the archive could not be read: it was shortened, or the disk \
                     fails; `hark check` says more"
                ),
            }
            is_new = true;
        }
        if is_new {
            self.losses.fetch_add(1, Ordering::AcqRel);
            drop(known);
            self.call_maintenance();
        }
    }

    /// Returns the damaged or partly unreadable files, sorted by name.
    pub(crate) fn damaged_files(&self, view: &ShelfView) -> Vec<String> {
        let damaged: Vec<PathBuf> = self.known.lock().damaged.keys().cloned().collect();
        let unreadable = if map::faults() > 0 { view.unreadable(&self.dir) } else { Vec::new() };
        let unreadable = unreadable.into_iter().map(|(path, _)| path);
        let mut files: Vec<PathBuf> = damaged.into_iter().chain(unreadable).collect();
        files.sort_unstable();
        files.dedup();
        files.iter().map(|path| path.display().to_string()).collect()
    }
}
