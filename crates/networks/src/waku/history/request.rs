//! A request for messages, from a client, from a peer or to a peer, and its form in the Store
//! protocol.

use hark_archive::{LabelSet, Query};
use hark_codec::record::Id;
use hark_codec::waku::store::{PAGE_DEFAULT, PAGE_MAX};
use hark_codec::waku::{StoreRequest, topic};

use super::error::{HistoryError, REQUEST_ID_MAX};

/// Maximum number of content topics in a request, and maximum number of hashes.
pub const VALUES_MAX: usize = 1_000;

/// A request for a page of messages. Times are nanoseconds since 1970, inclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageRequest {
    /// Id that the answer to a peer repeats.
    pub id: String,
    /// Whether the answer has the messages (otherwise only their hashes).
    pub include_data: bool,
    /// The wanted pubsub topic. `None` stands for all.
    pub pubsub_topic: Option<String>,
    /// The wanted content topics. An empty list stands for all.
    pub content_topics: Vec<String>,
    /// Hashes of the wanted messages. An empty list stands for all.
    pub hashes: Vec<Id>,
    /// Earliest time.
    pub time_start: Option<i64>,
    /// Latest time.
    pub time_end: Option<i64>,
    /// Hash of the message after which the page begins.
    pub cursor: Option<Id>,
    /// Whether pages go forward from the oldest message. Otherwise pages go back from the newest
    /// message.
    pub forward: bool,
    /// Maximum number of messages. 0 and `None` stand for the server's own limit.
    pub limit: Option<u64>,
}

impl MessageRequest {
    /// Reads the request of a peer.
    pub fn read(bytes: &[u8]) -> Result<Self, HistoryError> {
        let wire = StoreRequest::parse(bytes)?;
        if wire.request_id.is_empty() || wire.request_id.len() > REQUEST_ID_MAX {
            return Err(HistoryError::RequestId);
        }
        let (topics, hashes) = (wire.content_topics(), wire.message_hashes());
        // The entries are counted before they are read, because an entry takes more bytes in memory
        // than in the request.
        check_count(topics.clone().count(), "content topics")?;
        check_count(hashes.clone().count(), "message hashes")?;
        let hashes: Result<Vec<Id>, _> = hashes.map(Id::try_from).collect();
        let hashes = hashes.map_err(|_| invalid("a message hash has 32 bytes"))?;
        let cursor = wire.cursor.filter(|cursor| !cursor.is_empty()).map(Id::try_from);
        Ok(Self {
            id: wire.request_id.to_owned(),
            include_data: wire.include_data,
            pubsub_topic: wire.pubsub_topic.map(str::to_owned),
            content_topics: topics.map(str::to_owned).collect(),
            hashes,
            time_start: wire.time_start,
            time_end: wire.time_end,
            cursor: cursor.transpose().map_err(|_| no_cursor())?,
            forward: wire.forward,
            limit: wire.limit,
        })
    }

    /// Appends the request in the form that peers send.
    pub fn write(&self, out: &mut Vec<u8>) {
        let wire = StoreRequest {
            request_id: &self.id,
            include_data: self.include_data,
            pubsub_topic: self.pubsub_topic.as_deref(),
            time_start: self.time_start,
            time_end: self.time_end,
            cursor: self.cursor.as_ref().map(|cursor| &cursor[..]),
            forward: self.forward,
            limit: self.limit,
            ..StoreRequest::default()
        };
        let topics = self.content_topics.iter().map(String::as_str);
        wire.write(topics, self.hashes.iter().map(|hash| &hash[..]), out);
    }

    /// Returns the query for the messages of all pages. The direction is chosen later.
    pub(super) fn query(&self) -> Result<Query, HistoryError> {
        check_count(self.content_topics.len(), "content topics")?;
        check_count(self.hashes.len(), "message hashes")?;
        let mut query = Query::default();
        if let Some(pubsub_topic) = &self.pubsub_topic {
            query.labels.push(LabelSet::one(topic::PUBSUB, pubsub_topic.as_bytes()));
        }
        if !self.content_topics.is_empty() {
            let values = self.content_topics.iter().map(|topic| topic.as_bytes().into()).collect();
            query.labels.push(LabelSet { name: topic::CONTENT, values });
        }
        if !self.hashes.is_empty() {
            query.ids = Some(self.hashes.clone());
        }
        // No message is older than 1970.
        query.from = u64::try_from(self.time_start.unwrap_or_default()).unwrap_or_default();
        if let Some(end) = self.time_end {
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
        Ok(query)
    }

    /// The hash in the cursor, if the request has a cursor. Fails for a hash of zeros, which no
    /// message has.
    pub(super) fn cursor(&self) -> Result<Option<Id>, HistoryError> {
        if self.cursor == Some([0; 32]) { Err(no_cursor()) } else { Ok(self.cursor) }
    }

    /// Maximum number of messages on a page.
    pub(super) fn page_limit(&self) -> usize {
        match self.limit.unwrap_or_default() {
            0 => PAGE_DEFAULT,
            limit => usize::try_from(limit).unwrap_or(PAGE_MAX).min(PAGE_MAX),
        }
    }
}

fn invalid(words: &str) -> HistoryError {
    HistoryError::Invalid(words.into())
}

fn no_cursor() -> HistoryError {
    invalid("the cursor is no message hash")
}

/// Checks that `count` is at most [`VALUES_MAX`].
fn check_count(count: usize, what: &str) -> Result<(), HistoryError> {
    if count > VALUES_MAX {
        return Err(HistoryError::Invalid(format!("more than {VALUES_MAX} {what}")));
    }
    Ok(())
}
