//! Filters of envelopes: by topics (or a bloom filter of topics), by hashes, and by the time of
//! sending.

use hark_archive::{LabelSet, Query};
use hark_codec::whisper::record::TOPIC;
use hark_codec::whisper::{Bloom, Topic, bloom};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::digits;
use super::topics::KnownTopics;
use crate::{FilterTextError, Filters, LabelValues, object};

/// Filters of envelopes.
pub(super) struct EnvelopeFilters;

/// A filter in its text form, with values that are not checked yet. An omitted key imposes no
/// condition. Times are seconds since 1970, inclusive.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedEnvelopeFilter {
    topics: Option<Value>,
    bloom: Option<Value>,
    from: Option<Value>,
    to: Option<Value>,
    hashes: Option<Value>,
    limit: Option<Value>,
}

/// The text form that [`Filters::text`] writes.
#[derive(Serialize)]
struct WrittenEnvelopeFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    topics: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hashes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<usize>,
}

/// Why a text is not a filter of envelopes.
#[derive(Debug, thiserror::Error)]
enum EnvelopeFilterError {
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    #[error("`{0}` must be a whole number, not {1}")]
    Number(&'static str, Value),
    #[error("`{0}` must be a list, not {1}")]
    List(&'static str, Value),
    #[error("`{key}` has {item}, which is not {bytes} bytes in hex digits")]
    Item { key: &'static str, item: Value, bytes: usize },
    #[error("`bloom` must be {bytes} bytes in hex digits, not {0}", bytes = bloom::BYTES)]
    Bloom(Value),
    #[error("`topics` and `bloom` exclude each other")]
    Both,
}

impl From<EnvelopeFilterError> for FilterTextError {
    fn from(error: EnvelopeFilterError) -> Self {
        Self::new(error)
    }
}

fn number(key: &'static str, value: Option<Value>) -> Result<Option<u64>, EnvelopeFilterError> {
    let read = |value: Value| value.as_u64().ok_or(EnvelopeFilterError::Number(key, value));
    value.map(read).transpose()
}

/// Reads a list of items of `N` bytes each.
fn list<const N: usize>(
    key: &'static str,
    value: Option<Value>,
) -> Result<Option<Vec<[u8; N]>>, EnvelopeFilterError> {
    let items = match value {
        None => return Ok(None),
        Some(Value::Array(items)) => items,
        Some(value) => return Err(EnvelopeFilterError::List(key, value)),
    };
    let read = |item: Value| {
        let bytes = item.as_str().and_then(digits::read_array);
        bytes.ok_or(EnvelopeFilterError::Item { key, item, bytes: N })
    };
    items.into_iter().map(read).collect::<Result<_, _>>().map(Some)
}

fn read_bloom(value: Option<Value>) -> Result<Option<Bloom>, EnvelopeFilterError> {
    let read = |value: Value| {
        let bytes = value.as_str().and_then(digits::read_array);
        bytes.map(Bloom).ok_or(EnvelopeFilterError::Bloom(value))
    };
    value.map(read).transpose()
}

/// Returns the topics of an archive that a bloom filter covers.
fn covered(bloom: &Bloom, values: &[Box<[u8]>]) -> Vec<Topic> {
    let mut known = KnownTopics::default();
    known.extend(values.iter().filter_map(|value| Topic::try_from(&**value).ok()));
    known.matching(bloom)
}

impl Filters for EnvelopeFilters {
    fn query(&self, text: &str, values: LabelValues<'_>) -> Result<Option<Query>, FilterTextError> {
        let typed: TypedEnvelopeFilter =
            object::read(text.as_bytes()).map_err(EnvelopeFilterError::from)?;
        let bloom = read_bloom(typed.bloom)?;
        if bloom.is_some() && typed.topics.is_some() {
            return Err(EnvelopeFilterError::Both.into());
        }
        let limit = number("limit", typed.limit)?.unwrap_or(u64::MAX);
        let mut query = Query {
            from: number("from", typed.from)?.unwrap_or(0),
            to: number("to", typed.to)?.unwrap_or(u64::MAX),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            ids: list("hashes", typed.hashes)?,
            ..Query::default()
        };
        let topics = match bloom.filter(|bloom| !bloom.is_full()) {
            Some(bloom) => Some(covered(&bloom, &values(TOPIC).ok_or(FilterTextError::Values)?)),
            None => list::<4>("topics", typed.topics)?,
        };
        if let Some(topics) = topics {
            let values = topics.iter().map(|topic| topic[..].into()).collect();
            query.labels.push(LabelSet { name: TOPIC, values });
        }
        query.normalise();
        // The limit is ignored here, because a filter with a limit of 0 is valid although its
        // answer is empty.
        let is_void = Query { limit: query.limit.max(1), ..query.clone() }.is_void();
        Ok((!is_void).then_some(query))
    }

    fn text(&self, query: &Query) -> String {
        let topics = query.labels.iter().find(|label| label.name == TOPIC);
        let written = WrittenEnvelopeFilter {
            topics: topics
                .map(|label| label.values.iter().map(|topic| digits::text(topic)).collect()),
            from: Some(query.from).filter(|from| *from > 0),
            to: Some(query.to).filter(|to| *to < u64::MAX),
            hashes: query.ids.as_ref().map(|ids| ids.iter().map(|id| digits::text(id)).collect()),
            limit: Some(query.limit).filter(|limit| *limit < usize::MAX),
        };
        serde_json::to_string(&written).unwrap_or_default()
    }

    fn example(&self) -> &'static str {
        r#"{"topics":["0x5c6c9b56"],"limit":10}"#
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_queries_or_words_that_say_why_not() {
        let query = |text: &str| EnvelopeFilters.query(text, &mut |_| Some(Vec::new()));
        let hash = "ab".repeat(32);
        let text = format!(
            r#"{{"topics":["0x5C6c9b56","1a2b3c4d","0x5c6c9b56"],"from":3,"to":9,
            "hashes":["0x{hash}"],"limit":7}}"#
        );
        let found = query(&text).unwrap().unwrap();
        assert_eq!((found.from, found.to, found.limit), (3, 9, 7));
        assert_eq!(found.ids, Some(vec![[0xab; 32]]));
        let values: Vec<Box<[u8]>> =
            vec![[0x1a, 0x2b, 0x3c, 0x4d].into(), [0x5c, 0x6c, 0x9b, 0x56].into()];
        assert_eq!(found.labels, [LabelSet { name: b't', values }]);
        let again = format!(
            r#"{{"topics":["0x1a2b3c4d","0x5c6c9b56"],"from":3,"to":9,"hashes":["0x{hash}"],"limit":7}}"#
        );
        assert_eq!(EnvelopeFilters.text(&found), again);
        assert_eq!(query(&again).unwrap(), Some(found));
        assert_eq!(query("{}").unwrap(), Some(Query::default()));
        assert_eq!(query(r#"{"limit":0}"#).unwrap().map(|query| query.limit), Some(0));
        let nothing = [r#"{"topics":[]}"#, r#"{"hashes":[]}"#, r#"{"from":2,"to":1}"#];
        assert!(nothing.iter().all(|text| query(text).unwrap().is_none()));
    }

    #[test]
    fn a_bloom_filter_stands_for_the_topics_of_the_archive_that_it_covers() {
        let (one, two) = ([0x5c, 0x6c, 0x9b, 0x56], [0x1a, 0x2b, 0x3c, 0x4d]);
        let text = format!(r#"{{"bloom":"{}","to":9}}"#, digits::text(&Bloom::of_topic_or(one).0));
        let mut looks = 0;
        let mut values = |name| {
            looks += 1;
            assert_eq!(name, TOPIC);
            Some(vec![one[..].into(), two[..].into(), b"not a topic"[..].into()])
        };
        let found = EnvelopeFilters.query(&text, &mut values).unwrap().unwrap();
        assert_eq!((found.to, &found.labels[..]), (9, &[LabelSet::one(TOPIC, &one)][..]));
        // A full filter covers all topics.
        let full = format!(r#"{{"bloom":"{}"}}"#, digits::text(&Bloom::FULL.0));
        let found = EnvelopeFilters.query(&full, &mut values).unwrap();
        assert_eq!(found, Some(Query::default()));
        assert_eq!(looks, 1);
        let failed = EnvelopeFilters.query(&text, &mut |_| None);
        assert!(matches!(failed, Err(FilterTextError::Values)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let both = format!(r#"{{"topics":[],"bloom":"{}"}}"#, "0".repeat(128));
        for (text, word) in [
            (r#"{"kinds":[1]}"#, "unknown field `kinds`"),
            (r#"{"from":1,"from":2}"#, "duplicate field `from`"),
            (r#"{"bloom":"0xff"}"#, "`bloom` must be 64 bytes in hex digits, not \"0xff\""),
            (r#"{"bloom":7}"#, "`bloom` must be 64 bytes"),
            (&both, "exclude each other"),
            (r#"{"from":"1"}"#, "`from` must be a whole number, not \"1\""),
            (r#"{"to":-1}"#, "`to` must be a whole number, not -1"),
            (r#"{"limit":1.5}"#, "`limit` must be a whole number, not 1.5"),
            (r#"{"topics":"0x5c6c9b56"}"#, "`topics` must be a list"),
            (r#"{"topics":["0x5c6c9b"]}"#, "`topics` has \"0x5c6c9b\", which is not 4 bytes"),
            (r#"{"topics":[7]}"#, "`topics` has 7, which is not 4 bytes"),
            (r#"{"hashes":["xy"]}"#, "`hashes` has \"xy\", which is not 32 bytes"),
            ("[null,null,1,2,null,null]", "expected an object"),
            ("{", "EOF"),
        ] {
            let said = EnvelopeFilters.query(text, &mut |_| Some(Vec::new())).unwrap_err();
            let said = said.to_string();
            assert!(said.contains(word), "{text}: {said}");
        }
    }
}
