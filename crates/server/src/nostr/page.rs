//! The answer to a REQ: stored events in pages, EOSE, then live ones.
//!
//! A page is built from stored bytes straight into the buffer that goes to the socket: no parse, no
//! second copy, one part on the line for many events.
//!
//! EOSE says whether there is more (NIP-67). Where a bound of the relay ends an answer, the answer
//! includes all events of its last second. Otherwise a client that continues from that time would
//! miss the rest of the second, or never get past it.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::live::{self, Handle, News, Reach};
use hark_archive::{Position, Progress, Query, Record};
use hark_codec::nostr::reply::{self, EoseHint};
use parking_lot::Mutex;

use super::Relay;
use super::cost::{Cost, Searching};
use super::line::{Line, Over, Part, Ticket};
use super::metrics::{Metrics, Verb};
use super::readers::{Job, Readers, Turn};
use crate::budget::Share;

/// A page of at least this many bytes is put on the line.
const PAGE_BYTES: usize = 64 << 10;

/// A subscription of a session.
pub(super) struct Sub {
    id: Box<str>,
    /// Bytes of the REQ message that opened it.
    bytes: usize,
    _memory: Share,
    /// `["EVENT","id",`
    open: Arc<[u8]>,
    over: Over,
    line: Arc<Line>,
    handle: Mutex<Option<Handle>>,
}

/// The sink of a subscription's live events.
struct Ear {
    open: Arc<[u8]>,
    over: Over,
    line: Arc<Line>,
    metrics: Arc<Metrics>,
}

impl live::Sink for Ear {
    fn deliver(&self, news: News) {
        if self.line.lay(&self.over, Part::Live(Arc::clone(&self.open), news)) {
            self.metrics.live_told.add(1);
        }
    }

    fn wake(&self) {
        self.line.wake();
    }

    fn overflow(&self) {
        self.line.give_up();
    }
}

impl Sub {
    /// Subscribes to live events that match `queries`.
    pub(super) fn start(
        id: &str,
        (bytes, memory): (usize, Share),
        line: &Arc<Line>,
        relay: &Relay,
        queries: Vec<Query>,
    ) -> Arc<Self> {
        let mut open = Vec::new();
        reply::write_event_open(&mut open, id);
        let (open, over): (Arc<[u8]>, _) = (open.into(), Over::default());
        let ear = Ear {
            open: Arc::clone(&open),
            over: over.clone(),
            line: Arc::clone(line),
            metrics: Arc::clone(&relay.metrics),
        };
        let held_bytes_max = relay.settings().limits.held_bytes_max;
        let handle = relay.live.subscribe(queries, Box::new(ear), held_bytes_max);
        Arc::new(Self {
            id: id.into(),
            bytes,
            _memory: memory,
            open,
            over,
            line: Arc::clone(line),
            handle: Mutex::new(Some(handle)),
        })
    }

    /// Ends the subscription: nothing more is sent for it, and its search stops.
    pub(super) fn end(&self, readers: &Readers) {
        self.line.end(&self.over);
        let handle = self.handle.lock().take();
        // Not under the lock, as `leave` may wait for the index.
        if let Some(handle) = handle.filter(|handle| !handle.leave()) {
            readers.push(Box::new(Leaving { handle, line: Arc::clone(&self.line) }));
        }
    }

    /// Ends the subscription with a CLOSED that gives the reason.
    fn refuse(&self, reason: &str, readers: &Readers) {
        let mut out = Vec::new();
        reply::write_closed(&mut out, &self.id, reason);
        self.line.put_for(&self.over, Part::One(out));
        self.end(readers);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is()
    }

    fn handle(&self) -> Option<Handle> {
        self.handle.lock().clone()
    }
}

/// The removal of a large subscription from the live index after its end. It runs in slices on the
/// reader threads, as the session's thread serves other sessions too.
struct Leaving {
    handle: Handle,
    line: Arc<Line>,
}

impl Job for Leaving {
    fn turn(&mut self) -> Turn {
        if self.handle.leave() { Turn::Done } else { Turn::More }
    }

    fn fail(&mut self) {}

    fn line(&self) -> Arc<Line> {
        Arc::clone(&self.line)
    }

    fn tells(&self) -> bool {
        false
    }
}

/// The stored part of an answer.
pub(super) struct Answer {
    relay: Arc<Relay>,
    sub: Arc<Sub>,
    queries: Vec<Query>,
    /// For each query, the number of records it answers with before it stops at the end of the
    /// current second. The query's limit bounds the records that complete that second.
    enough: Vec<usize>,
    /// The index of the current query.
    at: usize,
    search: Option<Searching>,
    /// Records that the current query has returned, and the position of the last one.
    handed: usize,
    last: Option<Position>,
    /// Whether some query has further records that were not sent.
    more: bool,
    /// Whether some query had a limit of 0, so that it is unknown whether it has records.
    unasked: bool,
    cost: Cost,
    /// How far the answers to the queries before the current one reached: a record that an earlier
    /// query sent is not sent again.
    reached: Vec<Reach>,
    _ticket: Ticket,
}

impl Answer {
    /// `rooms` gives for each query how many records beyond its limit may complete a second.
    pub(super) fn new(
        relay: Arc<Relay>,
        sub: Arc<Sub>,
        mut queries: Vec<Query>,
        rooms: impl Iterator<Item = usize>,
        cost: Cost,
        ticket: Ticket,
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
            search: None,
            handed: 0,
            last: None,
            more: false,
            unasked: false,
            reached: Vec::new(),
            _ticket: ticket,
        }
    }

    /// Opens the search for the current query. None if the query has no stored part.
    fn open(&mut self, work: &mut u64) -> Result<Option<Searching>, String> {
        let Some(query) = self.queries.get_mut(self.at) else { return Ok(None) };
        if query.is_void() {
            self.unasked |= query.limit == 0;
            return Ok(None);
        }
        (self.handed, self.last) = (0, None);
        query.budget = query.budget.saturating_sub(self.cost.visited);
        let search = self.cost.open(&**self.relay.shelf.store(), query, work);
        let search = search.map_err(|error| error.to_string())?;
        if let Some(handle) = self.sub.handle() {
            handle.opened(self.at, search.seq());
        }
        Ok(Some(search))
    }

    fn work(&mut self) -> Result<Turn, String> {
        // All queries enter the live index before the first search, so that no event is missed
        // between the two.
        if self.at == 0
            && self.search.is_none()
            && self.sub.handle().is_some_and(|handle| !handle.enter())
        {
            return Ok(Turn::More);
        }
        let open = Arc::clone(&self.sub.open);
        let mut page = Page::new(&open);
        let mut work = self.relay.settings().limits.slice_rows;
        while self.at < self.queries.len() {
            let mut search = if let Some(search) = self.search.take() {
                search
            } else {
                let Some(search) = self.open(&mut work)? else {
                    self.go_on(Reach::Nothing);
                    continue;
                };
                if work == 0 {
                    self.search = Some(search);
                    self.put(page);
                    return Ok(Turn::More);
                }
                search
            };
            let enough = self.enough.get(self.at).copied().unwrap_or_default();
            let (handed, last) = (&mut self.handed, &mut self.last);
            let (reached, queries, mut ended) = (&self.reached, &self.queries, false);
            let progress = self.cost.slice(&mut search, work, &mut |record: &Record<'_>| {
                if *handed >= enough && last.is_none_or(|last| last.time != record.time()) {
                    ended = true;
                    return ControlFlow::Break(());
                }
                (*handed, *last) = (*handed + 1, Some(Position::of(record)));
                if !Reach::any(reached, queries, record) {
                    page.add(record.wire());
                }
                if page.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let (progress, left) = progress.map_err(|error| error.to_string())?;
            work = left;
            match progress {
                _ if ended => self.end(true),
                Progress::Paused => {
                    self.search = Some(search);
                    self.put(page);
                    return Ok(Turn::More);
                }
                Progress::Done { more } => self.end(more),
                Progress::Exhausted => {
                    self.put(page);
                    return Err(TOO_MUCH.into());
                }
            }
        }
        let hint = match (self.more, self.unasked) {
            (true, _) => Some(EoseHint::More),
            (false, true) => None,
            (false, false) => Some(EoseHint::Finish),
        };
        page.end(|out| reply::write_eose(out, &self.sub.id, hint));
        self.put(page);
        if let Some(handle) = self.sub.handle() {
            handle.release(std::mem::take(&mut self.reached));
        }
        self.relay.metrics.answered(Verb::Req, "");
        Ok(Turn::Done)
    }

    /// Ends the answer to the current query. `more` says that records exist beyond its limit.
    fn end(&mut self, more: bool) {
        self.more |= more;
        self.go_on(match self.last {
            _ if !more => Reach::All,
            Some(last) => Reach::UpTo(last),
            None => Reach::Nothing,
        });
    }

    /// Advances to the next query.
    fn go_on(&mut self, reach: Reach) {
        self.reached.push(reach);
        self.at += 1;
    }

    fn refuse(&self, reason: &str) {
        self.relay.metrics.answered(Verb::Req, reason);
        self.sub.refuse(reason, &self.relay.readers);
    }

    fn put(&self, page: Page<'_>) {
        self.relay.metrics.records_told.add(page.records);
        self.cost.told(page.records);
        if let Some(part) = page.part() {
            self.sub.line.put_for(&self.sub.over, part);
        }
    }
}

/// The reason sent after a panic.
pub(super) const BUG: &str = "error: the relay failed at this; its log says how";

/// The reason sent when a question exceeds its budget of rows.
pub(super) const TOO_MUCH: &str =
    "too much to read for one question; name authors, kinds, tags or a shorter time";

impl Drop for Answer {
    fn drop(&mut self) {
        let asked = self.queries.iter().zip(self.enough.iter().copied());
        self.relay.slow.note("REQ", &self.cost.spent(), asked);
    }
}

impl Job for Answer {
    fn turn(&mut self) -> Turn {
        if self.sub.is_over() || self.sub.line.is_gone() {
            return Turn::Done;
        }
        self.cost.begin();
        self.work().unwrap_or_else(|reason| {
            self.refuse(&format!("error: {reason}"));
            Turn::Done
        })
    }

    fn fail(&mut self) {
        self.refuse(BUG);
    }

    fn line(&self) -> Arc<Line> {
        Arc::clone(&self.sub.line)
    }
}

/// Messages in one buffer.
struct Page<'a> {
    open: &'a [u8],
    bytes: Vec<u8>,
    ends: Vec<u32>,
    records: u64,
}

impl<'a> Page<'a> {
    fn new(open: &'a [u8]) -> Self {
        Self { open, bytes: Vec::new(), ends: Vec::new(), records: 0 }
    }

    fn add(&mut self, wire: &[u8]) {
        self.bytes.reserve(self.open.len() + wire.len() + 1);
        self.bytes.extend_from_slice(self.open);
        self.bytes.extend_from_slice(wire);
        self.records += 1;
        self.end(|out| out.push(b']'));
    }

    fn end(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len() as u32);
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= PAGE_BYTES
    }

    fn part(self) -> Option<Part> {
        (!self.ends.is_empty()).then_some(Part::Page(self.bytes, self.ends))
    }
}
