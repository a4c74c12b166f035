//! The current view of a shelf, for searches and for the writer, and the number of failed reads of
//! the shelf's files.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::shelf_view::ShelfView;
use crate::head::Head;
use crate::map;

/// The current view of a shelf. A thread replaces the view only while it holds the writer's lock.
pub(crate) struct CurrentView {
    view: ArcSwap<ShelfView>,
    /// Earlier views. A reader may still use such a view, and the removed files that it names.
    earlier: Mutex<Vec<Weak<ShelfView>>>,
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
        let (view, losses) = (ArcSwap::from_pointee(view), AtomicU64::new(0));
        Self { view, earlier: Mutex::default(), losses }
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
        let old = self.view.rcu(|view| Arc::new(change(view)));
        let mut earlier = self.earlier.lock();
        earlier.retain(|view| view.strong_count() > 0);
        earlier.push(Arc::downgrade(&old));
    }

    /// Number of bytes of removed files that readers still have open. The disk gets these bytes
    /// back when the readers end.
    pub(crate) fn held_bytes(&self) -> u64 {
        let earlier: Vec<_> = self.earlier.lock().iter().filter_map(Weak::upgrade).collect();
        if earlier.is_empty() {
            return 0;
        }
        let named: HashSet<_> = self.load().files().map(|(file, _)| file).collect();
        let opened = earlier.iter().flat_map(|view| view.files());
        let removed: HashMap<_, u64> = opened.filter(|(file, _)| !named.contains(file)).collect();
        removed.values().sum()
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
