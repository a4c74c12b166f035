//! A search of a store, carried out in slices.

use std::ops::ControlFlow;

use hark_codec::record::Record;

use crate::query::SearchRank;
use crate::query::plan::Set;

/// The state of a search after a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchProgress {
    /// The work of the slice is spent, or the sink asked to pause. The caller may call again.
    Paused,
    /// All matching records were delivered, up to the limit.
    Done {
        /// Whether at least one more record matches beyond the limit.
        more: bool,
    },
    /// The query's whole budget is spent, but not all records were found.
    Exhausted,
}

impl SearchProgress {
    /// Returns the state of a search that has spent its budget after `delivered` records. If all
    /// wanted records are delivered, the search has only looked for one more.
    pub fn with_spent_budget(delivered: usize, limit: usize) -> Self {
        if delivered == limit && limit > 0 { Self::Done { more: true } } else { Self::Exhausted }
    }
}

/// A query that is being evaluated over one snapshot.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use hark_archive::effects::KeepAll;
/// use hark_archive::store::memory::MemoryStore;
/// use hark_archive::{Position, Query, RecordHeader, SearchProgress, Store, Write};
///
/// let store = MemoryStore::new(KeepAll);
/// for number in 1..=3 {
///     let (id, time) = ([number; 32], number.into());
///     let head = RecordHeader { id, time, author: None, kind: 0, expires: None };
///     let mut bytes = Vec::new();
///     hark_codec::record::write(&mut bytes, &head, b"the message", std::iter::empty());
///     store.commit(&[Write::Put(bytes.into())])?;
/// }
/// // Pages of two records. Each page begins after the last record of the page before.
/// let (mut query, mut times) = (Query { limit: 2, ..Query::default() }, Vec::new());
/// loop {
///     let mut search = store.search(&query)?;
///     let progress = search.slice(u64::MAX, &mut |record| {
///         times.push(record.time());
///         query.after = Some(Position::of(record));
///         ControlFlow::Continue(())
///     })?;
///     if progress == (SearchProgress::Done { more: false }) {
///         break;
///     }
/// }
/// assert_eq!(times, [3, 2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Search: Send {
    /// Passes matching records to `sink` in the query's order. Visits at most about `work` rows. If
    /// the sink breaks at a record, this record counts as delivered.
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError>;

    /// Passes all matching records to `each`, in the query's order.
    fn read_all(&mut self, each: &mut dyn FnMut(&Record<'_>)) -> Result<(), SearchError> {
        let mut sink = |record: &Record<'_>| {
            each(record);
            ControlFlow::Continue(())
        };
        while self.slice(u64::MAX, &mut sink)? == SearchProgress::Paused {}
        Ok(())
    }

    /// Returns the snapshot's sequence number: the search sees exactly the puts up to this number.
    fn seq(&self) -> u64;

    /// Returns the number of rows visited so far.
    fn visited(&self) -> u64;

    /// Returns the number of records that could not be read so far. These records may match, but
    /// were not delivered. A record may count more than once.
    fn damaged(&self) -> u64 {
        0
    }

    /// Returns the driver of the search, that is, the set whose rows are walked (see
    /// [`Plan`](crate::query::plan::Plan)). Of the drivers of all opened parts, the largest is
    /// returned. `None` if nothing in the opened parts can match.
    fn driver(&self) -> Option<Set>;

    /// Returns approximately how many bytes of memory the search uses between two slices.
    fn bytes(&self) -> usize {
        0
    }

    /// Returns the rank of the last record delivered, if the query is ranked.
    fn last_rank(&self) -> Option<SearchRank> {
        None
    }
}

/// Why a query could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The disk or database failed.
    #[error("the archive could not be read: {0}")]
    Failed(String),
    /// The database did not answer in time. The message is shown without a prefix.
    #[error("{0}")]
    Late(String),
    /// A part of a file could not be read. From then on, the store leaves out the records of this
    /// part and counts them as damaged. A repeated query succeeds without these records: see
    /// [`ResumedSearch`](crate::resumed::ResumedSearch).
    #[error("the archive could not be read: {0}")]
    LeftOut(String),
    /// The search was ended, because it would need more memory than is now free for searches.
    #[error("the search takes more memory than there is now; ask for less, or try again later")]
    NoMemory,
}

impl SearchError {
    /// Returns the error of [`Store::label_values`] for a label whose values the store does not
    /// list.
    ///
    /// [`Store::label_values`]: super::Store::label_values
    #[must_use]
    pub fn not_listed(name: u8) -> Self {
        let name = char::from(name).escape_default();
        Self::Failed(format!("the values of label `{name}` are not listed"))
    }
}
