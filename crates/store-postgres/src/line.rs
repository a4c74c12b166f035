//! The position of this process in the sequence of puts, which stays correct if the database loses
//! puts.
//!
//! A standby that is promoted while it lags has lost the last commits, and so has a database that
//! was restored from a backup. Such a database reuses the lost numbers for the next puts. A process
//! that compared only numbers would treat the new puts as delivered, and never send them to
//! subscribers. So numbers belong to a *line* (a timeline). A session that is going to write
//! ([`begin_line`]) begins a new line in two cases: the last line was begun in another database, or the
//! database is behind the position of this process. The new line begins before any commit in this
//! database, under the lock of all commits. So the old and the new line share exactly the puts
//! before the new line's beginning.
//!
//! A process that finds unknown lines ([`follow`]) goes back to the point where the lines diverge,
//! and delivers the later puts. The numbers that the process itself uses never go back, because the
//! process adds the number of lost puts to the numbers of a new line. So code that joins stored and
//! live records by number is not affected. A search in progress may return a record that is
//! delivered again, but no record is missed.

use parking_lot::Mutex;

use crate::error::StatementError;
use crate::session::DatabaseSession;

/// A line: its id, and the number up to which its puts are those of the previous line.
pub(crate) type Timeline = (i64, i64);

/// A position in the sequence of puts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimelinePosition {
    /// The line of the numbers.
    pub(crate) line: i64,
    /// The number up to which the line's puts are delivered and visible to searches.
    pub(crate) seen: i64,
    /// How often this process has switched to another line. Numbers of different eras must not be
    /// compared.
    pub(crate) era: u64,
    /// The offset added to the line's numbers, so that this process's numbers ascend.
    shift: i64,
}

impl TimelinePosition {
    /// Maps a number of the line to this process's number.
    pub(crate) fn own(&self, seq: i64) -> u64 {
        seq.saturating_add(self.shift).max(0).cast_unsigned()
    }
}

/// The current position, shared by the threads of a shelf.
#[derive(Debug)]
pub(crate) struct CurrentPosition {
    now: Mutex<TimelineState>,
}

#[derive(Debug)]
struct TimelineState {
    position: TimelinePosition,
    /// All lines, in order.
    lines: Vec<Timeline>,
    /// A message about the puts that the database has lost. Kept until all later puts are
    /// delivered.
    trouble: Option<String>,
}

impl CurrentPosition {
    /// Creates a position at the number `seen` of the last of `lines`.
    pub(crate) fn new(lines: Vec<Timeline>, seen: i64) -> Self {
        let line = lines.last().map_or(0, |(id, _)| *id);
        let position = TimelinePosition { line, seen, era: 0, shift: 0 };
        Self { now: Mutex::new(TimelineState { position, lines, trouble: None }) }
    }

    /// Returns the current position.
    pub(crate) fn now(&self) -> TimelinePosition {
        self.now.lock().position
    }

    /// Records that puts up to `seq` are delivered, unless the process has switched to another line
    /// since `position`.
    pub(crate) fn reached(&self, position: TimelinePosition, seq: i64) {
        let now = &mut self.now.lock().position;
        if now.era == position.era {
            now.seen = now.seen.max(seq);
        }
    }

    /// Records that all puts are delivered.
    pub(crate) fn caught_up(&self) {
        self.now.lock().trouble = None;
    }

    /// Returns the message about lost puts, until all later puts are delivered.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.now.lock().trouble.clone()
    }

    /// Switches to the last of the database's lines. Returns how many numbers were lost. Does
    /// nothing and returns `None` if the database's last line is the current line or an earlier
    /// line.
    pub(crate) fn switch_line(&self, lines: Vec<Timeline>) -> Option<i64> {
        let now = &mut *self.now.lock();
        let common = lines.iter().zip(&now.lines).take_while(|(one, other)| one == other).count();
        let line = lines.get(common..)?.last()?.0;
        let apart = lines[common..].iter().chain(&now.lines[common..]);
        let since = apart.map(|(_, since)| *since).min().unwrap_or(0);
        let lost = (now.position.seen - since).max(0);
        let TimelinePosition { seen, era, shift, .. } = now.position;
        let (seen, shift) = (seen - lost, shift + lost);
        now.position = TimelinePosition { line, seen, era: era + 1, shift };
        now.lines = lines;
        if lost > 0 {
            now.trouble = Some(format!(
                "the database has lost its last {lost} puts, as a standby that lagged has taken its \
                 place, or a backup; what came since is being sent to subscribers"
            ));
        }
        Some(lost)
    }

    /// Whether this process has seen puts that a database at number `seq` of `line` does not have.
    pub(crate) fn is_ahead_of(&self, line: i64, seq: i64) -> bool {
        let now = self.now.lock();
        if line == now.position.line {
            return seq < now.position.seen;
        }
        now.lines.iter().any(|(id, _)| *id == line)
    }
}

/// Reads all lines, in order.
pub(crate) fn read(session: &mut DatabaseSession) -> Result<Vec<Timeline>, StatementError> {
    let rows = session.query_once("SELECT id, since FROM line ORDER BY number", &[])?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_this_process_ascend_though_those_of_the_database_go_back() {
        let current = CurrentPosition::new(vec![(0, 0)], 20);
        assert_eq!(current.switch_line(vec![(0, 0)]), None);
        let before = current.now();
        assert_eq!(current.switch_line(vec![(0, 0), (7, 10)]), Some(10));
        assert_eq!((current.now().seen, current.now().own(11)), (10, 21));
        assert!(current.trouble().is_some());
        current.reached(before, 25);
        assert_eq!(current.now().seen, 10, "a number of the line before");
        current.reached(current.now(), 15);
        // The database is back on an earlier line, for example after a backup was restored. A new
        // line has to begin.
        assert_eq!(current.switch_line(vec![(0, 0)]), None);
        assert!(current.is_ahead_of(0, 12) && current.is_ahead_of(7, 14));
        assert!(!current.is_ahead_of(7, 15) && !current.is_ahead_of(9, 1));
        // The lines share their puts up to the first number at which one of them diverges.
        assert_eq!(current.switch_line(vec![(0, 0), (9, 12)]), Some(5));
        assert_eq!((current.now().seen, current.now().own(11)), (10, 26));
        assert_eq!(
            current.switch_line(vec![(0, 0), (9, 12), (8, 40)]),
            Some(0),
            "nothing was lost"
        );
        assert_eq!((current.now().seen, current.now().era), (10, 3));
    }
}
