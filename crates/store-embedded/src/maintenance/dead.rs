//! Bytes of deleted records and of deletions.

use std::sync::atomic::Ordering;

use crate::engine::shelf_view::ShelfView;
use crate::log::Log;
use crate::options::EmbeddedOptions;

/// Bytes of deleted records and of deletions in the logs of a shelf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadBytes {
    /// Number of dead bytes in all logs.
    pub all: u64,
    /// Number of dead bytes in logs whose share of dead bytes requires a rewrite, now or after
    /// sealing.
    pub due: u64,
    /// Number of dead bytes in all other sealed logs.
    pub spread: u64,
}

impl DeadBytes {
    /// Counts the dead bytes of a view.
    pub(crate) fn of(view: &ShelfView, options: &EmbeddedOptions) -> Self {
        let mut dead = Self::default();
        let is_due = |log: &Log| log.dead_share() > options.rewrite_dead_share;
        for log in view.segments.iter().flat_map(|segment| segment.logs.iter().flatten()) {
            dead.all += log.dead_bytes.load(Ordering::Relaxed);
            *(if is_due(log) { &mut dead.due } else { &mut dead.spread }) += log.droppable_bytes();
        }
        for head in &view.frozen {
            let bytes = head.log.dead_bytes.load(Ordering::Relaxed);
            dead.all += bytes;
            dead.due += if is_due(&head.log) { bytes } else { 0 };
        }
        dead.all += view.active.log.dead_bytes.load(Ordering::Relaxed);
        dead
    }

    /// Number of dead bytes that rewrites will free even if no more records are deleted. Up to
    /// `dead_bytes_max` bytes may stay spread over logs.
    pub(crate) fn reclaimable(&self, dead_bytes_max: u64) -> u64 {
        self.due + self.spread.saturating_sub(dead_bytes_max)
    }
}
