//! Backups of a store without logs, such as a database. The records are written as logs, so such a
//! backup has the format of any other backup.
//!
//! A [`PutSource`] is one state of a shelf, whose puts are numbered in the order of their commits.
//! The first backup reads all records in this order. The directory also gets a list with the
//! number, the id and the log of each record ([`list`]). A later backup compares this list with the
//! numbers that the store still has: the record of each missing number was deleted or replaced, so
//! a deletion is added to the log. Then the backup reads only the puts with higher numbers.
//!
//! A store may have gone back to an earlier state, as a database does when a dump is restored. Such
//! a store may also have records again that it had deleted. Then the backup reads all records.
//!
//! Deleted records stay in the logs. If the logs have more deleted records than stored records, the
//! next backup reads all records anew, into new logs.
//!
//! Until the first backup is complete, its catalog is written repeatedly, without a time. So an
//! interrupted first backup is continued like an older backup.

mod list;
mod logs;
mod run;
mod shelf;
#[cfg(test)]
mod tests;

use hark_archive::store::NumberedRecord;

pub use run::{SourceOpener, back_up_puts, pack_puts};

/// The error of a store that is backed up.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// One state of a shelf whose puts have ascending numbers. All calls see the same state.
pub trait PutSource {
    /// Returns a name of the shelf without blanks. Two backups of the same shelf get the same name,
    /// and another shelf has another name.
    fn origin(&self) -> String;

    /// Returns the number of stored records.
    fn records(&self) -> u64;

    /// Returns a text, without line breaks, for this state up to the put `number`; `None` stands
    /// for the newest put.
    fn position(&self, number: Option<u64>) -> String;

    /// Returns the number up to which this state and an earlier state have the same puts.
    /// `position` is the text of the earlier state. Returns `None` if this text cannot be read.
    fn common(&self, position: &str) -> Option<u64>;

    /// Returns the next records with numbers above `after`, ascending; none at the end.
    fn puts(&mut self, after: u64) -> Result<Vec<NumberedRecord>, SourceError>;

    /// Returns the numbers of the stored records above `after` and up to `to`, ascending.
    fn numbers(&mut self, after: u64, to: u64) -> Result<Vec<u64>, SourceError>;
}
