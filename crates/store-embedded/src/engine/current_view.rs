//! The current view of a shelf, for searches and for the writer, and the number of failed reads of
//! the shelf's files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use super::shelf_view::ShelfView;
use crate::head::Head;
use crate::map;

/// The current view of a shelf. A thread replaces the view only while it holds the writer's lock.
pub(crate) struct CurrentView {
    view: ArcSwap<ShelfView>,
    /// Number of unreadable parts of files found so far.
    losses: AtomicU64,
}

/// The counts of failed reads before a query or a job began.
pub(crate) struct ReadFaults {
    faults: u64,
    losses: u64,
}

impl ReadFaults {
    /// Whether a read of any map has failed since these counts were taken. The map may belong to
    /// another shelf.
    #[inline]
    pub(super) fn have_grown(&self) -> bool {
        map::faults() != self.faults
    }
}

impl CurrentView {
    pub(super) fn new(view: ShelfView) -> Self {
        Self { view: ArcSwap::from_pointee(view), losses: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<ShelfView>> {
        self.view.load()
    }

    #[inline]
    pub(crate) fn load_full(&self) -> Arc<ShelfView> {
        self.view.load_full()
    }

    /// Replaces the view.
    pub(crate) fn update(&self, change: impl Fn(&ShelfView) -> ShelfView) {
        self.view.rcu(|view| Arc::new(change(view)));
    }

    /// Makes `head` the active head; maintenance seals the previous head.
    pub(super) fn begin_head(&self, head: &Arc<Head>) {
        self.update(|view| {
            let mut frozen = view.frozen.clone();
            frozen.push(Arc::clone(&view.active));
            ShelfView::new(view.segments.clone(), frozen, Arc::clone(head))
        });
    }

    /// Returns the current counts of failed reads.
    #[inline]
    pub(crate) fn faults(&self) -> ReadFaults {
        ReadFaults { faults: map::faults(), losses: self.losses.load(Ordering::Acquire) }
    }

    /// Notes that an unreadable part of a file was found.
    pub(super) fn note_loss(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether an unreadable part of a file was found since `before`.
    pub(super) fn has_losses_since(&self, before: &ReadFaults) -> bool {
        self.losses.load(Ordering::Acquire) != before.losses
    }
}
