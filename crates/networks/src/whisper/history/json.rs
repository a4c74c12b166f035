//! Requests in JSON, from clients of the REST interface.

use hark_codec::whisper::request::TOPICS_MAX;
use hark_codec::whisper::{Bloom, HistoryCursor, RequestError, Topic};
use serde::Deserialize;

use super::request::{EnvelopeRequest, TopicChoice};
use crate::object;
use crate::whisper::digits;

/// A request in JSON. An omitted key imposes no condition. Times are seconds since 1970, inclusive.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonHistoryRequest {
    topics: Option<Vec<String>>,
    bloom: Option<String>,
    from: Option<u64>,
    to: Option<u64>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Why a request in JSON is refused. The texts are for clients.
#[derive(Debug, thiserror::Error)]
pub enum JsonRequestFault {
    /// The text is not an object with the right keys and types.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The cursor is malformed.
    #[error("`cursor` is not 36 bytes in hex digits")]
    Cursor,
    /// The bloom filter is malformed.
    #[error("`bloom` is not 64 bytes in hex digits")]
    Bloom,
    /// A topic is malformed.
    #[error("`topics` has {0:?}, which is not 4 bytes")]
    Topic(String),
    /// The request has both topics and a bloom filter.
    #[error("`topics` and `bloom` exclude each other")]
    Both,
    /// The request has too many topics.
    #[error(transparent)]
    TooManyTopics(RequestError),
}

impl EnvelopeRequest {
    /// Reads a request in JSON.
    pub fn read_json(body: &[u8]) -> Result<Self, JsonRequestFault> {
        let json: JsonHistoryRequest = object::read(body)?;
        let after = json.cursor.map(|cursor| {
            let bytes = digits::read_array::<{ HistoryCursor::BYTES }>(&cursor);
            let cursor = bytes.and_then(|bytes| HistoryCursor::read(&bytes));
            cursor.ok_or(JsonRequestFault::Cursor)
        });
        let after = after.transpose()?;
        Ok(Self {
            topics: wanted(json.topics, json.bloom)?,
            from: json.from.unwrap_or(0),
            // A 0 counts as an absent key, here and in `limit`.
            to: Some(json.to.filter(|to| *to > 0).unwrap_or(u64::MAX)),
            limit: json.limit.filter(|limit| *limit > 0),
            after,
            newest_first: false,
        })
    }
}

fn wanted(
    topics: Option<Vec<String>>,
    bloom: Option<String>,
) -> Result<TopicChoice, JsonRequestFault> {
    match (topics, bloom) {
        (Some(_), Some(_)) => Err(JsonRequestFault::Both),
        (Some(topics), None) if topics.len() > TOPICS_MAX => {
            Err(JsonRequestFault::TooManyTopics(RequestError::TooManyTopics(topics.len())))
        }
        (Some(topics), None) => {
            let read = |topic: String| {
                digits::read_array::<4>(&topic).ok_or(JsonRequestFault::Topic(topic))
            };
            let topics: Result<Vec<Topic>, _> = topics.into_iter().map(read).collect();
            Ok(TopicChoice::Listed(topics?))
        }
        (None, Some(bloom)) => {
            let bloom = digits::read_array(&bloom).ok_or(JsonRequestFault::Bloom)?;
            Ok(TopicChoice::Covered(Bloom(bloom)))
        }
        (None, None) => Ok(TopicChoice::All),
    }
}
