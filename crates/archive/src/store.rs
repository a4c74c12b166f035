//! What a store must do: one shelf of one network's records, kept and found again.
//!
//! The trait speaks of records, queries and outcomes, never of rows, pages or SQL. Three choices
//! shape it.
//!
//! *Answers are pushed in slices.* A search is bound to a snapshot and hands records to a sink until
//! its work is spent, then waits to be asked again. So no lock or transaction outlives a call, a slow
//! reader costs nothing but its own search, and a record is read where it lies, without a copy.
//!
//! *A commit is a batch with one verdict a write.* What a record does to those before it (replace,
//! delete, be refused) comes from the shelf's [`Rules`](crate::admission::Rules), as queries, so that
//! a store can carry it out under its own lock or in its own transaction.
//!
//! *An id commits to its record's time.* It is a hash of all that its record says, so a store may look
//! for it where that time is, and nowhere else.
//!
//! *Visibility is numbered.* Every commit has a sequence number, every search knows up to which
//! number it sees. That is what joins stored and live messages without a gap or a double.

use std::ops::ControlFlow;
use std::time::Duration;

use hark_codec::record::{Id, Record};

use crate::meter::Times;
use crate::query::Query;
use crate::query::explain::Explanation;
use crate::query::plan::Set;

pub mod memory;

/// One change asked of a store.
#[derive(Clone, Debug)]
pub enum Write {
    /// Keep this record, given as its bytes (see [`hark_codec::record`]), unless a rule refuses it.
    Put(Box<[u8]>),
    /// Delete what matches, at most `limit` of it, in the query's order.
    Erase(Box<Query>),
}

impl Write {
    /// What is left of it after a step that deleted `erased` records.
    #[must_use]
    pub fn rest(mut self, erased: u64) -> Self {
        if let Self::Erase(query) = &mut self {
            query.limit = query.limit.saturating_sub(usize::try_from(erased).unwrap_or(usize::MAX));
        }
        self
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Kept, and durable. The number is its place in the sequence of all puts.
    Stored {
        /// Searches that see at least this number see the record.
        seq: u64,
    },
    /// The same id is already kept.
    Duplicate,
    /// A newer version is kept in its place.
    Superseded,
    /// A record that is kept forbids this one (deleted, vanished); see
    /// [`Refusal`](crate::admission::Refusal).
    Refused(crate::admission::Refusal),
    /// So many records were deleted.
    Erased(u64),
}

/// A record's number in the sequence of puts, and its bytes.
pub type Numbered = (u64, Box<[u8]>);

/// A batch that is durable.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// One a write, in the order of the writes; of the first writes only, where it is [unfinished].
    ///
    /// [unfinished]: Self::unfinished
    pub outcomes: Vec<Outcome>,
    /// Whether only a step was done of the write that the last outcome is of, and nothing of those
    /// behind it. That outcome says how many records the step deleted; a put of which only a step was
    /// done is not kept yet. See [`Store::commit_some`].
    pub unfinished: bool,
    /// Ids of all that the batch deleted, each behind the number of the write that did so, ascending.
    pub erased: Vec<(usize, Id)>,
    /// Bytes handed to the disk or the database for it.
    pub bytes: u64,
    /// Where other processes write too: what they have put since this store last said so, with its
    /// numbers, all of which come before those of this batch.
    pub before: Vec<Numbered>,
}

/// Why a batch was not kept. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// This store was opened for reading.
    #[error("the archive is open for reading only")]
    ReadOnly,
    /// Bytes that are no record.
    #[error("write {index} of the batch is no record: {source}")]
    Record {
        /// Which write of the batch.
        index: usize,
        /// What is wrong with it.
        source: hark_codec::record::RecordError,
    },
    /// A record that no file of the store could hold.
    #[error("a record of {bytes} bytes is above the archive's bound of {bytes_max}")]
    TooLarge {
        /// Size of the record.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The disk or database failed, now or before. The writer has stopped and must be restarted:
    /// what a failed sync left on the disk is not known, so nothing is retried.
    #[error("the archive takes no more writes: {0}")]
    Stopped(String),
    /// Another process has the right to write. The next batch may be kept.
    #[error("{0}")]
    Elsewhere(String),
    /// The database is away or refused, or the disk lacks room or cannot read a part of an index that is
    /// being made anew. The next batch may be kept; of this one, if the connection to a database was
    /// lost at its very end, nobody knows, and to put it again does no harm.
    #[error("{0}")]
    Unavailable(String),
}

/// Why a question could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The disk or database failed.
    #[error("the archive could not be read: {0}")]
    Failed(String),
}

/// Where a search stands after a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The slice's work is spent, or the sink asked to pause: call again.
    Paused,
    /// All is told. `more` says whether the limit left matching records behind.
    Done {
        /// True if at least one more record matches.
        more: bool,
    },
    /// The query's whole budget is spent before its end.
    Exhausted,
}

/// A question being answered over one snapshot.
pub trait Search: Send {
    /// Hands matching records to `sink`, in the query's order, visiting about `work` rows at most.
    /// A record that the sink breaks at counts as taken.
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<Progress, SearchError>;

    /// The snapshot's place in the sequence: puts up to this number are seen, later ones are not.
    fn seq(&self) -> u64;

    /// Rows visited so far.
    fn visited(&self) -> u64;

    /// What it is driven by, in the largest of the parts it has opened; none if nothing in them could
    /// match.
    fn driver(&self) -> Option<Set>;
}

/// Size and state of a store, for people and metrics. Zero where a store has no such thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records that are kept and alive.
    pub records: u64,
    /// Records that are deleted but still take room.
    pub dead: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes of them that belong to records (the log).
    pub log_bytes: u64,
    /// Bytes of them that belong to indices (the segments).
    pub index_bytes: u64,
    /// Bytes that belong to deleted records and will be freed, or used again; about, where a store knows
    /// no more than how many there are.
    pub dead_bytes: u64,
    /// Bytes of `dead_bytes` that the store frees, or uses again, without another delete. The rest is
    /// too thinly spread to be worth it yet.
    pub reclaimable_bytes: u64,
    /// Records not sealed into a segment yet.
    pub head_records: u64,
    /// Sealed segments.
    pub segments: u64,
    /// Time of the oldest record, live or dead.
    pub oldest: Option<u64>,
    /// Time of the newest record.
    pub newest: Option<u64>,
    /// Records that were found damaged since the start.
    pub damaged: u64,
    /// Files that were found damaged since the start, or could not be read, and are not made anew.
    pub damaged_files: Vec<String>,
    /// Bytes written to disk since the start.
    pub written_bytes: u64,
    /// Full heads that wait to be sealed.
    pub heads_waiting: u64,
    /// Records in segments that wait to be merged.
    pub merge_due_records: u64,
    /// How long syncs took since the start.
    pub syncs: Times,
    /// Why upkeep fails, while it does.
    pub upkeep_failed: Option<String>,
    /// What upkeep has done since the start.
    pub upkeep: Upkeep,
    /// What was done in a database, where there is one.
    pub database: Option<Database>,
    /// How far a second store is that gets all that this one accepts, if there is one.
    pub mirror: Option<crate::mirror::Lag>,
}

/// Work that a store does beside its readers and its writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Making segments from full heads.
    pub sealing: Job,
    /// Making one segment from several.
    pub merging: Job,
    /// Writing logs anew without their deleted records.
    pub rewriting: Job,
}

/// One kind of that work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Records that went through it, each as often as it did.
    pub records: u64,
    /// Bytes that it wrote.
    pub bytes: u64,
    /// Processor time that it took.
    pub cpu: Duration,
}

/// How a database is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Database {
    /// Connections that are open for questions.
    pub connections: u64,
    /// Those of them that are at work.
    pub connections_used: u64,
    /// How often a question had to wait for one, since the start.
    pub waits: u64,
    /// Questions that a replica was asked, and those that it could not be, where there is one.
    pub replica: Option<(u64, u64)>,
    /// How far what is told to subscribers lies behind what was put by anybody.
    pub news_behind: u64,
    /// How long statements took since the start, by their form.
    pub statements: Vec<(&'static str, Times)>,
}

/// How far a store's log is durable, where it has one that other processes may follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Number of the file that is being written.
    pub log: u32,
    /// Its bytes.
    pub bytes: u64,
}

/// Carries out a batch whole with a store's [`Store::commit_some`], one step after another.
pub fn commit_whole(
    writes: &[Write],
    some: impl Fn(&[Write]) -> Result<Committed, CommitError>,
) -> Result<Committed, CommitError> {
    let mut all = Committed::default();
    // What is left of the write at hand, and how many records its steps have deleted.
    let (mut left, mut erased): (Option<Write>, u64) = (None, 0);
    loop {
        let at = all.outcomes.len();
        let batch = left.as_ref().map_or(&writes[at..], std::slice::from_ref);
        if batch.is_empty() {
            return Ok(all);
        }
        let mut done = some(batch)?;
        if left.take().is_some()
            && let Some(Outcome::Erased(count)) = done.outcomes.first_mut()
        {
            *count += erased;
        }
        let unfinished = done.unfinished;
        all.add(done, at);
        if unfinished {
            let Some(Outcome::Erased(count)) = all.outcomes.pop() else {
                return Err(CommitError::Stopped("a store did nothing of a batch".into()));
            };
            (left, erased) = (Some(writes[all.outcomes.len()].clone().rest(count)), count);
        }
    }
}

impl Committed {
    /// Adds what became of the writes from number `from` on.
    fn add(&mut self, more: Self, from: usize) {
        self.outcomes.extend(more.outcomes);
        self.erased.extend(more.erased.into_iter().map(|(at, id)| (from + at, id)));
        self.before.extend(more.before);
        self.bytes += more.bytes;
    }
}

/// One shelf. Shared by all threads; one commit runs at a time.
pub trait Store: Send + Sync {
    /// Carries out a batch. On return everything in it is durable and seen by new searches.
    fn commit(&self, writes: &[Write]) -> Result<Committed, CommitError>;

    /// Carries out as much of a batch as others may be kept waiting for: all of it, or its first writes
    /// and then a step of one that deletes more than [`ERASE_STEP`](crate::limits::ERASE_STEP) records.
    /// What is left of that one ([`Write::rest`]), and the writes behind it, are to be committed again.
    ///
    /// A put that deletes others comes last: as long as there is more to delete than a step it is not
    /// kept. So wherever this ends (a crash, another process that goes on), nothing that a kept record
    /// deletes is there, nothing has to be remembered, and who puts it again goes on where it was.
    fn commit_some(&self, writes: &[Write]) -> Result<Committed, CommitError> {
        self.commit(writes)
    }

    /// Whether `id` is known to be kept: the cheap question before a signature is checked. Where it is
    /// not cheap to find out, a store may say no; the commit knows.
    fn knows(&self, id: &Id) -> Result<bool, SearchError>;

    /// Starts answering `query` over the present state.
    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError>;

    /// How many records match, limit and cursor left aside. `None` if the budget did not suffice.
    fn count(&self, query: &Query) -> Result<Option<u64>, SearchError>;

    /// Ids of up to `limit` records that have expired by `now` and are still kept.
    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError>;

    /// How this store would answer, and what it expects that to cost.
    fn explain(&self, query: &Query) -> Result<Explanation, SearchError>;

    /// The same where matches are only counted.
    fn explain_count(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.explain(query)
    }

    /// Size and state.
    fn stats(&self) -> Stats;

    /// Gives up the oldest part of the store at once, but for records of `spared` kinds, if it is kept in
    /// parts by time and holds nothing newer than `to`. Says how many records went; none if there is no
    /// such part.
    fn drop_part(&self, _to: u64, _spared: &[u32]) -> Result<Option<u64>, SearchError> {
        Ok(None)
    }

    /// Why those who listen do not hear of all that was put, while that is so.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Some of what other processes have put and no [`Committed::before`] has told, in order; nothing once
    /// all is told. To be called between commits, by whoever commits.
    fn news(&self) -> Vec<Numbered> {
        Vec::new()
    }

    /// Has `wake` called from a thread of the store's whenever there may be news. It must not block.
    fn on_news(&self, _wake: Box<dyn Fn() + Send>) {}
}
