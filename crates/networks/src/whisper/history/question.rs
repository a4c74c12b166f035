//! The search for a request: a query, and a condition that a query cannot express.

use std::ops::ControlFlow;

use hark_archive::{LabelSet, Order, Position, Query};
use hark_codec::whisper::record::TOPIC;
use hark_codec::whisper::{Bloom, EnvelopeRecord, HistoryCursor, Topic};

use super::error::MailError;
use super::page::{EnvelopePage, PageBounds};
use super::request::{EnvelopeRequest, TopicChoice};
use crate::search::BoundedSearch;

/// Number of rows after which a search checks again whether the client still waits.
const SLICE_ROWS: u64 = 1 << 16;
/// Number of seconds from now until the latest time of a request without an upper bound, as in
/// status-go.
const AHEAD_S: u64 = 60;

/// How the envelopes that match a bloom filter are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicCondition {
    /// The filter covers all possible topics.
    All,
    /// Search by these topics.
    Topics(Vec<Topic>),
    /// Compare the filter with the topic of each envelope.
    Filter,
}

/// The search for a request: a query, and a condition that a query cannot express.
#[derive(Clone, Debug)]
pub struct EnvelopeQuestion {
    /// The query. Its limit is the number of envelopes that are still to be sent.
    pub query: Query,
    /// The bloom filter with which the topic of each found envelope is compared. `None` if the
    /// query already finds only wanted envelopes.
    pub filter: Option<Bloom>,
}

impl EnvelopeQuestion {
    /// Creates the search for a request. A request without a limit gets `limit_default`.
    /// `condition` decides how the envelopes that match a bloom filter are found.
    pub fn new(
        request: EnvelopeRequest,
        condition: impl FnOnce(&Bloom) -> TopicCondition,
        now_s: u64,
        limit_default: usize,
    ) -> Self {
        let order = if request.newest_first { Order::NewestFirst } else { Order::OldestFirst };
        let mut question = Self {
            query: Query {
                from: request.from,
                to: request.to.unwrap_or(now_s + AHEAD_S),
                order,
                limit: request.limit.unwrap_or(limit_default),
                ..Query::default()
            },
            filter: None,
        };
        if let Some(after) = request.after {
            question.continue_after(after);
        }
        match request.topics {
            TopicChoice::All => {}
            TopicChoice::Listed(topics) => question.want(topics),
            TopicChoice::Covered(bloom) => match condition(&bloom) {
                TopicCondition::All => {}
                TopicCondition::Topics(topics) => question.want(topics),
                TopicCondition::Filter => question.filter = Some(bloom),
            },
        }
        question
    }

    /// Restricts the search to envelopes of these topics.
    fn want(&mut self, mut topics: Vec<Topic>) {
        topics.sort_unstable();
        topics.dedup();
        let values = topics.iter().map(|topic| topic[..].into()).collect();
        self.query.labels = vec![LabelSet { name: TOPIC, values }];
    }

    /// Continues after a position.
    fn continue_after(&mut self, after: HistoryCursor) {
        self.query.after = Some(Position { time: after.sent.into(), id: after.hash });
    }

    /// Continues the search after a page.
    pub fn advance(&mut self, page: &EnvelopePage) {
        self.query.limit = self.query.limit.saturating_sub(page.len());
        if let Some(last) = page.last {
            self.continue_after(last);
        }
    }

    /// Returns the next page.
    pub fn page(
        &self,
        search: &mut BoundedSearch<'_>,
        bounds: &PageBounds,
    ) -> Result<EnvelopePage, MailError> {
        let wanted = self.query.limit.min(bounds.envelopes);
        // One envelope beyond the page shows whether more envelopes follow.
        let limit = if self.filter.is_some() { usize::MAX } else { wanted.saturating_add(1) };
        // A bound on bytes in the query would also count records that the filter drops.
        let bytes = if self.filter.is_some() { usize::MAX } else { bounds.bytes };
        let query = Query { limit, bytes, ..self.query.clone() };
        let mut page = EnvelopePage::default();
        search.run(&query, SLICE_ROWS, &mut |record| {
            let envelope = EnvelopeRecord::new(*record);
            if !self.is_wanted(envelope) {
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
        page.damaged = search.is_damaged();
        Ok(page)
    }

    /// Whether the topic of an envelope meets the condition that the query cannot express.
    fn is_wanted(&self, record: EnvelopeRecord<'_>) -> bool {
        let covers = |filter: &Bloom| {
            record.topic().is_some_and(|topic| filter.covers(&Bloom::of_topic(topic)))
        };
        self.filter.as_ref().is_none_or(covers)
    }
}
