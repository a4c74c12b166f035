//! Filters of NIP-01, as typed.

use hark_archive::Query;
use hark_codec::nostr::Filter;

use super::query;
use crate::Filters;

/// Filters of events.
pub(super) struct EventFilters;

impl Filters for EventFilters {
    fn query(&self, text: &str) -> Result<Option<Query>, String> {
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

    fn example(&self) -> &'static str {
        r#"{"kinds":[1],"limit":10}"#
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_queries_or_words_that_say_why_not() {
        let query = |text| EventFilters.query(text);
        let found = query(r#"{"kinds":[7,1],"limit":3}"#).unwrap().unwrap();
        assert_eq!((found.kinds, found.limit), (Some(vec![1, 7]), 3));
        assert_eq!(query(r#"{"kinds":[]}"#), Ok(None));
        assert!(query(r#"{"search":"x"}"#).unwrap_err().contains("full-text"));
        assert!(query("{").is_err() && query(r#"{"kinds":["a"]}"#).is_err());
    }
}
