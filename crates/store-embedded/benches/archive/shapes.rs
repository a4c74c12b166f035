//! The types of questions that the bench asks.

use hark_archive::Query;
use hark_testkit::events::{Events, RARE_KIND};

use crate::sample::{Sample, hex, label};

pub(crate) type Make = fn(&mut Sample) -> Query;

/// For each type: its name, the reference's median in µs, whether the question is a count, and a
/// function that makes a question.
pub(crate) const SHAPES: [(&str, f64, bool, Make); 17] = [
    ("1 id", 0.8, false, |s| Query { ids: Some(vec![*s.random.pick(&s.ids)]), ..Query::default() }),
    ("20 ids", 17.0, false, |s| {
        let ids = (0..20).map(|_| s.ids[s.random.below(s.ids.len())]).collect();
        Query { ids: Some(ids), ..Query::default() }
    }),
    ("author, 2 kinds, 20", 3.7, false, |s| Query {
        authors: Some(vec![s.author(5_000)]),
        kinds: Some(vec![1, 6]),
        limit: 20,
        ..Query::default()
    }),
    ("home of 200 authors, 100", 22.0, false, |s| Query {
        authors: Some(s.crowd(200)),
        kinds: Some(vec![1]),
        limit: 100,
        ..Query::default()
    }),
    ("thread by #e, 300", 5.5, false, |s| Query {
        labels: label(b'e', vec![hex(&s.thread())]),
        kinds: Some(vec![1]),
        limit: 300,
        ..Query::default()
    }),
    ("notifications #p, 4 kinds, 50", 12.0, false, |s| Query {
        labels: label(b'p', vec![hex(&s.author(5_000))]),
        kinds: Some(vec![1, 6, 7, 9735]),
        limit: 50,
        ..Query::default()
    }),
    ("hashtag, kind 1, 50", 5.6, false, |s| {
        let tag = Events::zipf(&mut s.random, 300);
        Query {
            labels: label(b't', vec![format!("tag{tag}").into_bytes().into()]),
            kinds: Some(vec![1]),
            limit: 50,
            ..Query::default()
        }
    }),
    ("kind 1, 500", 18.0, false, |_| Query {
        kinds: Some(vec![1]),
        limit: 500,
        ..Query::default()
    }),
    ("window of an hour, 500", 80.0, false, |s| {
        let to = s.newest - s.random.below(2_000_000) as u64;
        Query { from: to - 3_600, to, limit: 500, ..Query::default() }
    }),
    ("75 #e values, 500", 50.0, false, |s| Query {
        labels: label(b'e', (0..75).map(|_| hex(&s.note())).collect()),
        limit: 500,
        ..Query::default()
    }),
    ("a value that matches nothing", 1.3, false, |s| Query {
        labels: label(b'e', vec![hex(&s.random.bytes())]),
        ..Query::default()
    }),
    ("common #p, rare kind", 0.9, false, |s| Query {
        labels: label(b'p', vec![hex(&s.author(20))]),
        kinds: Some(vec![RARE_KIND + 1]),
        ..Query::default()
    }),
    ("200 authors, rare kind, 50", 14.0, false, |s| Query {
        authors: Some(s.crowd(200)),
        kinds: Some(vec![RARE_KIND]),
        limit: 50,
        ..Query::default()
    }),
    ("latest 100", 4.3, false, |_| Query { limit: 100, ..Query::default() }),
    ("deep page of an author, 500", 58.0, false, |s| {
        let to = s.newest - 1_000_000 - s.random.below(1_000_000) as u64;
        Query { authors: Some(vec![s.authors[0]]), to, limit: 500, ..Query::default() }
    }),
    ("count of a common #p", 3.1, true, |s| Query {
        labels: label(b'p', vec![hex(&s.author(20))]),
        ..Query::default()
    }),
    ("count of kind 1, 3 days", 1.5, true, |s| {
        let to = s.newest - s.random.below(2_000_000) as u64;
        Query { kinds: Some(vec![1]), from: to - 259_200, to, ..Query::default() }
    }),
];
