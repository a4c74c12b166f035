//! Answers requests for history (8/WAKU-MAIL). A request becomes a query of the archive, and the
//! result becomes pages of envelopes.

use std::ops::ControlFlow;

use hark_archive::query::plan::Set;
use hark_archive::{LabelSet, Order, Position, Query, SearchError, SearchProgress, Store};
use hark_codec::whisper::record::TOPIC;
use hark_codec::whisper::{Bloom, EnvelopeRecord, HistoryCursor, HistoryRequest, Topic};

use super::topics::{TopicCondition, TopicIndex};
use crate::turns::AnswerWaiter;

/// Rows that a search visits between two checks whether the page is full.
const SLICE_ROWS: u64 = 1 << 16;
/// How far into the future a request without an upper bound reaches, in s, as in status-go.
const AHEAD_S: u64 = 60;

/// Why a request has no page. The texts are for clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    /// The client exceeds its rate limit.
    #[error("rate limit exceeded")]
    TooMany,
    /// The memory for answers that clients have not read yet is used up.
    #[error("too many answers wait to be read; try again later")]
    Busy,
    /// The search would visit too many rows.
    #[error("too much would have to be read; ask for a shorter time or for fewer topics")]
    TooDear,
    /// The client has gone.
    #[error("nobody waits for the answer")]
    Gone,
    /// The server is shutting down.
    #[error("the server is going down")]
    Down,
    /// The archive failed.
    #[error("{0}")]
    Archive(String),
}

impl From<SearchError> for MailError {
    fn from(error: SearchError) -> Self {
        Self::Archive(error.to_string())
    }
}

/// The search for a request: a query, and a condition that a query cannot express.
#[derive(Clone, Debug)]
pub struct EnvelopeQuestion {
    /// The query. Its limit is the rest of the request's limit.
    pub query: Query,
    /// The filter for each envelope's topic. Used if the query does not name the topics.
    pub filter: Option<Bloom>,
}

impl EnvelopeQuestion {
    /// Creates the search for a request. Oldest envelopes come first, as in mail servers with a
    /// LevelDB. A request without a limit gets `limit_default`.
    pub fn new(
        request: &HistoryRequest<'_>,
        topics: &TopicIndex,
        now_s: u64,
        limit_default: usize,
    ) -> Self {
        let to = if request.upper == 0 { now_s + AHEAD_S } else { request.upper.into() };
        let limit = if request.limit == 0 { limit_default } else { request.limit as usize };
        let mut question = Self {
            query: Query {
                from: request.lower.into(),
                to,
                order: Order::OldestFirst,
                limit,
                ..Query::default()
            },
            filter: None,
        };
        if let Some(cursor) = request.cursor {
            question.go_on(cursor);
        }
        match &request.bloom {
            _ if !request.topics.is_empty() => question.want(request.topics.iter().collect()),
            Some(bloom) => question.cover(bloom, topics),
            None => question.want(Vec::new()),
        }
        question
    }

    /// Restricts the search to envelopes of these topics.
    pub fn want(&mut self, mut topics: Vec<Topic>) {
        topics.sort_unstable();
        topics.dedup();
        let values = topics.iter().map(|topic| topic[..].into()).collect();
        self.query.labels = vec![LabelSet { name: TOPIC, values }];
    }

    /// Restricts the search to envelopes of the topics that a filter covers.
    pub fn cover(&mut self, bloom: &Bloom, topics: &TopicIndex) {
        match topics.condition(bloom) {
            TopicCondition::All => {}
            TopicCondition::Topics(topics) => self.want(topics),
            TopicCondition::Filter => self.filter = Some(*bloom),
        }
    }

    /// Continues after a position.
    pub fn go_on(&mut self, after: HistoryCursor) {
        self.query.after = Some(Position { time: after.sent.into(), id: after.hash });
    }

    /// Continues after a page.
    pub fn advance(&mut self, page: &EnvelopePage) {
        self.query.limit = self.query.limit.saturating_sub(page.len());
        if let Some(last) = page.last {
            self.go_on(last);
        }
    }

    fn is_wanted(&self, record: EnvelopeRecord<'_>) -> bool {
        let covers = |filter: &Bloom| {
            record.topic().is_some_and(|topic| filter.covers(&Bloom::of_topic(topic)))
        };
        self.filter.as_ref().is_none_or(covers)
    }
}

/// The bounds of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageBounds {
    /// Maximum number of envelopes.
    pub envelopes: usize,
    /// Maximum size of the envelopes, in bytes. A page has at least one envelope.
    pub bytes: usize,
    /// Maximum number of rows that the search may visit.
    pub rows: u64,
}

/// A page of envelopes, in the order of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvelopePage {
    /// RLP of the envelopes, one after the other.
    rlp: Vec<u8>,
    /// The end of each envelope in `rlp`.
    ends: Vec<usize>,
    /// The position of the last envelope.
    pub last: Option<HistoryCursor>,
    /// Whether more envelopes match.
    pub more: bool,
    /// Rows that the search visited.
    pub rows: u64,
    /// The set that drove the search.
    pub driver: Option<Set>,
    /// Whether the page may lack an envelope, because that envelope is damaged.
    pub damaged: bool,
}

impl EnvelopePage {
    /// Number of envelopes.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the page has no envelopes.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the RLP of the envelopes, one after the other.
    pub fn rlp(&self) -> &[u8] {
        &self.rlp
    }

    /// Returns the RLP of each envelope.
    pub fn envelopes(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter()).map(|(start, end)| &self.rlp[start..*end])
    }

    /// Returns the position where the next page begins. `None` on the last page.
    pub fn cursor(&self) -> Option<HistoryCursor> {
        self.last.filter(|_| self.more)
    }
}

/// Returns the next page of a search. The search ends if `waiter` has gone.
pub(crate) fn page(
    store: &dyn Store,
    question: &EnvelopeQuestion,
    bounds: &PageBounds,
    waiter: &AnswerWaiter,
) -> Result<EnvelopePage, MailError> {
    let wanted = question.query.limit.min(bounds.envelopes);
    // One envelope more than a page has shows whether more envelopes follow.
    let limit = if question.filter.is_some() { usize::MAX } else { wanted.saturating_add(1) };
    let query = Query { limit, budget: bounds.rows, ..question.query.clone() };
    let mut page = EnvelopePage::default();
    let mut search = store.search(&query)?;
    loop {
        if waiter.has_gone() {
            return Err(MailError::Gone);
        }
        let progress = search.slice(SLICE_ROWS, &mut |record| {
            let envelope = EnvelopeRecord::new(*record);
            if !question.is_wanted(envelope) {
                return ControlFlow::Continue(());
            }
            let bytes = page.rlp.len() + envelope.rlp().len();
            if page.len() == wanted || (!page.is_empty() && bytes > bounds.bytes) {
                page.more = true;
                return ControlFlow::Break(());
            }
            page.rlp.extend_from_slice(envelope.rlp());
            page.ends.push(page.rlp.len());
            page.last = Some(envelope.cursor());
            ControlFlow::Continue(())
        })?;
        match progress {
            SearchProgress::Paused if !page.more => {}
            SearchProgress::Paused | SearchProgress::Done { .. } => break,
            SearchProgress::Exhausted => return Err(MailError::TooDear),
        }
    }
    page.rows = search.visited();
    page.driver = search.driver();
    page.damaged = search.damaged() > 0;
    Ok(page)
}

#[cfg(test)]
mod tests;
