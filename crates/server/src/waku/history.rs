//! A Store v3 request as the archive's question, and a page as its answer (RFC 13/WAKU2-STORE; where
//! that and nwaku differ, docs/protocols.md says which is followed).

use std::collections::VecDeque;
use std::ops::ControlFlow;

use hark_archive::query::plan::Set;
use hark_archive::{LabelSet, Order, Position, Progress, Query, Record, SearchError, Store};
use hark_codec::record::Id;
use hark_codec::waku::store::{self, PAGE_DEFAULT, PAGE_MAX, Status};
use hark_codec::waku::{MessageRecord, ProtobufError, Request, topic};

pub use places::Places;

mod places;

/// Content topics and hashes of a request, each, at most.
pub const VALUES_MAX: usize = 1_000;
/// Bytes of a page's messages, at most: it has fewer messages where these are long.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes of a request id, at most: it is sent back.
const REQUEST_ID_MAX: usize = 256;

/// Why a request has no page.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read.
    #[error("BAD_REQUEST: {0}")]
    Unread(#[from] ProtobufError),
    /// It has no name to be answered by, or too long a one.
    #[error("BAD_REQUEST: request_id must have 1 to {REQUEST_ID_MAX} bytes")]
    RequestId,
    /// All that may be told at a time is being told.
    #[error("too much is being told; try again")]
    Busy,
    /// It is longer than it may be.
    #[error("BAD_REQUEST: {0}")]
    Length(String),
    /// There are too many.
    #[error("TOO_MANY_REQUESTS")]
    TooMany,
    /// The node goes down.
    #[error("the node is going down")]
    Down,
    /// It cannot be meant.
    #[error("INVALID_QUERY: {0}")]
    Invalid(String),
    /// Nobody knows where to go on.
    #[error("archive error: DRIVER_ERROR: cursor not found")]
    Cursor,
    /// It would read too much.
    #[error("too much would have to be read; ask for a shorter time or for fewer topics")]
    TooDear,
    /// The archive is away.
    #[error("archive error: DRIVER_ERROR: {0}")]
    Archive(#[from] SearchError),
}

impl Refusal {
    /// How it is told.
    pub fn status(&self) -> Status {
        match self {
            Self::Unread(_) | Self::RequestId | Self::Length(_) => Status::BadRequest,
            Self::TooMany => Status::TooManyRequests,
            Self::Archive(_) | Self::Down | Self::Busy => Status::Unavailable,
            _ => Status::BadResponse,
        }
    }
}

/// Records, as bytes.
type Records = Vec<Box<[u8]>>;

/// Messages of an answer, as their records, oldest first.
#[derive(Debug, Default)]
pub struct Page {
    /// The records.
    pub records: Records,
    /// Where the next page begins, if there is one.
    pub cursor: Option<Id>,
    /// Bytes of the records, where more is told of them than their hashes; else 0.
    pub bytes: usize,
    /// Rows that were visited for it.
    pub rows: u64,
    /// What its search was driven by.
    pub driver: Option<Set>,
}

impl Page {
    /// Bytes of its answer, at most: in JSON, where base64 has four for three.
    pub fn answer_bytes(&self) -> usize {
        self.bytes / 3 * 4 + 400 * (self.records.len() + 1)
    }
}

/// Answers a request, visiting so many rows at most.
pub fn page(
    store: &dyn Store,
    places: &Places,
    request: &Request<'_>,
    rows_max: u64,
) -> Result<Page, Refusal> {
    let mut question = Question::new(request, rows_max)?;
    if let Some(cursor) = cursor(request)? {
        let at = places.get(&cursor).map_or_else(|| find(store, cursor), |at| Ok(Some(at)));
        question.after = Some(at?.ok_or(Refusal::Cursor)?);
    }
    let (mut records, mut more) =
        if request.forward { question.forward(store)? } else { question.backward(store)? };
    let (mut bytes, mut fit) = (0, records.len());
    if request.include_data {
        fit = 0;
        for record in &records {
            // One is told, however long it is.
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
        places.note(last);
        last.id
    });
    if !request.forward {
        records.reverse();
    }
    Ok(Page {
        records,
        cursor,
        bytes,
        rows: rows_max - question.rows_left,
        driver: question.driver,
    })
}

/// The same for the bytes of a request.
pub fn page_of(
    store: &dyn Store,
    places: &Places,
    request: &[u8],
    rows_max: u64,
) -> Result<Page, Refusal> {
    let request = Request::parse(request)?;
    if request.request_id.is_empty() || request.request_id.len() > REQUEST_ID_MAX {
        return Err(Refusal::RequestId);
    }
    page(store, places, &request, rows_max)
}

/// What a request asks for, as far as it can be read.
pub fn query_of(request: &[u8]) -> Option<Query> {
    let request = Request::parse(request).ok()?;
    let Question { query, limit, .. } = Question::new(&request, u64::MAX).ok()?;
    Some(Query { limit, ..query })
}

/// The bytes of an answer to a request.
pub fn answer(request: &[u8], page: Result<&Page, &Refusal>) -> Vec<u8> {
    let page = match page {
        Ok(page) => page,
        Err(refusal) => {
            let mut out = Vec::new();
            // As nwaku has it: the request was not looked at.
            let id = if matches!(refusal, Refusal::TooMany) { "N/A" } else { "" };
            store::put_answer(&mut out, id, refusal.status(), &refusal.to_string(), None);
            return out;
        }
    };
    // It was read before, or there would be no page.
    let request = Request::parse(request).unwrap_or_default();
    let mut out = Vec::with_capacity(page.bytes + 4_096);
    for record in page.records.iter().filter_map(|bytes| Record::new(bytes).ok()) {
        let record = MessageRecord::new(record);
        let data = (record.message(), record.pubsub_topic());
        store::put_message(&mut out, record.hash(), request.include_data.then_some(data));
    }
    let id = request.request_id;
    store::put_answer(&mut out, id, Status::Success, "OK", page.cursor.as_ref());
    out
}

/// The hash in a request's cursor.
fn cursor(request: &Request<'_>) -> Result<Option<Id>, Refusal> {
    let Some(cursor) = request.cursor.filter(|cursor| !cursor.is_empty()) else { return Ok(None) };
    match <Id>::try_from(cursor) {
        Ok(hash) if hash != [0; 32] => Ok(Some(hash)),
        _ => Err(Refusal::Invalid("the cursor is no message hash".into())),
    }
}

/// Where a message stands.
fn find(store: &dyn Store, hash: Id) -> Result<Option<Position>, Refusal> {
    let query = Query { ids: Some(vec![hash]), limit: 1, ..Query::default() };
    let mut found = None;
    store.search(&query)?.slice(u64::MAX, &mut |record| {
        found = Some(Position::of(record));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// What is asked, but for the direction.
struct Question {
    query: Query,
    after: Option<Position>,
    /// Messages of the page, at most.
    limit: usize,
    rows_left: u64,
    driver: Option<Set>,
}

impl Question {
    fn new(request: &Request<'_>, rows_max: u64) -> Result<Self, Refusal> {
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
            let hashes = hashes.map_err(|_| Refusal::Invalid("a message hash has 32 bytes".into()));
            query.ids = Some(hashes?);
        }
        // Nothing is older than 1970.
        query.from = u64::try_from(request.time_start.unwrap_or_default()).unwrap_or_default();
        if let Some(end) = request.time_end {
            match u64::try_from(end) {
                Ok(end) => query.to = end,
                Err(_) => query.ids = Some(Vec::new()),
            }
        }
        if query.from > query.to {
            // Nothing lies between, as nwaku has it.
            (query.from, query.ids) = (query.to, Some(Vec::new()));
        }
        query.normalise();
        Ok(Self { query, after: None, limit, rows_left: rows_max, driver: None })
    }

    /// Hands over what answers `query`. Whether its limit left more behind.
    fn search(
        &mut self,
        store: &dyn Store,
        query: &Query,
        sink: &mut dyn FnMut(&Record<'_>),
    ) -> Result<bool, Refusal> {
        let mut search = store.search(&Query { budget: self.rows_left, ..query.clone() })?;
        let mut sink = |record: &Record<'_>| {
            sink(record);
            ControlFlow::Continue(())
        };
        loop {
            let progress = search.slice(u64::MAX, &mut sink)?;
            match progress {
                Progress::Paused => {}
                Progress::Exhausted => return Err(Refusal::TooDear),
                Progress::Done { more } => {
                    self.rows_left = self.rows_left.saturating_sub(search.visited());
                    self.driver = search.driver();
                    return Ok(more);
                }
            }
        }
    }

    /// The oldest behind the cursor, oldest first, and whether there are more.
    fn forward(&mut self, store: &dyn Store) -> Result<(Records, bool), Refusal> {
        let (order, after, limit) = (Order::OldestFirst, self.after, self.limit);
        let mut query = Query { order, after, limit, ..self.query.clone() };
        let mut records = Vec::new();
        loop {
            let mut last = query.after;
            let more = self.search(store, &query, &mut |record| {
                last = Some(Position::of(record));
                if is_told(record) {
                    records.push(record.bytes().into());
                }
            })?;
            if !more || records.len() >= limit {
                let more = more || records.len() > limit;
                records.truncate(limit);
                return Ok((records, more));
            }
            // Some were left out, and others stand behind them.
            query.after = last;
        }
    }

    /// The newest before the cursor, newest first, and whether there are more.
    fn backward(&mut self, store: &dyn Store) -> Result<(Records, bool), Refusal> {
        // One more than a page tells whether there are more.
        let (order, limit) = (Order::NewestFirst, self.limit + 1);
        let mut query = Query { order, limit, ..self.query.clone() };
        let before = self.after;
        if let Some(before) = before {
            // The message there comes once more.
            query.limit += 1;
            query.to = query.to.min(before.time);
        }
        // Those of one time come lowest hash first, and here the highest is wanted first.
        let (mut records, mut same) = (Vec::new(), VecDeque::new());
        let mut last: Option<Position> = None;
        let behind = loop {
            let more = self.search(store, &query, &mut |record| {
                let here = Position::of(record);
                if last.is_some_and(|last| last.time != here.time) {
                    records.extend(same.drain(..).rev());
                }
                last = Some(here);
                let is_before =
                    before.is_none_or(|before| (here.time, here.id) < (before.time, before.id));
                if is_before && is_told(record) {
                    same.push_back(Box::from(record.bytes()));
                    // The lowest ones will not be told.
                    if records.len() + same.len() > limit {
                        same.pop_front();
                    }
                }
            })?;
            if !more {
                records.extend(same.drain(..).rev());
            }
            // Of what follows a page it does not matter which comes first.
            if !more || records.len() >= self.limit {
                break more;
            }
            // Others of the last time may follow.
            query.after = last;
        };
        let more = behind || records.len() + same.len() > self.limit;
        records.truncate(self.limit);
        Ok((records, more))
    }
}

/// Whether a message is told. One without a payload is not: other nodes cannot read an answer that has
/// one, all of it.
fn is_told(record: &Record<'_>) -> bool {
    MessageRecord::new(*record).has_payload()
}

/// Whether there are any, and not too many.
fn few(count: usize, what: &str) -> Result<bool, Refusal> {
    if count > VALUES_MAX {
        return Err(Refusal::Invalid(format!("more than {VALUES_MAX} {what}")));
    }
    Ok(count > 0)
}

#[cfg(test)]
mod tests;
