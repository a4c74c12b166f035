//! The searches of readers. A search of a snapshot fails if a file that it needs could not be read.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::merge::SnapshotSearch;
use hark_archive::query::plan::Set;
use hark_archive::{Record, Search, SearchError, SearchProgress};

use super::faults::check_reads;
use super::shelf::OpenShelf;
use super::shelf_view::ShelfView;

/// A search that fails if a file that it needs could not be read.
pub(super) struct WatchedSearch {
    pub(super) search: SnapshotSearch,
    pub(super) view: Arc<ShelfView>,
    pub(super) shelf: Arc<OpenShelf>,
}

impl Search for WatchedSearch {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError> {
        let before = self.shelf.view.faults();
        let progress = self.search.slice(work, sink)?;
        check_reads(&self.shelf, &self.view, &before, || self.search.trouble())?;
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
