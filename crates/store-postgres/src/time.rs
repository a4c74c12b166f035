//! Converts a network's times (u64) to PostgreSQL's bigint, so that their order stays the same.

use hark_archive::{Position, Record};
use tokio_postgres::Row;

const TOP: u64 = 1 << 63;

/// Converts a network's time to the database's type.
pub(crate) fn to_db(time: u64) -> i64 {
    (time ^ TOP).cast_signed()
}

/// Converts a time of the database to the network's time.
pub(crate) fn from_db(time: i64) -> u64 {
    time.cast_unsigned() ^ TOP
}

/// The position of a record in the indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IndexKey {
    pub(crate) time: i64,
    pub(crate) id: [u8; 32],
}

impl IndexKey {
    /// Returns the key of a record.
    pub(crate) fn of(record: &Record<'_>) -> Self {
        Self { time: to_db(record.time()), id: *record.id() }
    }

    /// Reads a key from the columns beginning with `at`.
    pub(crate) fn read(row: &Row, at: usize) -> Self {
        let id: &[u8] = row.get(at + 1);
        Self { time: row.get(at), id: id.try_into().unwrap_or_default() }
    }

    pub(crate) fn position(&self) -> Position {
        Position { time: from_db(self.time), id: self.id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_and_nothing_is_lost() {
        let times = [0, 1, 1_700_000_000, TOP - 1, TOP, u64::MAX];
        assert!(times.map(to_db).is_sorted());
        assert_eq!(times.map(|time| from_db(to_db(time))), times);
    }
}
