//! A search that continues although parts of the archive cannot be read.
//!
//! A store notices an unreadable part of a file only when a search reads this part. The search's
//! call of `Search::slice` then fails, as its result cannot be trusted. Later searches leave out
//! the records of this part and count them as damaged. So this search begins a new search after the
//! last record that the failed search returned. Otherwise, a command that reads all records would
//! end at the unreadable part.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use hark_codec::record::Record;

use crate::query::{Position, Query, SearchRank};
use crate::store::{Search, SearchError, SearchProgress, Store};

/// Maximum number of times that a search is restarted because a further part could not be read.
const RESUMES_MAX: u32 = 10_000;

/// A search that is restarted whenever the store leaves out a further part.
pub struct ResumedSearch<'a> {
    store: &'a dyn Store,
    /// The query for the records that are still to be found.
    query: Query,
    /// The rank of the last gathered record, if the query is ranked.
    last: Option<SearchRank>,
    /// The rank up to which the current search skips records.
    behind: Option<SearchRank>,
    search: Box<dyn Search>,
    resumes: u32,
    /// Number of rows that earlier searches visited.
    visited: u64,
    /// Number of damaged records in earlier searches, and in the current search up to its last
    /// successful slice.
    damaged: (u64, u64),
}

impl<'a> ResumedSearch<'a> {
    /// Begins a search.
    pub fn new(store: &'a dyn Store, query: Query) -> Result<Self, SearchError> {
        let search = store.search(&query)?;
        let (last, behind) = (None, None);
        Ok(Self { store, query, last, behind, search, resumes: 0, visited: 0, damaged: (0, 0) })
    }

    /// Passes the next matching records to `keep`, and appends its results to `ready`, each with
    /// the record's position. Visits about `work` rows at most, and stops after the first record
    /// for which `keep` breaks. If a part could not be read, nothing is appended, and the progress
    /// is [`SearchProgress::Paused`].
    pub fn gather<T>(
        &mut self,
        work: u64,
        ready: &mut VecDeque<(Position, T)>,
        keep: &mut dyn FnMut(&Record<'_>) -> (T, ControlFlow<()>),
    ) -> Result<SearchProgress, SearchError> {
        let before = ready.len();
        let (ranking, behind) = (self.query.ranking(), self.behind);
        let mut last = self.last;
        let sliced = self.search.slice(work, &mut |record| {
            if let Some(words) = ranking {
                let rank = words.rank(record);
                // A ranked search has no cursor, so records up to the last rank are skipped here.
                if behind.is_some() && rank <= behind {
                    return ControlFlow::Continue(());
                }
                last = rank;
            }
            let (kept, flow) = keep(record);
            ready.push_back((Position::of(record), kept));
            flow
        });
        match sliced {
            Ok(progress) => {
                self.damaged.1 = self.search.damaged();
                self.last = last;
                if ready.len() > before && self.query.ranking().is_none() {
                    self.query.limit = self.query.limit.saturating_sub(ready.len() - before);
                    self.query.after = ready.back().map(|(position, _)| *position);
                }
                Ok(progress)
            }
            Err(SearchError::LeftOut(_)) if self.resumes < RESUMES_MAX => {
                ready.truncate(before);
                self.resumes += 1;
                self.visited += self.search.visited();
                self.damaged = (self.damaged.0 + self.damaged.1, 0);
                self.behind = self.last;
                self.search = self.store.search(&self.query)?;
                Ok(SearchProgress::Paused)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the rows visited so far.
    pub fn visited(&self) -> u64 {
        self.visited + self.search.visited()
    }

    /// Returns the number of records that could not be read so far. The search may count a record
    /// more than once.
    pub fn damaged(&self) -> u64 {
        self.damaged.0 + self.damaged.1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use hark_codec::record::{Id, RecordHeader, write};

    use super::*;
    use crate::effects::KeepAll;
    use crate::query::explain::Explanation;
    use crate::query::plan::Set;
    use crate::store::memory::MemoryStore;
    use crate::store::{CommitError, CommitResult, StoreStats, Write};

    /// A store in which the third slice of each search fails, until a number of slices (`left`)
    /// have failed.
    struct Gaps {
        store: MemoryStore,
        left: Arc<AtomicU32>,
    }

    struct GapsSearch {
        search: Box<dyn Search>,
        slices: u32,
        left: Arc<AtomicU32>,
    }

    impl Search for GapsSearch {
        fn slice(
            &mut self,
            work: u64,
            sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
        ) -> Result<SearchProgress, SearchError> {
            let progress = self.search.slice(work, sink)?;
            self.slices += 1;
            if self.slices == 3 && self.left.load(Ordering::Relaxed) > 0 {
                self.left.fetch_sub(1, Ordering::Relaxed);
                return Err(SearchError::LeftOut("a page is gone".into()));
            }
            Ok(progress)
        }

        fn seq(&self) -> u64 {
            self.search.seq()
        }

        fn visited(&self) -> u64 {
            self.search.visited()
        }

        fn driver(&self) -> Option<Set> {
            self.search.driver()
        }
    }

    impl Store for Gaps {
        fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
            self.store.commit(writes)
        }

        fn knows(&self, id: &Id) -> Result<bool, SearchError> {
            self.store.knows(id)
        }

        fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
            let (search, left) = (self.store.search(query)?, Arc::clone(&self.left));
            Ok(Box::new(GapsSearch { search, slices: 0, left }))
        }

        fn count_visiting(
            &self,
            query: &Query,
            visited: &mut u64,
        ) -> Result<Option<u64>, SearchError> {
            self.store.count_visiting(query, visited)
        }

        fn label_values(
            &self,
            name: u8,
            each: &mut dyn FnMut(&[u8], u64),
        ) -> Result<(), SearchError> {
            self.store.label_values(name, each)
        }

        fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
            self.store.expired(now, limit)
        }

        fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
            self.store.explain(query)
        }

        fn stats(&self) -> StoreStats {
            self.store.stats()
        }
    }

    /// Searches in slices of at most two records, in a store that fails `failures` times. Returns
    /// the records found, and how many of these failures have not occurred.
    fn found(failures: u32, limit: usize) -> (Result<Vec<u8>, String>, u32) {
        let record = |n: u8| {
            let id = [n; 32];
            let head =
                RecordHeader { id, time: u64::from(n / 3), author: None, kind: 1, expires: None };
            let mut out = Vec::new();
            write(&mut out, &head, b"{}", std::iter::empty());
            Write::Put(out.into())
        };
        let gaps =
            Gaps { store: MemoryStore::new(KeepAll), left: Arc::new(AtomicU32::new(failures)) };
        gaps.commit(&(0..50).map(record).collect::<Vec<_>>()).unwrap();
        let query = Query { limit, order: crate::Order::OldestFirst, ..Query::default() };
        let mut search = ResumedSearch::new(&gaps, query).unwrap();
        let (mut all, mut ready) = (Vec::new(), VecDeque::new());
        let ended = loop {
            let mut of_slice = 0;
            let progress = search.gather(u64::MAX, &mut ready, &mut |record| {
                of_slice += 1;
                let is_second = of_slice == 2;
                let flow =
                    if is_second { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                (record.id()[0], flow)
            });
            all.extend(ready.drain(..).map(|(_, id)| id));
            match progress {
                Ok(SearchProgress::Paused) => {}
                Ok(_) => break Ok(all),
                Err(error) => break Err(error.to_string()),
            }
        };
        (ended, gaps.left.load(Ordering::Relaxed))
    }

    #[test]
    fn a_search_goes_on_behind_what_was_left_out_and_gives_each_record_once() {
        let all: Vec<u8> = (0..50).collect();
        for failures in [0, 1, 5] {
            assert_eq!(found(failures, usize::MAX), (Ok(all.clone()), 0), "{failures} failures");
        }
        assert_eq!(found(3, 15), (Ok(all[..15].to_vec()), 0));
    }
}
