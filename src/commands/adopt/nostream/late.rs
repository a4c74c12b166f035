//! Finds new rows whose time the adoption has passed already: events that are published again, and
//! replaceable events with an old date.
//!
//! No index finds these rows. `first_seen` has no index, and a replaceable event keeps the
//! `first_seen` of the row that it replaces. But PostgreSQL records which transaction wrote a row
//! (`xmin`). So this module reads the whole table again and again, and looks for rows of new
//! transactions. The module reads the table in pieces, each with a short statement, and pauses
//! after each piece for [`REST`] times as long as the piece took. So one core and one disk of
//! nostream are busy for at most a tenth of the time.

use std::time::{Duration, Instant};

use hark_archive::Id;

use super::source::NostreamSource;

/// Interval between two reads of newly published events.
pub(super) const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Number of pages that one statement reads; at 8 KiB a page, 32 MiB.
const PIECE: u64 = 4_096;
/// The pause after a piece, as a multiple of the time that the piece took.
const REST: u32 = 9;

/// The state of the repeated reads. A round is one read of the whole table.
pub(super) struct LateScan {
    /// The current round looks for rows that this transaction or a later transaction has written.
    since: u64,
    /// `since` of the next round.
    next: u64,
    /// The next page to read in this round, and the number of the table's pages.
    page: u64,
    pages: u64,
    /// The earliest time at which the next piece may be read.
    due: Instant,
}

impl LateScan {
    pub(super) fn new(since: u64) -> Self {
        Self { since, next: since, page: 0, pages: 0, due: Instant::now() }
    }

    /// Returns the oldest transaction whose rows may not all have been found.
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Reads a piece, and returns the ids of the new rows whose events are older than `created_at`.
    /// The caller stores all of these rows, and then calls [`LateScan::pass`].
    pub(super) fn read(
        &mut self,
        source: &NostreamSource,
        created_at: i64,
    ) -> anyhow::Result<Vec<Id>> {
        let began = Instant::now();
        if self.page == 0 {
            self.next = source.transaction()?;
            self.pages = source.pages()?;
        }
        let piece = if source.reads_pages { PIECE } else { self.pages };
        let ids = source.written(self.since, self.page..self.page + piece, created_at)?;
        self.page += piece;
        self.due = Instant::now() + began.elapsed() * REST;
        Ok(ids)
    }

    /// Moves on to the next piece. The new rows of the last piece must be stored.
    pub(super) fn pass(&mut self) {
        if self.page >= self.pages {
            self.page = 0;
            self.since = self.next;
            self.due = self.due.max(Instant::now() + FOLLOW_EVERY);
        }
    }
}
