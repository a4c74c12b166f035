//! Maps filters to queries of the archive.

use std::sync::Arc;

use hark_archive::{Gate, LabelSet, Query, WordCondition};
use hark_codec::nostr::Filter;
use hark_words::{SearchText, SearchTextError};

use super::limits::FilterLimits;
use super::refusal::{NostrRefusal, NostrVerdict};
use crate::SearchedTexts;

/// Why a filter's search is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchRefusal {
    /// Searching for words is not enabled.
    #[error("search is not offered")]
    NotOffered,
    /// The search text exceeds a bound.
    #[error("{0}")]
    TooMuch(SearchTextError),
}

impl From<SearchRefusal> for NostrRefusal {
    fn from(refusal: SearchRefusal) -> Self {
        let verdict = match refusal {
            SearchRefusal::NotOffered => NostrVerdict::Unsupported,
            SearchRefusal::TooMuch(_) => NostrVerdict::Invalid,
        };
        verdict.because(refusal.to_string())
    }
}

/// Maps the conditions and the limit of `filter` to a query. The caller sets `now`, `budget` and
/// `gate`. If the filter searches for words, the best matches come first; `texts` are the searched
/// texts.
///
/// ```
/// use hark_codec::nostr::Filter;
/// use hark_networks::nostr::query::{SearchRefusal, of};
///
/// let mut filter = Filter::default();
/// filter.parse(br#"{"kinds":[7,1],"since":3,"limit":10}"#)?;
/// let query = of(&filter, None)?;
/// assert_eq!((query.kinds, query.from, query.limit), (Some(vec![1, 7]), 3, 10));
///
/// filter.parse(br#"{"search":"bread"}"#)?;
/// assert_eq!(of(&filter, None), Err(SearchRefusal::NotOffered));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn of(filter: &Filter, texts: SearchedTexts<'_>) -> Result<Query, SearchRefusal> {
    let words = match (filter.search(), texts) {
        (None, _) => None,
        (Some(_), None) => return Err(SearchRefusal::NotOffered),
        (Some(text), Some(texts)) => SearchText::parse(text)
            .map_err(SearchRefusal::TooMuch)?
            .map(|asked| Arc::new(WordCondition::new(asked, Arc::clone(texts)))),
    };
    let labels = filter.tags().map(|(name, values)| LabelSet {
        name,
        values: values.iter().map(|value| value.as_bytes().into()).collect(),
    });
    let wanted = filter.and_tags();
    let wanted = wanted.flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    let labels = labels.chain(wanted.map(|(name, value)| LabelSet::one(name, value.as_bytes())));
    let mut query = Query {
        ids: filter.ids().map(<[_]>::to_vec),
        authors: filter.authors().map(<[_]>::to_vec),
        kinds: filter.kinds().map(|kinds| kinds.iter().map(|kind| u32::from(*kind)).collect()),
        labels: labels.collect(),
        ranked: words.is_some(),
        words,
        from: filter.since().unwrap_or(0),
        to: filter.until().unwrap_or(u64::MAX),
        limit: filter.limit().map_or(usize::MAX, |limit| limit as usize),
        ..Query::default()
    };
    query.normalise();
    Ok(query)
}

/// Maps a client's filters to queries that obey the limits. The queries have no gate yet. Fails if
/// a search cannot be carried out.
pub fn within(
    filters: &[Filter],
    limits: &FilterLimits,
    now_s: u64,
    texts: SearchedTexts<'_>,
) -> Result<Vec<Query>, NostrRefusal> {
    let mut queries = Vec::with_capacity(filters.len());
    for filter in filters {
        let query = of(filter, texts)?;
        let asked = filter.limit().map(|_| query.limit.min(limits.limit_max));
        let limit = asked.unwrap_or(limits.limit_default);
        queries.push(Query { now: now_s, budget: limits.query_rows_max, limit, ..query });
    }
    Ok(queries)
}

/// Restricts the queries of one question to the records that the gate lets its readers see. Fails
/// if the client is not authenticated and the queries name only restricted kinds.
pub fn close(queries: &mut [Query], gate: &Arc<Gate>) -> Result<(), NostrRefusal> {
    if gate.readers.is_empty() && queries.iter().all(|query| is_private(query, gate)) {
        let words = "these kinds are for their author and recipients only";
        return Err(NostrVerdict::AuthRequired.because(words));
    }
    for query in queries {
        apply(gate, query);
    }
    Ok(())
}

/// Whether a query names kinds, and the gate restricts all of these kinds.
fn is_private(query: &Query, gate: &Gate) -> bool {
    let private = |kind| gate.kinds.binary_search(kind).is_ok();
    query.kinds.as_ref().is_some_and(|kinds| !kinds.is_empty() && kinds.iter().all(private))
}

/// Restricts a query to the records that its reader may see. A client that is not authenticated
/// sees no records of the restricted kinds, so these kinds are removed from the query. Even a query
/// for unrestricted kinds gets the gate. Otherwise its plan could depend on the number of hidden
/// records.
fn apply(gate: &Arc<Gate>, query: &mut Query) {
    if gate.readers.is_empty()
        && let Some(kinds) = &mut query.kinds
    {
        kinds.retain(|kind| gate.kinds.binary_search(kind).is_err());
    }
    query.gate = (!gate.kinds.is_empty()).then(|| Arc::clone(gate));
}

/// Maximum number of values of `&` tags in a filter. Each record that may match is checked for each
/// of these values, so more values cost more.
pub const AND_VALUES_MAX: usize = 32;

/// Returns the number of values of `&` tags. A record must have every one of these values.
pub fn and_values(filter: &Filter) -> usize {
    filter.and_tags().map(|(_, values)| values.len()).sum()
}

/// Returns the number of stored records that may be sent for `filter` beyond the default limit, so
/// that the answer does not separate events of the same second. In total, at most `limit_max`
/// records are sent. Returns 0 for a filter with a limit, and for a search, because its results are
/// not ordered by time.
pub fn room(filter: &Filter, limits: &FilterLimits) -> usize {
    if filter.search().is_some() || filter.limit().is_some() {
        return 0;
    }
    limits.limit_max.saturating_sub(limits.limit_default)
}

/// Returns the number of values in `filter`.
pub fn values(filter: &Filter) -> usize {
    filter.ids().map_or(0, <[_]>::len)
        + filter.authors().map_or(0, <[_]>::len)
        + filter.kinds().map_or(0, <[_]>::len)
        + filter.tags().chain(filter.and_tags()).map(|(_, values)| values.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use hark_archive::TextSource;

    use super::*;
    use crate::nostr::texts::TextChoice;

    fn filter(json: &str) -> Filter {
        let mut filter = Filter::default();
        filter.parse(json.as_bytes()).unwrap();
        filter
    }

    fn asked(json: &str, gate: &Arc<Gate>) -> Result<Query, NostrRefusal> {
        let filters = [filter(json)];
        let mut queries = within(&filters, &FilterLimits::default(), 77, Some(&texts()))?;
        close(&mut queries, gate)?;
        Ok(queries.remove(0))
    }

    fn texts() -> Arc<dyn TextSource> {
        TextChoice::default().source(&[])
    }

    #[test]
    fn a_search_is_a_condition_on_words_and_ranks() {
        let one = asked(r#"{"search":"fox include:spam","limit":3}"#, &gate(None)).unwrap();
        assert!(one.ranked && one.words.is_some_and(|words| words.text() == "fox include:spam"));
        let none = asked(r#"{"search":"include:spam"}"#, &gate(None)).unwrap();
        assert!(!none.ranked && none.words.is_none());
        assert!(asked(r#"{"search":"!"}"#, &gate(None)).unwrap().is_void());
        let long = format!(r#"{{"search":"{}"}}"#, "x".repeat(2_000));
        assert!(asked(&long, &gate(None)).unwrap_err().verdict == NostrVerdict::Invalid);
        let refused = of(&filter(r#"{"search":"fox"}"#), None);
        assert_eq!(refused.unwrap_err(), SearchRefusal::NotOffered);
    }

    /// The gate for this reader, or for a client that is not authenticated.
    fn gate(reader: Option<[u8; 32]>) -> Arc<Gate> {
        let readers: Vec<[u8; 32]> = reader.into_iter().collect();
        let values = readers.iter().map(|key| hark_codec::hex::encode_32(key)[..].into()).collect();
        let addressed = LabelSet { name: b'p', values };
        Gate { kinds: vec![4, 1059], readers, addressed }.into()
    }

    #[test]
    fn a_filter_becomes_the_same_question() {
        let key = "ab".repeat(32);
        let json = format!(
            r##"{{"authors":["{key}"],"kinds":[7,1],"#t":["b","a","b"],"since":3,"until":9}}"##
        );
        let query = asked(&json, &gate(None)).unwrap();
        assert_eq!(query.authors, Some(vec![[0xab; 32]]));
        assert_eq!(query.kinds, Some(vec![1, 7]));
        let two: Vec<Box<[u8]>> = vec![b"a"[..].into(), b"b"[..].into()];
        assert_eq!(query.labels, [LabelSet { name: b't', values: two }]);
        assert_eq!((query.from, query.to, query.now, query.limit), (3, 9, 77, 500));
        assert_eq!(values(&filter(&json)), 5);
    }

    #[test]
    fn the_limit_is_the_clients_up_to_the_bound() {
        let limit = |json| asked(json, &gate(None)).unwrap().limit;
        assert_eq!([limit("{}"), limit(r#"{"limit":0}"#), limit(r#"{"limit":7}"#)], [500, 0, 7]);
        assert_eq!(limit(r#"{"limit":999999}"#), 5_000);
    }

    #[test]
    fn room_is_there_where_the_relays_bound_cuts_and_never_beyond_what_is_wanted() {
        let room = |json| super::room(&filter(json), &FilterLimits::default());
        assert_eq!([room(r#"{"limit":0}"#), room(r#"{"limit":5000}"#), room("{}")], [0, 0, 4_500]);
        assert_eq!([room(r#"{"limit":5003}"#), room(r#"{"limit":99999}"#)], [0, 0]);
    }

    #[test]
    fn the_gate_stands_where_it_matters_and_says_so_where_nothing_is_left() {
        let (stranger, reader) = (gate(None), gate(Some([0xab; 32])));
        let private = r#"{"kinds":[1059,4]}"#;
        let refused = asked(private, &stranger).unwrap_err();
        assert_eq!(refused.verdict, NostrVerdict::AuthRequired);
        assert_eq!(asked(private, &reader).unwrap().gate.as_ref(), Some(&reader));
        let mixed = r#"{"kinds":[1,4]}"#;
        assert_eq!(asked(mixed, &stranger).unwrap().kinds, Some(vec![1]));
        assert_eq!(asked(mixed, &reader).unwrap().kinds, Some(vec![1, 4]));
        for gate in [&stranger, &reader] {
            for json in ["{}", r#"{"kinds":[1]}"#] {
                assert_eq!(asked(json, gate).unwrap().gate.as_ref(), Some(gate));
            }
            assert!(asked(r#"{"kinds":[]}"#, gate).is_ok());
        }
        let both = [filter(private), filter(mixed)];
        let mut queries = within(&both, &FilterLimits::default(), 0, None).unwrap();
        close(&mut queries, &stranger).unwrap();
        assert!(queries[0].is_void() && !queries[1].is_void());
    }
}
