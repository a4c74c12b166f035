//! Copies all writes that one store accepts to a second store. So an operator can move an archive
//! to another store, and back, while the server runs.
//!
//! The first store never waits for the second. Writes that the first store has made durable go into
//! a bounded queue. A thread commits the queued writes to the second store. If the queue is full,
//! or the second store fails, the queue is discarded. The thread then walks through both stores
//! (see [`crate::copy`]) until the second store has all records of the first. The thread also
//! starts with such a walk, so no state of the second store needs to be stored.
//!
//! Records that only the second store has are counted and kept, because the second store may be
//! more than a mirror. The query of an erase could match these records. So the mirror does not pass
//! on the query, but the list of the ids that the first store has erased. The effects of a stored
//! record (replace, delete) follow from the same rules in both stores.

use std::sync::Arc;
use std::thread::JoinHandle;

use hark_codec::record::Id;

use crate::query::Query;
use crate::query::explain::Explanation;
use crate::store::ranges::IdRanges;
use crate::store::shares::{RecordShare, ShareBy, ShareKey};
use crate::store::{
    CommitError, CommitResult, MirrorLag, NumberedRecord, Outcome, RetentionNote, Search,
    SearchError, SpaceBounds, Store, StoreStats, Write, commit_whole,
};
use crate::vital;
use state::MirrorState;

pub use options::{MirrorOptions, MirrorReporter, StoreOpener};

mod options;
mod queue;
mod state;

/// A store that passes its accepted writes on to a second store.
pub struct MirroredStore {
    shared: Arc<MirrorState>,
    thread: Option<JoinHandle<()>>,
}

impl MirroredStore {
    /// Starts the thread that keeps the second store in step with the first.
    pub fn start(
        first: Arc<dyn Store>,
        second: StoreOpener,
        options: MirrorOptions,
        report: MirrorReporter,
    ) -> Self {
        let shared = Arc::new(MirrorState::new(first, options));
        let thread = vital::spawn("hark-mirror", {
            let shared = Arc::clone(&shared);
            move || shared.run(&second, &report)
        })
        .expect("the system starts a thread");
        Self { shared, thread: Some(thread) }
    }

    /// Returns how far the second store is behind the first.
    pub fn lag(&self) -> MirrorLag {
        self.shared.lag()
    }
}

impl Drop for MirroredStore {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic: see `vital`.
            let _ = thread.join();
        }
    }
}

impl Store for MirroredStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        commit_whole(writes, |writes| self.commit_some(writes))
    }

    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        let _order = self.shared.order.lock();
        let committed = self.shared.first.commit_some(writes)?;
        self.shared.fill(|queue| {
            queue.push_news(&committed.before);
            let mut erased = committed.erased.as_slice();
            for (at, (write, outcome)) in writes.iter().zip(&committed.outcomes).enumerate() {
                let by_this = erased.iter().take_while(|(by, _)| *by == at).count();
                let (ids, others) = erased.split_at(by_this);
                erased = others;
                match outcome {
                    Outcome::Stored { .. } => queue.push(write.clone(), ids.len()),
                    _ if ids.is_empty() => {}
                    _ => {
                        let ids = Some(ids.iter().map(|(_, id)| *id).collect());
                        let gone = Query { ids, ..Query::default() };
                        queue.push(Write::Erase(Box::new(gone)), by_this);
                    }
                }
            }
        });
        Ok(committed)
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        self.shared.first.knows(id)
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        self.shared.first.search(query)
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        self.shared.first.count_visiting(query, visited)
    }

    fn ranges(&self, query: &Query) -> Result<Option<Box<dyn IdRanges>>, SearchError> {
        self.shared.first.ranges(query)
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        self.shared.first.label_values(name, each)
    }

    fn shares(
        &self,
        by: ShareBy,
        each: &mut dyn FnMut(ShareKey, RecordShare),
    ) -> Result<(), SearchError> {
        self.shared.first.shares(by, each)
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        self.shared.first.expired(now, limit)
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.shared.first.explain(query)
    }

    fn explain_count(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.shared.first.explain_count(query)
    }

    /// Always returns `None`. So the caller deletes the records by writes instead, which the mirror
    /// passes on.
    fn drop_part(&self, _: u64, _: &[u32]) -> Result<Option<u64>, SearchError> {
        Ok(None)
    }

    fn note(&self, note: RetentionNote) -> Result<Option<u64>, SearchError> {
        self.shared.first.note(note)
    }

    fn set_note(&self, note: RetentionNote, number: Option<u64>) -> Result<(), CommitError> {
        self.shared.first.set_note(note, number)
    }

    fn deletes_follow(&self, follow: bool) {
        self.shared.first.deletes_follow(follow);
    }

    fn set_space(&self, bounds: &SpaceBounds) {
        self.shared.first.set_space(bounds);
        self.shared.set_space(bounds);
    }

    fn damage(&self) -> (u64, u64) {
        self.shared.first.damage()
    }

    fn medium(&self) -> &'static str {
        self.shared.first.medium()
    }

    fn trouble(&self) -> Option<String> {
        self.shared.first.trouble()
    }

    fn news(&self) -> Vec<NumberedRecord> {
        let _order = self.shared.order.lock();
        let news = self.shared.first.news();
        if !news.is_empty() {
            self.shared.fill(|queue| queue.push_news(&news));
        }
        news
    }

    fn has_other_writers(&self) -> bool {
        self.shared.first.has_other_writers()
    }

    fn on_news(&self, wake: Box<dyn Fn() + Send>) {
        self.shared.first.on_news(wake);
    }

    fn stats(&self) -> StoreStats {
        StoreStats { mirror: Some(self.lag()), ..self.shared.first.stats() }
    }

    fn mirror(&self) -> Option<MirrorLag> {
        Some(self.lag())
    }
}

#[cfg(test)]
mod tests;
