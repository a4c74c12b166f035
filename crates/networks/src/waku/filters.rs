//! Filters with the field names of nwaku's REST API for its store.

use hark_archive::{Id, LabelSet, Query};
use hark_codec::hex;
use hark_codec::waku::topic;
use serde::{Deserialize, Serialize};

use super::json::read_hash;
use crate::{FilterTextError, Filters, LabelValues, object};

/// Filters of messages.
pub(super) struct MessageFilters;

/// A filter in its text form. An omitted field imposes no condition. Times are nanoseconds since
/// 1970.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct RawFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    content_topics: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pubsub_topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hashes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_size: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a hash of 64 hex digits")]
struct NoHash(String);

impl Filters for MessageFilters {
    fn query(&self, text: &str, _: LabelValues<'_>) -> Result<Option<Query>, FilterTextError> {
        let typed: RawFilter = object::read(text.as_bytes()).map_err(FilterTextError::new)?;
        let mut query = Query {
            from: typed.start_time.unwrap_or(0),
            to: typed.end_time.unwrap_or(u64::MAX),
            limit: typed.page_size.unwrap_or(usize::MAX),
            ..Query::default()
        };
        if let Some(topic) = &typed.pubsub_topic {
            query.labels.push(LabelSet::one(topic::PUBSUB, topic.as_bytes()));
        }
        if let Some(topics) = typed.content_topics {
            let values = topics.iter().map(|topic| topic.as_bytes().into()).collect();
            query.labels.push(LabelSet { name: topic::CONTENT, values });
        }
        if let Some(hashes) = typed.hashes {
            let read = |text: String| read_hash(&text).ok_or(NoHash(text));
            let hashes = hashes.into_iter().map(read).collect::<Result<Vec<Id>, _>>();
            query.ids = Some(hashes.map_err(FilterTextError::new)?);
        }
        query.normalise();
        // The limit is ignored here, because a filter with a limit of 0 is valid although its
        // answer is empty.
        let limit = query.limit.max(1);
        let is_void = Query { limit, ..query.clone() }.is_void();
        Ok((!is_void).then_some(query))
    }

    fn text(&self, query: &Query) -> String {
        let hex = |hash: &Id| format!("0x{}", hex::text_32(hash));
        let label = |name| {
            let label = query.labels.iter().find(|label| label.name == name)?;
            let values =
                label.values.iter().map(|value| String::from_utf8_lossy(value).into_owned());
            Some(values.collect::<Vec<_>>())
        };
        let typed = RawFilter {
            content_topics: label(topic::CONTENT),
            pubsub_topic: label(topic::PUBSUB).and_then(|topics| topics.into_iter().next()),
            start_time: Some(query.from).filter(|from| *from > 0),
            end_time: Some(query.to).filter(|to| *to < u64::MAX),
            hashes: query.ids.as_ref().map(|ids| ids.iter().map(hex).collect()),
            page_size: Some(query.limit).filter(|limit| *limit < usize::MAX),
        };
        serde_json::to_string(&typed).unwrap_or_default()
    }

    fn example(&self) -> &'static str {
        r#"{"contentTopics":["/app/1/chat/proto"],"pageSize":10}"#
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_queries_or_words_that_say_why_not() {
        let query = |text: &str| MessageFilters.query(text, &mut |_| Some(Vec::new()));
        let hash = "ab".repeat(32);
        let text = format!(
            r#"{{"contentTopics":["/b","/a","/b"],"pubsubTopic":"/p","startTime":3,"endTime":9,
            "hashes":["0x{hash}"],"pageSize":7}}"#
        );
        let found = query(&text).unwrap().unwrap();
        assert_eq!((found.from, found.to, found.limit), (3, 9, 7));
        assert_eq!(found.ids, Some(vec![[0xab; 32]]));
        let values: Vec<Box<[u8]>> = vec![b"/a"[..].into(), b"/b"[..].into()];
        let content = LabelSet { name: topic::CONTENT, values };
        assert_eq!(found.labels, [LabelSet::one(topic::PUBSUB, b"/p"), content]);
        assert_eq!(query("{}").unwrap().unwrap().limit, usize::MAX);
        let again = format!(
            r#"{{"contentTopics":["/a","/b"],"pubsubTopic":"/p","startTime":3,"endTime":9,"hashes":["0x{hash}"],"pageSize":7}}"#
        );
        assert_eq!(MessageFilters.text(&found), again);
        assert_eq!(query(&again).unwrap(), Some(found));
        let nothing =
            [r#"{"contentTopics":[]}"#, r#"{"hashes":[]}"#, r#"{"startTime":2,"endTime":1}"#];
        assert!(nothing.iter().all(|text| query(text).unwrap().is_none()));
        assert!(query(r#"{"hashes":["xy"]}"#).unwrap_err().to_string().contains("is not a hash"));
        assert!(query(r#"{"kinds":[1]}"#).unwrap_err().to_string().contains("unknown field"));
    }
}
