//! Filters of NIP-01, as people type them.

use hark_archive::Query;
use hark_codec::hex;
use hark_codec::nostr::Filter;

use super::query;
use crate::{Filters, LabelValues};

/// Filters of events.
pub(super) struct EventFilters;

impl Filters for EventFilters {
    fn query(&self, text: &str, _: LabelValues<'_>) -> Result<Option<Query>, String> {
        let mut filter = Filter::default();
        filter.parse(text.as_bytes()).map_err(|error| {
            let said = error.to_string();
            said.split_once(": ").map_or(said.as_str(), |(_, words)| words).to_owned()
        })?;
        if filter.search().is_some() {
            return Err("it asks for a full-text search, which this archive has not".into());
        }
        Ok((!filter.matches_nothing()).then(|| query::of(&filter)))
    }

    fn text(&self, query: &Query) -> String {
        let mut fields = Vec::new();
        let keys = |keys: &[[u8; 32]]| {
            list(keys.iter().map(|key| String::from_utf8_lossy(&hex::encode_32(key)).into_owned()))
        };
        if let Some(ids) = &query.ids {
            fields.push(format!("\"ids\":{}", keys(ids)));
        }
        if let Some(authors) = &query.authors {
            fields.push(format!("\"authors\":{}", keys(authors)));
        }
        if let Some(kinds) = &query.kinds {
            fields.push(format!("\"kinds\":{kinds:?}").replace(", ", ","));
        }
        for label in &query.labels {
            let values = label.values.iter();
            let values = list(values.map(|value| String::from_utf8_lossy(value).into_owned()));
            fields.push(format!("\"#{}\":{values}", char::from(label.name)));
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
        format!("{{{}}}", fields.join(","))
    }

    fn example(&self) -> &'static str {
        r#"{"kinds":[1],"limit":10}"#
    }
}

fn list(values: impl Iterator<Item = String>) -> String {
    values.collect::<serde_json::Value>().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_queries_or_words_that_say_why_not() {
        let query = |text| EventFilters.query(text, &mut |_| Ok(Vec::new()));
        let found = query(r#"{"kinds":[7,1],"limit":3}"#).unwrap().unwrap();
        assert_eq!((found.kinds, found.limit), (Some(vec![1, 7]), 3));
        assert_eq!(query(r#"{"kinds":[]}"#), Ok(None));
        assert!(query(r#"{"search":"x"}"#).unwrap_err().contains("full-text"));
        assert!(query("{").is_err() && query(r#"{"kinds":["a"]}"#).is_err());
    }

    #[test]
    fn a_query_is_written_as_the_filter_that_asks_it() {
        let key = "ab".repeat(32);
        for json in [
            "{}".to_owned(),
            format!(r#"{{"ids":["{key}"],"kinds":[1,7],"since":3,"until":9,"limit":20}}"#),
            format!(r##"{{"authors":["{key}"],"#t":["\\","a\"b"],"limit":0}}"##),
        ] {
            let mut filter = Filter::default();
            filter.parse(json.as_bytes()).unwrap();
            assert_eq!(EventFilters.text(&query::of(&filter)), json);
        }
    }
}
