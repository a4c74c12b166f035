//! A walk over a source of any type.

use std::ops::ControlFlow;

use hark_codec::record::{Id, Record};

use super::Order;
use super::set::Set;

/// The state of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep {
    /// At a row that matches.
    Found,
    /// The work is spent; the walk continues in a later call.
    Paused,
    /// Past the last row.
    End,
}

/// Why [`AnyWalk::run`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// The walk is at a match that was not passed to the sink.
    AtMatch,
    /// The work is spent; the walk continues in a later call.
    Paused,
    /// Past the last row.
    End,
    /// All wanted records were passed to the sink.
    Full,
    /// The sink ended the run.
    Broke,
}

/// A walk over a source of any type.
pub trait AnyWalk: Send {
    /// Advances to the next match. Visits at most `work` rows, and reduces `work` by the number of
    /// visited rows.
    fn advance(&mut self, work: &mut u64) -> WalkStep;
    /// Passes the record at the walk's position to `sink`, and then the following matches while
    /// their time key is below `bound`. Reduces `wanted`, which must not be 0, by the number of
    /// passed records.
    fn run(
        &mut self,
        work: &mut u64,
        bound: u64,
        wanted: &mut usize,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> WalkEnd;
    /// Returns the time of the row at the walk's position.
    fn time(&self) -> u64;
    /// Returns the id of the row at the walk's position.
    fn id(&self) -> Option<Id>;
    /// Returns the number of rows visited so far.
    fn visited(&self) -> u64;
    /// Returns the number of visited rows whose record could not be read.
    fn damaged(&self) -> u64;
    /// Returns the driver and its number of rows, once both are known.
    fn driver(&self) -> Option<(u64, Set)>;
    /// Returns approximately how many bytes of memory the walk uses.
    fn bytes(&self) -> usize;
}

/// Maps a time to a key that ascends in the order of a query.
pub(super) fn time_key(time: u64, order: Order) -> u64 {
    if order == Order::NewestFirst { !time } else { time }
}
