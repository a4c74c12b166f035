//! The text format of filters: the JSON of NIP-01.

use std::borrow::Cow;

use hark_archive::{LabelSet, Query};
use hark_codec::hex;
use hark_codec::nostr::{Filter, FilterError, npub};
use hark_words::SearchTextError;
use serde_json::Value;

use super::query::{self, SearchRefusal};
use crate::{FilterTextError, Filters, LabelValues, SearchedTexts};

/// Filters of events.
pub(super) struct EventFilters;

impl Filters for EventFilters {
    fn query(&self, text: &str, values: LabelValues<'_>) -> Result<Option<Query>, FilterTextError> {
        self.searching_query(text, values, None)
    }

    fn searching_query(
        &self,
        text: &str,
        _: LabelValues<'_>,
        texts: SearchedTexts<'_>,
    ) -> Result<Option<Query>, FilterTextError> {
        read(text, texts).map_err(FilterTextError::new)
    }

    fn text(&self, query: &Query) -> String {
        let mut fields = Vec::new();
        let keys = |keys: &[[u8; 32]]| list(keys.iter().map(hex::text_32));
        if let Some(ids) = &query.ids {
            fields.push(format!("\"ids\":{}", keys(ids)));
        }
        if let Some(authors) = &query.authors {
            fields.push(format!("\"authors\":{}", keys(authors)));
        }
        if let Some(kinds) = &query.kinds {
            fields.push(format!("\"kinds\":{kinds:?}").replace(", ", ","));
        }
        for (at, label) in query.labels.iter().enumerate() {
            let same = |other: &&LabelSet| other.name == label.name;
            let is_alone = query.labels.iter().filter(same).count() == 1;
            if is_alone || label.values.len() != 1 {
                fields.push(tag('#', label.name, &label.values));
            } else if !query.labels[..at].iter().filter(same).any(|other| other.values.len() == 1) {
                // Several conditions with one value each are written as one `&` condition (NIP-91).
                let wanted = query.labels.iter().filter(same).filter(|set| set.values.len() == 1);
                fields.push(tag('&', label.name, wanted.flat_map(|set| &set.values)));
            }
        }
        if query.from > 0 {
            fields.push(format!("\"since\":{}", query.from));
        }
        if query.to < u64::MAX {
            fields.push(format!("\"until\":{}", query.to));
        }
        if query.limit < usize::MAX {
            fields.push(format!("\"limit\":{}", query.limit));
        }
        if let Some(words) = &query.words {
            fields.push(format!("\"search\":{}", Value::from(words.text())));
        }
        format!("{{{}}}", fields.join(","))
    }

    fn example(&self) -> &'static str {
        r#"{"kinds":[1],"limit":10}"#
    }
}

/// Why a text is not a filter of events, or is a filter that cannot be answered.
#[derive(Debug, thiserror::Error)]
enum EventFilterError {
    #[error(transparent)]
    Form(#[from] FilterError),
    #[error("it searches for words, and none are indexed here")]
    NotIndexed,
    #[error(transparent)]
    Search(SearchTextError),
    #[error("{0} is no public key: a character is wrong")]
    NoKey(String),
}

impl From<SearchRefusal> for EventFilterError {
    fn from(refusal: SearchRefusal) -> Self {
        match refusal {
            SearchRefusal::NotOffered => Self::NotIndexed,
            SearchRefusal::TooMuch(error) => Self::Search(error),
        }
    }
}

fn read(text: &str, texts: SearchedTexts<'_>) -> Result<Option<Query>, EventFilterError> {
    let text = with_hex_keys(text)?;
    let mut filter = Filter::default();
    filter.parse(text.as_bytes())?;
    let query = query::of(&filter, texts)?;
    Ok((!filter.matches_nothing()).then_some(query))
}

/// Returns the filter with hex keys in place of `npub1…` keys.
fn with_hex_keys(text: &str) -> Result<Cow<'_, str>, EventFilterError> {
    if !text.to_ascii_lowercase().contains("\"npub1") {
        return Ok(text.into());
    }
    // The parser of filters reports text that is not JSON.
    let Ok(mut filter) = serde_json::from_str::<Value>(text) else { return Ok(text.into()) };
    for name in ["authors", "#p", "#P", "&p", "&P"] {
        let Some(values) = filter.get_mut(name).and_then(Value::as_array_mut) else { continue };
        for value in values {
            let Some(typed) = value.as_str() else { continue };
            if typed.to_ascii_lowercase().starts_with("npub1") {
                let key =
                    npub::decode(typed).ok_or_else(|| EventFilterError::NoKey(typed.to_owned()))?;
                *value = hex::text_32(&key).into();
            }
        }
    }
    Ok(filter.to_string().into())
}

/// Returns a condition on tags as a field of a filter.
fn tag<'a>(sign: char, name: u8, values: impl IntoIterator<Item = &'a Box<[u8]>>) -> String {
    let values = values.into_iter().map(|value| String::from_utf8_lossy(value).into_owned());
    format!("\"{sign}{}\":{}", char::from(name), list(values))
}

fn list(values: impl Iterator<Item = String>) -> String {
    values.collect::<serde_json::Value>().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_queries_or_words_that_say_why_not() {
        let query = |text| EventFilters.query(text, &mut |_| Some(Vec::new()));
        let found = query(r#"{"kinds":[7,1],"limit":3}"#).unwrap().unwrap();
        assert_eq!((found.kinds, found.limit), (Some(vec![1, 7]), 3));
        assert_eq!(query(r#"{"kinds":[]}"#).unwrap(), None);
        let refused = query(r#"{"search":"x"}"#).unwrap_err();
        assert!(refused.to_string().contains("searches for words"));
        assert!(query("{").is_err() && query(r#"{"kinds":["a"]}"#).is_err());
    }

    #[test]
    fn keys_are_typed_in_hex_or_as_npub() {
        const NPUB: &str = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
        const HEX: &str = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";
        let query = |text: &str| EventFilters.query(text, &mut |_| Some(Vec::new()));
        for filter in [r#"{"authors":["KEY"],"kinds":[1]}"#, r##"{"#p":["KEY"],"#t":["npub1"]}"##] {
            let [npub, hex] = [NPUB, HEX].map(|key| query(&filter.replace("KEY", key)).unwrap());
            assert_eq!(npub, hex, "{filter}");
        }
        let wrong = format!(r#"{{"authors":["{}"]}}"#, NPUB.replace("elf", "eif"));
        assert!(query(&wrong).unwrap_err().to_string().contains("a character is wrong"));
    }

    #[test]
    fn a_query_is_written_as_the_filter_that_asks_it() {
        let key = "ab".repeat(32);
        for json in [
            "{}".to_owned(),
            format!(r#"{{"ids":["{key}"],"kinds":[1,7],"since":3,"until":9,"limit":20}}"#),
            format!(r##"{{"authors":["{key}"],"#t":["\\","a\"b"],"limit":0}}"##),
            r##"{"#q":["c","d"],"#t":["a","b"],"&t":["x","y"]}"##.to_owned(),
            r#"{"&t":["x","y"]}"#.to_owned(),
        ] {
            let mut filter = Filter::default();
            filter.parse(json.as_bytes()).unwrap();
            assert_eq!(EventFilters.text(&query::of(&filter, None).unwrap()), json);
        }
    }
}
