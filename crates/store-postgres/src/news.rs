//! Puts of other processes, read in order.

use hark_archive::store::NumberedRecord;

use crate::line::TimelinePosition;

/// The number that a put has in the database, and the bytes of its record.
pub(crate) type NumberedPut = (i64, Box<[u8]>);

/// Puts in order, and the position of the database.
#[derive(Debug, Default)]
pub(crate) struct NewsPage {
    /// The timeline and the number of the newest put; `None` if the table `state` is empty.
    pub(crate) at: Option<(i64, i64)>,
    pub(crate) puts: Vec<NumberedPut>,
}

/// Returns the records of puts, each with its number in this process.
pub(crate) fn numbered(position: TimelinePosition, puts: Vec<NumberedPut>) -> Vec<NumberedRecord> {
    puts.into_iter().map(|(seq, body)| (position.own(seq), body)).collect()
}
