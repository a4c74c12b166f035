//! The answer to a REQ: stored events in pages, EOSE, then live events.
//!
//! A page is built from stored bytes straight into the buffer that is written to the connection: no
//! parsing, no second copy, and one item in the outbox for many events.
//!
//! EOSE reports whether further events exist (NIP-67). It never reports a complete answer if a
//! damaged record may belong to the answer. If a bound of the relay ends an answer, the answer
//! includes all events of its last second. Otherwise a client that continues from that time would
//! miss the rest of the second, or get the same second again and again.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::live::AnswerReach;
use hark_archive::query::ComparisonCost;
use hark_archive::{Position, Query, Record, SearchProgress};
use hark_codec::nostr::reply::EoseHint;
use hark_networks::nostr::NostrRefusal;

use super::Relay;
use super::cost::{QuestionCost, TimedSearch};
use super::event_page::EventPage;
use super::metrics::Verb;
use super::outbox::{Outbox, RequestPermit};
use super::question_refusals::{bug, not_read, too_much};
use super::readers::{ReaderJob, SliceResult};
use super::refused::note_refusal;
use super::subscription::SessionSubscription;

/// Age after which an answer that waits for its client drops its view of the archive.
const VIEW_AGE_MAX: Duration = Duration::from_secs(5);
/// The same for an answer in the order of rank, which ends with its view.
const RANKED_VIEW_AGE_MAX: Duration = Duration::from_mins(10);

/// The stored part of an answer.
pub(super) struct StoredAnswer {
    relay: Arc<Relay>,
    sub: Arc<SessionSubscription>,
    queries: Vec<Query>,
    /// For each query, the limit that the client has set. After this number of records, the answer
    /// continues only to the end of the current second, and at most up to the raised limit in
    /// `queries`.
    enough: Vec<usize>,
    /// The index of the current query.
    at: usize,
    /// The current query, once its search is open.
    open: Option<OpenQuery>,
    /// How the current query continues after its search was dropped because its view was old.
    dropped: Option<DroppedSearch>,
    /// Whether some query has further records that were not sent.
    more: bool,
    /// Whether some query had a limit of 0. Then the relay does not know whether the query matches
    /// records.
    unasked: bool,
    /// Whether a record that may belong to the answer could not be read.
    damaged: bool,
    cost: QuestionCost,
    /// The position up to which each earlier query was answered. A record that was sent for an
    /// earlier query is not sent again.
    reached: Vec<AnswerReach>,
    _permit: RequestPermit,
}

/// How many records were found for a query, and the position of the last record.
#[derive(Clone, Copy, Default)]
struct QueryProgress {
    handed: usize,
    last: Option<Position>,
}

/// How a query continues without its search.
enum DroppedSearch {
    /// A new search continues after the last record.
    Continues(QueryProgress),
    /// The order of the records lets no new search continue.
    Ends,
}

/// A query whose search is open.
struct OpenQuery {
    search: TimedSearch,
    opened_at: Instant,
    progress: QueryProgress,
    /// The value of [`Moderation::hidings`](crate::moderation::Moderation::hidings) before the
    /// search was opened.
    hidings: u64,
}

impl OpenQuery {
    /// Returns the position up to which the query is answered. `more` is true if records exist
    /// beyond the query's limit.
    fn reach(&self, more: bool) -> AnswerReach {
        match (self.search.last_rank(), self.progress.last) {
            _ if !more => AnswerReach::All,
            (Some(last), _) => AnswerReach::UpToRank(last),
            (None, Some(last)) => AnswerReach::UpTo(last),
            (None, None) => AnswerReach::Nothing,
        }
    }
}

impl StoredAnswer {
    /// Creates the answer. For each query, `rooms` gives the number of records that the answer may
    /// add beyond the query's limit to complete a second.
    pub(super) fn new(
        relay: Arc<Relay>,
        sub: Arc<SessionSubscription>,
        mut queries: Vec<Query>,
        rooms: impl Iterator<Item = usize>,
        cost: QuestionCost,
        permit: RequestPermit,
    ) -> Self {
        let enough = queries.iter().map(|query| query.limit).collect();
        for (query, room) in queries.iter_mut().zip(rooms) {
            query.limit = query.limit.saturating_add(room);
        }
        Self {
            cost,
            relay,
            sub,
            queries,
            enough,
            at: 0,
            open: None,
            dropped: None,
            more: false,
            unasked: false,
            damaged: false,
            reached: Vec::new(),
            _permit: permit,
        }
    }

    /// Opens the search for the current query. Returns `None` if no query is left, or if the query
    /// asks for no stored events.
    fn open(&mut self, work: &mut u64) -> Result<Option<OpenQuery>, NostrRefusal> {
        let Some(query) = self.queries.get_mut(self.at) else { return Ok(None) };
        if query.is_void() {
            self.unasked |= query.limit == 0;
            return Ok(None);
        }
        let progress = match self.dropped.take() {
            None => QueryProgress::default(),
            Some(DroppedSearch::Continues(progress)) => progress,
            Some(DroppedSearch::Ends) => return Err(not_read(RANKED_VIEW_AGE_MAX)),
        };
        let (budget, limit) = (query.budget, query.limit);
        query.budget = budget.saturating_sub(self.cost.visited);
        // With a limit of 0 the search could not tell whether further records exist.
        query.limit = limit.saturating_sub(progress.handed).max(1);
        let hidings = self.relay.moderation.hidings();
        let search = self.cost.open(&**self.relay.shelf.store(), query, work);
        (query.budget, query.limit) = (budget, limit);
        let search = search?;
        // A search that continues a dropped search does not move the seam to live events. The
        // client may get an old event twice that was stored between the two searches.
        if let Some(handle) = self.sub.handle().filter(|_| progress.last.is_none()) {
            handle.opened(self.at, search.seq());
        }
        Ok(Some(OpenQuery { search, opened_at: Instant::now(), progress, hidings }))
    }

    fn work(&mut self, rows_max: u64) -> Result<SliceResult, NostrRefusal> {
        // All queries enter the live index before the first search. Otherwise an event stored in
        // the meantime could be missed.
        if self.at == 0
            && self.open.is_none()
            && self.sub.handle().is_some_and(|handle| !handle.enter())
        {
            return Ok(SliceResult::More);
        }
        let sub = Arc::clone(&self.sub);
        let mut page = EventPage::new(&sub);
        let mut work = self.relay.settings().limits.slice_rows.min(rows_max);
        while self.at < self.queries.len() {
            let mut open = if let Some(open) = self.open.take() {
                open
            } else {
                let Some(open) = self.open(&mut work)? else {
                    self.next_query(AnswerReach::Nothing);
                    continue;
                };
                if work == 0 {
                    self.open = Some(open);
                    self.put(page);
                    return Ok(SliceResult::More);
                }
                open
            };
            let enough = self.enough.get(self.at).copied().unwrap_or_default();
            let OpenQuery { search, progress: QueryProgress { handed, last }, hidings, .. } =
                &mut open;
            let (reached, queries, mut ended) = (&self.reached, &self.queries, false);
            let most = queries[self.at].limit;
            // A record may be compared with all earlier queries, including their search words.
            let comparing = ComparisonCost::of(&queries[..reached.len()]);
            let mut compared_rows = 0;
            let (hidden, moderation) = (&self.relay.hidden, &self.relay.moderation);
            let progress = self.cost.slice(search, work, &mut |record: &Record<'_>| {
                // A search may have read ahead before a ban came.
                if moderation.hidings() != *hidings && hidden.have(record) {
                    return ControlFlow::Continue(());
                }
                let is_new_second = last.is_none_or(|last| last.time != record.time());
                if *handed >= most || *handed >= enough && is_new_second {
                    ended = true;
                    return ControlFlow::Break(());
                }
                (*handed, *last) = (*handed + 1, Some(Position::of(record)));
                if !AnswerReach::any(reached, queries, record) {
                    page.add(record.wire());
                }
                compared_rows += comparing.rows(record);
                if page.is_full() || compared_rows >= work {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            let (progress, left) = progress?;
            let is_enough = *handed >= enough && enough > 0;
            self.cost.read(compared_rows);
            work = left.saturating_sub(compared_rows).max(1);
            self.damaged |= open.search.has_met_damage();
            match progress {
                _ if ended => self.end(&open, true),
                SearchProgress::Paused => {
                    self.open = Some(open);
                    self.put(page);
                    return Ok(SliceResult::More);
                }
                SearchProgress::Done { more } => self.end(&open, more),
                // The search only looked for the end of the last second.
                SearchProgress::Exhausted if is_enough => self.end(&open, true),
                SearchProgress::Exhausted => {
                    self.put(page);
                    return Err(too_much());
                }
            }
        }
        let hint = match (self.more, self.unasked) {
            (true, _) => Some(EoseHint::More),
            (false, true) => None,
            (false, false) => (!self.damaged).then_some(EoseHint::Finish),
        };
        let handle = self.sub.handle();
        if let Some(handle) = handle.as_ref().filter(|handle| handle.holds_back()) {
            self.put(std::mem::replace(&mut page, EventPage::new(&sub)));
            handle.release_early(&self.reached);
        }
        page.end(hint);
        self.put(page);
        if let Some(handle) = handle {
            handle.release(std::mem::take(&mut self.reached));
        }
        self.relay.metrics.done(Verb::Req);
        Ok(SliceResult::Done)
    }

    /// Ends the answer to the current query. `more` is true if records exist beyond its limit.
    fn end(&mut self, query: &OpenQuery, more: bool) {
        self.more |= more;
        self.next_query(query.reach(more));
    }

    /// Advances to the next query.
    fn next_query(&mut self, reach: AnswerReach) {
        self.reached.push(reach);
        self.at += 1;
    }

    /// Sends an event that the relay has made for this question, before the stored events.
    pub(super) fn send_made(&self, record: &Record<'_>) {
        let mut page = EventPage::new(&self.sub);
        page.add(record.wire());
        self.put(page);
    }

    pub(super) fn refuse(&self, refusal: &NostrRefusal) {
        note_refusal(&self.relay.metrics, &self.sub.rated, Verb::Req, refusal);
        self.sub.refuse(refusal, &self.relay.readers);
    }

    fn put(&self, page: EventPage<'_>) {
        self.relay.metrics.records_sent.add(page.records);
        self.cost.sent(page.records);
        if let Some(part) = page.part() {
            self.sub.outbox.put_for(&self.sub.over, part);
        }
    }
}

impl Drop for StoredAnswer {
    fn drop(&mut self) {
        let asked = self.queries.iter().zip(self.enough.iter().copied());
        self.relay.slow.note("REQ", &self.cost.spent(), Some(self.sub.rated.listed()), asked);
    }
}

impl ReaderJob for StoredAnswer {
    fn turn(&mut self, rows_max: u64) -> SliceResult {
        if self.sub.is_over() || self.sub.outbox.is_closed_by_client() {
            return SliceResult::Done;
        }
        // A ban waits until all events that were found before the ban are in the outbox.
        let relay = Arc::clone(&self.relay);
        let _before = relay.moderation.check();
        self.cost.begin();
        self.work(rows_max).unwrap_or_else(|refusal| {
            self.refuse(&refusal);
            SliceResult::Done
        })
    }

    fn fail(&mut self) {
        self.refuse(&bug());
    }

    fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.sub.outbox)
    }

    /// An old view keeps removed files on the disk and old parts of the archive in memory. A new
    /// search continues after the last record. The order by rank has no such position, so an answer
    /// in this order ends, after a longer time.
    fn drop_old_view(&mut self) {
        let Some(query) = self.queries.get_mut(self.at) else { return };
        let is_ranked = query.ranked && query.words.is_some();
        let age_max = if is_ranked { RANKED_VIEW_AGE_MAX } else { VIEW_AGE_MAX };
        let Some(open) = self.open.take_if(|open| open.opened_at.elapsed() >= age_max) else {
            return;
        };
        self.damaged |= open.search.has_met_damage();
        self.dropped = Some(if is_ranked {
            DroppedSearch::Ends
        } else {
            DroppedSearch::Continues(open.progress)
        });
        if !is_ranked && open.progress.last.is_some() {
            query.after = open.progress.last;
        }
        self.cost.drop_search(open.search);
    }
}
