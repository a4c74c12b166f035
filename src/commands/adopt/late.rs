//! Finds rows that come with a time that the adoption has passed already: events that are published
//! again, and replaceable ones of an old date.
//!
//! No index leads to them. `first_seen` has none, and a replaceable event keeps that of the row that it
//! takes over. PostgreSQL itself remembers which transaction has written a row (`xmin`), so the table is
//! read from end to end for rows of transactions that are new, again and again. It is read a piece at a
//! time, each in a short statement, and [`REST`] times as long as that took nothing is read: one core
//! and one disk of nostream's are never busy with it for more than a tenth of the time.

use std::time::Instant;

use hark_archive::Id;

use super::FOLLOW_EVERY;
use super::source::Source;

/// Pages that a statement reads: 32 MiB.
const PIECE: u64 = 4_096;
/// Rest between two pieces, by the time that the first took.
const REST: u32 = 9;

/// How far the reading is.
pub(super) struct Late {
    /// Rows that this transaction or a later one has written are looked for.
    since: u64,
    /// The same for the next round.
    next: u64,
    /// Pages of the table that this round has behind it, of so many.
    page: u64,
    pages: u64,
    /// When the next piece may be read.
    due: Instant,
}

impl Late {
    pub(super) fn new(since: u64) -> Self {
        Self { since, next: since, page: 0, pages: 0, due: Instant::now() }
    }

    /// The oldest transaction whose rows may not all have been found.
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Reads a piece: ids of rows with a time before `created_at`. Once all of them are brought in,
    /// [`Late::pass`] goes on to the next piece.
    pub(super) fn read(&mut self, source: &Source, created_at: i64) -> anyhow::Result<Vec<Id>> {
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

    /// What the last piece had is in the archive.
    pub(super) fn pass(&mut self) {
        if self.page >= self.pages {
            self.page = 0;
            self.since = self.next;
            self.due = self.due.max(Instant::now() + FOLLOW_EVERY);
        }
    }
}
