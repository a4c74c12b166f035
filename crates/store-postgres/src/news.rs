//! Puts of other processes, read in order.

use hark_archive::store::NumberedRecord;

use crate::line::TimelinePosition;

/// Puts in order, and the position of the database.
#[derive(Debug, Default)]
pub(crate) struct NewsPage {
    /// The timeline and the number of the newest put; `None` if the table `state` is empty.
    pub(crate) at: Option<(i64, i64)>,
    /// The numbers and the bytes of records.
    pub(crate) puts: Vec<(i64, Box<[u8]>)>,
}

impl NewsPage {
    /// Returns the records, each with its number in this process.
    pub(crate) fn records(
        self,
        position: TimelinePosition,
    ) -> impl Iterator<Item = NumberedRecord> {
        self.puts.into_iter().map(move |(seq, body)| (position.own(seq), body))
    }
}
