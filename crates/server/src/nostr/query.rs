//! A filter as the archive's question.

use hark_archive::limits::Limits;
use hark_archive::{LabelSet, Query};
use hark_codec::nostr::Filter;

/// The conditions and the limit of `filter`. Time of asking, budget and gate are the caller's.
pub fn of(filter: &Filter) -> Query {
    let labels = filter.tags().map(|(name, values)| LabelSet {
        name,
        values: values.iter().map(|value| value.as_bytes().into()).collect(),
    });
    let mut query = Query {
        ids: filter.ids().map(<[_]>::to_vec),
        authors: filter.authors().map(<[_]>::to_vec),
        kinds: filter.kinds().map(|kinds| kinds.iter().map(|kind| u32::from(*kind)).collect()),
        labels: labels.collect(),
        from: filter.since().unwrap_or(0),
        to: filter.until().unwrap_or(u64::MAX),
        limit: filter.limit().map_or(usize::MAX, |limit| limit as usize),
        ..Query::default()
    };
    query.normalise();
    query
}

/// The question that a client asks at the door: what it may see, and at what expense.
pub(super) fn at_door(filter: &Filter, limits: &Limits, now_s: u64) -> Query {
    let query = of(filter);
    let limit = filter.limit().map_or(limits.limit_default, |_| query.limit.min(limits.limit_max));
    Query { now: now_s, budget: limits.query_rows_max, limit, gate: None, ..query }
}

/// How many values `filter` lists.
pub(super) fn values(filter: &Filter) -> usize {
    filter.ids().map_or(0, <[_]>::len)
        + filter.authors().map_or(0, <[_]>::len)
        + filter.kinds().map_or(0, <[_]>::len)
        + filter.tags().map(|(_, values)| values.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(json: &str) -> Filter {
        let mut filter = Filter::default();
        filter.parse(json.as_bytes()).unwrap();
        filter
    }

    #[test]
    fn a_filter_becomes_the_same_question() {
        let key = "ab".repeat(32);
        let json = format!(
            r##"{{"authors":["{key}"],"kinds":[7,1],"#t":["b","a","b"],"since":3,"until":9}}"##
        );
        let query = at_door(&filter(&json), &Limits::default(), 77);
        assert_eq!(query.authors, Some(vec![[0xab; 32]]));
        assert_eq!(query.kinds, Some(vec![1, 7]));
        let values: Vec<Box<[u8]>> = vec![b"a"[..].into(), b"b"[..].into()];
        assert_eq!(query.labels, [LabelSet { name: b't', values }]);
        assert_eq!((query.from, query.to, query.now, query.limit), (3, 9, 77, 500));
        assert_eq!(values_of(&json), 5);
    }

    fn values_of(json: &str) -> usize {
        super::values(&filter(json))
    }

    #[test]
    fn the_limit_is_the_clients_up_to_the_bound() {
        let limit = |json| at_door(&filter(json), &Limits::default(), 0).limit;
        assert_eq!([limit("{}"), limit(r#"{"limit":0}"#), limit(r#"{"limit":7}"#)], [500, 0, 7]);
        assert_eq!(limit(r#"{"limit":999999}"#), 5_000);
    }
}
