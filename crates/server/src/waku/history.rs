//! Maps a Store v3 request to a query of the archive, and the result to a page (RFC
//! 13/WAKU2-STORE). Where the RFC and nwaku differ, docs/protocols.md names the one that Hark
//! follows.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::ControlFlow;

use hark_archive::query::plan::Set;
use hark_archive::{LabelSet, Order, Position, Query, Record, SearchError, SearchProgress, Store};
use hark_codec::record::{self, Id, RecordHeader};
use hark_codec::waku::store::{self, PAGE_DEFAULT, PAGE_MAX, Status};
use hark_codec::waku::{MessageRecord, ProtobufError, StoreRequest, topic};

use crate::turns::{AnswerWaiter, NotAsked};
pub use positions::PositionCache;

mod positions;

/// Maximum number of content topics, and of hashes, in a request.
pub const VALUES_MAX: usize = 1_000;
/// Maximum size of a page's messages, in bytes. A page of long messages has fewer messages.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Rows that a search visits between two checks whether the client still waits.
const SLICE_ROWS: u64 = 4_096;
/// Maximum size of a request id, in bytes. The answer repeats the request id.
const REQUEST_ID_MAX: usize = 256;

/// The description of a page that lacks a damaged message. The protocol has no status for this
/// case: with any status but 200, clients would drop the messages of the page.
const DAMAGED: &str = "OK, but a message that may belong here is damaged and left out";

/// Why a request has no page.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The request cannot be parsed.
    #[error("BAD_REQUEST: {0}")]
    Unread(#[from] ProtobufError),
    /// The request id is empty or too long.
    #[error("BAD_REQUEST: request_id must have 1 to {REQUEST_ID_MAX} bytes")]
    RequestId,
    /// The memory for answers in transmission is used up.
    #[error("too many answers are being sent; try again")]
    Busy,
    /// The request is too long.
    #[error("BAD_REQUEST: {0}")]
    Length(String),
    /// The rate limit is exceeded.
    #[error("TOO_MANY_REQUESTS")]
    TooMany,
    /// The node is shutting down.
    #[error("the node is going down")]
    Down,
    /// A parameter of the request is invalid.
    #[error("INVALID_QUERY: {0}")]
    Invalid(String),
    /// The cursor's message is not stored.
    #[error("archive error: DRIVER_ERROR: cursor not found")]
    Cursor,
    /// The client does not wait for the answer any more.
    #[error("nobody waits for the answer")]
    Gone,
    /// The query would visit too many rows.
    #[error("too much would have to be read; ask for a shorter time or for fewer topics")]
    TooDear,
    /// The archive failed.
    #[error("archive error: DRIVER_ERROR: {0}")]
    Archive(#[from] SearchError),
}

impl HistoryError {
    /// The status of the answer.
    pub fn status(&self) -> Status {
        match self {
            Self::Unread(_) | Self::RequestId | Self::Length(_) => Status::BadRequest,
            Self::TooMany => Status::TooManyRequests,
            Self::Archive(_) | Self::Down | Self::Busy | Self::Gone => Status::Unavailable,
            _ => Status::BadResponse,
        }
    }
}

impl From<NotAsked> for HistoryError {
    fn from(why: NotAsked) -> Self {
        match why {
            NotAsked::Line => Self::TooMany,
            NotAsked::Panicked => Self::Down,
        }
    }
}

/// Records, as bytes.
type RecordBytes = Vec<Box<[u8]>>;

/// A page of messages, as their records, oldest first.
#[derive(Debug, Default)]
pub struct HistoryPage {
    /// The records. If the answer does not include their data, each has only its id and time.
    pub records: RecordBytes,
    /// The cursor of the next page. `None` on the last page.
    pub cursor: Option<Id>,
    /// Bytes of the records if the answer includes their data, else 0.
    pub bytes: usize,
    /// Rows that the search visited.
    pub rows: u64,
    /// The set that drove the search.
    pub driver: Option<Set>,
    /// Whether the page may lack a message, because that message is damaged.
    pub damaged: bool,
}

impl HistoryPage {
    /// The description next to the answer's status, 200. Clients display or ignore the description.
    pub fn description(&self) -> &'static str {
        if self.damaged { DAMAGED } else { "OK" }
    }

    /// Maximum size of the page's answer, in bytes: in JSON, base64 takes four bytes for three.
    pub fn answer_bytes(&self) -> usize {
        self.bytes / 3 * 4 + 400 * (self.records.len() + 1)
    }
}

/// Returns the page for a request, visiting at most `rows_max` rows.
pub(crate) fn page(
    store: &dyn Store,
    positions: &PositionCache,
    request: &StoreRequest<'_>,
    rows_max: u64,
    asker: &AnswerWaiter,
) -> Result<HistoryPage, HistoryError> {
    let mut question = HistoryQuery::new(request, rows_max, asker)?;
    if let Some(cursor) = cursor(request)? {
        let at = positions.get(&cursor).map_or_else(|| find(store, cursor), |at| Ok(Some(at)));
        question.after = Some(at?.ok_or(HistoryError::Cursor)?);
    }
    let (mut records, mut more) =
        if request.forward { question.forward(store)? } else { question.backward(store)? };
    let (mut bytes, mut fit) = (0, records.len());
    if request.include_data {
        fit = 0;
        for record in &records {
            // The first message is always included, whatever its length.
            if fit > 0 && bytes + record.len() > PAGE_BYTES_MAX {
                more = true;
                break;
            }
            bytes += record.len();
            fit += 1;
        }
    }
    records.truncate(fit);
    let last = records.last().filter(|_| more);
    let last = last.and_then(|last| Some(Position::of(&Record::new(last).ok()?)));
    let cursor = last.map(|last| {
        positions.note(last);
        last.id
    });
    if !request.forward {
        records.reverse();
    }
    Ok(HistoryPage {
        records,
        cursor,
        bytes,
        rows: rows_max - question.rows_left,
        driver: question.driver,
        damaged: question.damaged,
    })
}

/// Like [`page`], for the bytes of a request.
pub(crate) fn page_of(
    store: &dyn Store,
    positions: &PositionCache,
    request: &[u8],
    rows_max: u64,
    asker: &AnswerWaiter,
) -> Result<HistoryPage, HistoryError> {
    let request = StoreRequest::parse(request)?;
    if request.request_id.is_empty() || request.request_id.len() > REQUEST_ID_MAX {
        return Err(HistoryError::RequestId);
    }
    page(store, positions, &request, rows_max, asker)
}

/// Returns the query of a request. `None` if the request is invalid.
pub fn query_of(request: &[u8]) -> Option<Query> {
    let request = StoreRequest::parse(request).ok()?;
    let asker = AnswerWaiter::default();
    let HistoryQuery { query, limit, .. } = HistoryQuery::new(&request, u64::MAX, &asker).ok()?;
    Some(Query { limit, ..query })
}

/// Encodes the answer to a request.
pub fn answer(request: &[u8], page: Result<&HistoryPage, &HistoryError>) -> Vec<u8> {
    let page = match page {
        Ok(page) => page,
        Err(refusal) => {
            let mut out = Vec::new();
            // As in nwaku, which does not parse a request above the rate limit.
            let id = if matches!(refusal, HistoryError::TooMany) { "N/A" } else { "" };
            store::put_answer(&mut out, id, refusal.status(), &refusal.to_string(), None);
            return out;
        }
    };
    // The request is valid: a page exists only for a parsed request.
    let request = StoreRequest::parse(request).unwrap_or_default();
    let mut out = Vec::with_capacity(page.bytes + 4_096);
    for record in page.records.iter().filter_map(|bytes| Record::new(bytes).ok()) {
        let record = MessageRecord::new(record);
        let data = (record.message(), record.pubsub_topic());
        store::put_message(&mut out, record.hash(), request.include_data.then_some(data));
    }
    let id = request.request_id;
    store::put_answer(&mut out, id, Status::Success, page.description(), page.cursor.as_ref());
    out
}

/// Returns the hash in a request's cursor.
fn cursor(request: &StoreRequest<'_>) -> Result<Option<Id>, HistoryError> {
    let Some(cursor) = request.cursor.filter(|cursor| !cursor.is_empty()) else { return Ok(None) };
    match <Id>::try_from(cursor) {
        Ok(hash) if hash != [0; 32] => Ok(Some(hash)),
        _ => Err(HistoryError::Invalid("the cursor is no message hash".into())),
    }
}

/// Looks up the position of a message in the archive.
fn find(store: &dyn Store, hash: Id) -> Result<Option<Position>, HistoryError> {
    let query = Query { ids: Some(vec![hash]), limit: 1, ..Query::default() };
    let mut found = None;
    store.search(&query)?.slice(u64::MAX, &mut |record| {
        found = Some(Position::of(record));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// The query of a request. The direction is chosen later.
struct HistoryQuery<'a> {
    asker: &'a AnswerWaiter,
    query: Query,
    after: Option<Position>,
    /// Maximum number of messages on the page.
    limit: usize,
    rows_left: u64,
    driver: Option<Set>,
    damaged: bool,
    /// Whether the answer includes the messages themselves, and not only their hashes.
    include_data: bool,
}

impl<'a> HistoryQuery<'a> {
    fn new(
        request: &StoreRequest<'_>,
        rows_max: u64,
        asker: &'a AnswerWaiter,
    ) -> Result<Self, HistoryError> {
        let limit = match request.limit.unwrap_or_default() {
            0 => PAGE_DEFAULT,
            limit => usize::try_from(limit).unwrap_or(PAGE_MAX).min(PAGE_MAX),
        };
        let mut query = Query::default();
        if let Some(pubsub_topic) = request.pubsub_topic {
            query.labels.push(LabelSet::one(topic::PUBSUB, pubsub_topic.as_bytes()));
        }
        let topics = request.content_topics();
        if few(topics.clone().count(), "content topics")? {
            let values = topics.map(|topic| topic.as_bytes().into()).collect();
            query.labels.push(LabelSet { name: topic::CONTENT, values });
        }
        let hashes = request.message_hashes();
        if few(hashes.clone().count(), "message hashes")? {
            let hashes: Result<Vec<Id>, _> = hashes.map(Id::try_from).collect();
            let hashes =
                hashes.map_err(|_| HistoryError::Invalid("a message hash has 32 bytes".into()));
            query.ids = Some(hashes?);
        }
        // No message is older than 1970.
        query.from = u64::try_from(request.time_start.unwrap_or_default()).unwrap_or_default();
        if let Some(end) = request.time_end {
            match u64::try_from(end) {
                Ok(end) => query.to = end,
                Err(_) => query.ids = Some(Vec::new()),
            }
        }
        if query.from > query.to {
            // As in nwaku, an inverted time span matches nothing.
            (query.from, query.ids) = (query.to, Some(Vec::new()));
        }
        query.normalise();
        Ok(Self {
            asker,
            query,
            after: None,
            limit,
            rows_left: rows_max,
            driver: None,
            damaged: false,
            include_data: request.include_data,
        })
    }

    /// Passes the records that match `query` to `sink`, until `sink` breaks. Returns whether more
    /// match.
    fn search(
        &mut self,
        store: &dyn Store,
        query: &Query,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<bool, HistoryError> {
        let mut search = store.search(&Query { budget: self.rows_left, ..query.clone() })?;
        let enough = Cell::new(false);
        let mut sink = |record: &Record<'_>| {
            let flow = sink(record);
            enough.set(flow.is_break());
            flow
        };
        let mut noted = 0;
        let more = loop {
            if self.asker.has_gone() {
                break Err(HistoryError::Gone);
            }
            let progress = search.slice(SLICE_ROWS, &mut sink);
            self.asker.visit(search.visited() - noted);
            noted = search.visited();
            match progress? {
                SearchProgress::Paused if enough.get() => break Ok(true),
                SearchProgress::Paused => {}
                SearchProgress::Exhausted => break Err(HistoryError::TooDear),
                SearchProgress::Done { more } => break Ok(more || enough.get()),
            }
        };
        self.rows_left = self.rows_left.saturating_sub(search.visited());
        self.driver = search.driver();
        self.damaged |= search.damaged() > 0;
        more
    }

    /// Returns the oldest messages after the cursor, oldest first, and whether more follow.
    fn forward(&mut self, store: &dyn Store) -> Result<(RecordBytes, bool), HistoryError> {
        let (order, after, limit) = (Order::OldestFirst, self.after, self.limit);
        let mut query = Query { order, after, limit, ..self.query.clone() };
        let (include_data, mut records) = (self.include_data, Vec::new());
        loop {
            let mut last = query.after;
            let more = self.search(store, &query, &mut |record| {
                last = Some(Position::of(record));
                if may_be_sent(record) {
                    records.push(copy(record, include_data));
                }
                ControlFlow::Continue(())
            })?;
            if !more || records.len() >= limit {
                let more = more || records.len() > limit;
                records.truncate(limit);
                return Ok((records, more));
            }
            // Messages without a payload were skipped, and more messages follow.
            query.after = last;
        }
    }

    /// Returns the newest messages before the cursor, newest first, and whether more follow.
    ///
    /// The archive returns messages with the same timestamp in ascending order of their hashes. A
    /// page needs the highest first.
    fn backward(&mut self, store: &dyn Store) -> Result<(RecordBytes, bool), HistoryError> {
        let (before, include_data) = (self.after, self.include_data);
        // One message more than a page has shows whether more messages follow.
        let wanted = self.limit + 1;
        let (order, limit) = (Order::NewestFirst, wanted + usize::from(before.is_some()));
        let mut query = Query { order, limit, ..self.query.clone() };
        if let Some(before) = before {
            // The query also returns the message at the cursor.
            query.to = query.to.min(before.time);
        }
        let mut records = RecordBytes::new();
        loop {
            let (mut same, mut last) = (Vec::new(), None);
            let more = self.search(store, &query, &mut |record| {
                let here = Position::of(record);
                if last.is_some_and(|last| last != here.time) {
                    records.extend(same.drain(..).rev());
                }
                last = Some(here.time);
                let is_before =
                    before.is_none_or(|before| (here.time, here.id) < (before.time, before.id));
                if is_before && may_be_sent(record) {
                    same.push(copy(record, include_data));
                }
                ControlFlow::Continue(())
            })?;
            if !more {
                records.extend(same.into_iter().rev());
            }
            // The page is full. The order of the messages after the page does not matter.
            let Some(time) = last.filter(|_| more && records.len() < self.limit) else {
                let more = more || records.len() > self.limit;
                records.truncate(self.limit);
                return Ok((records, more));
            };
            // More messages of the last nanosecond may follow, with higher hashes.
            let below = before.filter(|before| before.time == time).map(|before| before.id);
            let rest = wanted - records.len();
            records.extend(self.nanosecond(store, time, below, rest)?);
            let earlier =
                time.checked_sub(1).filter(|to| *to >= query.from && records.len() < wanted);
            let Some(to) = earlier else {
                let more = records.len() > self.limit;
                records.truncate(self.limit);
                return Ok((records, more));
            };
            query.to = to;
        }
    }

    /// Returns at most `wanted` messages of one nanosecond, highest hash first: those with the
    /// highest hashes below `below`.
    ///
    /// The search reads ranges of hashes, the highest range first. A range should hold a few times
    /// as many messages as are wanted. A range with more messages is narrowed, at least to a
    /// quarter. So messages whose sender has chosen their hashes also cost a bounded number of
    /// rows.
    fn nanosecond(
        &mut self,
        store: &dyn Store,
        time: u64,
        below: Option<Id>,
        wanted: usize,
    ) -> Result<RecordBytes, HistoryError> {
        let (include_data, rows_max) = (self.include_data, 3 * wanted.max(20));
        let mut query = Query {
            order: Order::NewestFirst,
            from: time,
            to: time,
            limit: rows_max,
            ..self.query.clone()
        };
        let (mut end, mut width, mut found) = (below, u128::MAX, RecordBytes::new());
        loop {
            let start = end.map_or(u128::MAX, |end| half(&end)).saturating_sub(width);
            let before = start.checked_sub(1).map(|before| whole(before, 0xff));
            query.after = before.map(|id| Position { time, id });
            // Within a range, the highest hashes come last.
            let (mut highest, missing) = (VecDeque::new(), wanted - found.len());
            let (mut count, mut last, mut has_passed) = (0, start, false);
            let more = self.search(store, &query, &mut |record| {
                has_passed = end.is_some_and(|end| *record.id() >= end);
                if has_passed {
                    return ControlFlow::Break(());
                }
                (count, last) = (count + 1, half(record.id()));
                if may_be_sent(record) {
                    if highest.len() == missing {
                        highest.pop_front();
                    }
                    highest.push_back(copy(record, include_data));
                }
                ControlFlow::Continue(())
            })?;
            if more && !has_passed {
                // Half the width of the rows read so far, if hashes are evenly spread.
                width = ((last - start) / 2).min(width / 4).max(1);
                continue;
            }
            found.extend(highest.into_iter().rev());
            if start == 0 || found.len() >= wanted {
                return Ok(found);
            }
            end = Some(whole(start, 0));
            width = width.saturating_mul((rows_max / 2 / count.max(1)).clamp(1, 16) as u128);
        }
    }
}

/// Returns the first half of a hash, as a number.
fn half(hash: &Id) -> u128 {
    let (half, _) = hash.split_at(16);
    u128::from_be_bytes(half.try_into().unwrap_or_default())
}

/// Returns the hash with this first half, where all other bytes are `rest`.
fn whole(half: u128, rest: u8) -> Id {
    let mut hash = [rest; 32];
    hash[..16].copy_from_slice(&half.to_be_bytes());
    hash
}

/// Copies the part of a record that an answer needs: the whole record, or its id and time alone.
fn copy(record: &Record<'_>, include_data: bool) -> Box<[u8]> {
    if include_data {
        return record.bytes().into();
    }
    let (id, time) = (*record.id(), record.time());
    let head = RecordHeader { id, time, author: None, kind: 0, expires: None };
    let mut out = Vec::new();
    record::write(&mut out, &head, &[], std::iter::empty());
    out.into()
}

/// Whether an answer may contain a message. Other nodes cannot parse an answer that contains a
/// message without a payload.
fn may_be_sent(record: &Record<'_>) -> bool {
    MessageRecord::new(*record).has_payload()
}

/// Whether `count` is above 0. Fails if `count` is above [`VALUES_MAX`].
fn few(count: usize, what: &str) -> Result<bool, HistoryError> {
    if count > VALUES_MAX {
        return Err(HistoryError::Invalid(format!("more than {VALUES_MAX} {what}")));
    }
    Ok(count > 0)
}

#[cfg(test)]
mod tests;
