//! The position of this process in the sequence of puts (writes that store a record). The position
//! stays correct even if the database loses puts.
//!
//! If a standby is promoted before it has received everything, the last commits are lost. A
//! database that was restored from a backup has lost commits, too. Such a database gives the lost
//! numbers to the next puts. A process that only compared numbers would believe that it has already
//! delivered these puts, and would never send them to subscribers. So each number belongs to a
//! *timeline* (`line` in names and tables). A session that is going to write calls
//! [`renew_line`](crate::failover::renew_line), which begins a new timeline in two cases: the last
//! timeline began in another database, or this process has seen puts that are missing in the
//! database. The new timeline begins before any commit in this database, while the session holds
//! the lock of all commits. So the old timeline and the new timeline have the same puts up to the
//! number at which the new timeline begins.
//!
//! If a process finds an unknown timeline ([`follow`](crate::failover::follow)), the process goes
//! back to the number at which its own timeline and the new timeline differ, and delivers the puts
//! after this number. The numbers that the process itself uses never go back: the process adds the
//! number of lost puts to all numbers of the new timeline. So the code that joins stored and live
//! records by number needs no special case. A search in progress may return a record that is then
//! delivered again, but no record is missed.

use parking_lot::Mutex;

use crate::error::StatementError;
use crate::session::DatabaseSession;

/// A timeline: its id, and the number up to which it has the same puts as the previous timeline.
pub(crate) type Timeline = (i64, i64);

/// Returns the number up to which two databases have the same puts, by their timelines. Returns
/// `None` if the timelines are the same.
pub(crate) fn parted_at(one: &[Timeline], other: &[Timeline]) -> Option<i64> {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    one[same..].iter().chain(&other[same..]).map(|(_, since)| *since).min()
}

/// A position in the sequence of puts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimelinePosition {
    /// The timeline to which the numbers belong.
    pub(crate) line: i64,
    /// The number up to which puts of the timeline are delivered and visible to searches.
    pub(crate) seen: i64,
    /// The era: how many times this process has switched to another timeline. Numbers of different
    /// eras cannot be compared.
    pub(crate) era: u64,
    /// The number that is added to numbers of the timeline, so that the numbers of this process
    /// always ascend.
    shift: i64,
}

impl TimelinePosition {
    /// Returns this process's number for a number of the timeline.
    pub(crate) fn own(&self, seq: i64) -> u64 {
        seq.saturating_add(self.shift).max(0).cast_unsigned()
    }
}

/// The current position. All threads of a shelf share this position.
#[derive(Debug)]
pub(crate) struct CurrentPosition {
    now: Mutex<TimelineState>,
}

#[derive(Debug)]
struct TimelineState {
    position: TimelinePosition,
    /// All timelines of the database, in order.
    lines: Vec<Timeline>,
    /// A message about lost puts. It is shown until all later puts are delivered.
    trouble: Option<String>,
}

impl CurrentPosition {
    /// Creates a position at the number `seen` of the last timeline in `lines`.
    pub(crate) fn new(lines: Vec<Timeline>, seen: i64) -> Self {
        let line = lines.last().map_or(0, |(id, _)| *id);
        let position = TimelinePosition { line, seen, era: 0, shift: 0 };
        Self { now: Mutex::new(TimelineState { position, lines, trouble: None }) }
    }

    /// Returns the current position.
    pub(crate) fn now(&self) -> TimelinePosition {
        self.now.lock().position
    }

    /// Notes that puts up to `seq` are delivered. Does nothing if the process has switched to
    /// another timeline since `position`.
    pub(crate) fn reached(&self, position: TimelinePosition, seq: i64) {
        let now = &mut self.now.lock().position;
        if now.era == position.era {
            now.seen = now.seen.max(seq);
        }
    }

    /// Notes that all puts are delivered.
    pub(crate) fn caught_up(&self) {
        self.now.lock().trouble = None;
    }

    /// Returns the message about lost puts; `None` after all later puts are delivered.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.now.lock().trouble.clone()
    }

    /// Switches to the last timeline of the database, and returns how many puts were lost. Returns
    /// `None` and changes nothing if this process is already on that timeline or on a later
    /// timeline.
    pub(crate) fn switch_line(&self, lines: Vec<Timeline>) -> Option<i64> {
        let now = &mut *self.now.lock();
        if now.lines.starts_with(&lines) {
            return None;
        }
        let line = lines.last()?.0;
        let since = parted_at(&lines, &now.lines).unwrap_or(0);
        let lost = (now.position.seen - since).max(0);
        let TimelinePosition { seen, era, shift, .. } = now.position;
        let (seen, shift) = (seen - lost, shift + lost);
        now.position = TimelinePosition { line, seen, era: era + 1, shift };
        now.lines = lines;
        if lost > 0 {
            now.trouble = Some(format!(
                "the database has lost its last {lost} records, because a standby that lagged or a \
                 backup has taken its place; newer records are being sent to subscribers"
            ));
        }
        Some(lost)
    }

    /// Whether this process has seen puts that are missing in a database whose last put is number
    /// `seq` of the timeline `line`.
    pub(crate) fn is_ahead_of(&self, line: i64, seq: i64) -> bool {
        let now = self.now.lock();
        if line == now.position.line {
            return seq < now.position.seen;
        }
        now.lines.iter().any(|(id, _)| *id == line)
    }
}

/// Reads all timelines, in order.
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
        // The database is on an earlier timeline again, for example because a backup was restored.
        // So a new timeline must begin.
        assert_eq!(current.switch_line(vec![(0, 0)]), None);
        assert!(current.is_ahead_of(0, 12) && current.is_ahead_of(7, 14));
        assert!(!current.is_ahead_of(7, 15) && !current.is_ahead_of(9, 1));
        // Two timelines have the same puts up to the lowest number at which one of them branched
        // off.
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
