//! The order of records, and the position of a record in this order.

use hark_codec::record::{Id, Record};

/// The order of the results. Both orders are total orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Later times first; records of the same time by ascending id.
    #[default]
    NewestFirst,
    /// Earlier times first; records of the same time by ascending id.
    OldestFirst,
}

/// The position of one record in the total order, whether or not the record is still stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The record's time.
    pub time: u64,
    /// The record's id.
    pub id: Id,
}

impl Position {
    /// Returns the position of a record.
    pub fn of(record: &Record<'_>) -> Self {
        Self { time: record.time(), id: *record.id() }
    }
}

impl Order {
    /// Compares two positions in this order.
    pub fn compare(self, a: &Position, b: &Position) -> std::cmp::Ordering {
        let times = match self {
            Self::NewestFirst => b.time.cmp(&a.time),
            Self::OldestFirst => a.time.cmp(&b.time),
        };
        times.then_with(|| a.id.cmp(&b.id))
    }
}
