//! Where a stored answer and the live feed of the same subscription meet: no gap, no double.
//!
//! The subscription listens before its searches are opened, so nothing is missed. Each search says
//! up to which number its snapshot sees, so what it saw is known by number. With several queries the
//! snapshots differ: a record is new if some query that it matches had not seen it, and it was not
//! told through another.

use std::collections::VecDeque;

use super::{News, Told};
use crate::query::Query;

pub(super) struct Seam {
    /// Per query, up to which number its search saw. None until it is opened.
    snapshots: Vec<Option<u64>>,
    stage: Stage,
}

enum Stage {
    /// The stored answer is being told.
    Stored { held: VecDeque<News>, held_bytes: usize, held_bytes_max: usize },
    /// Live. What was told is remembered until every number the snapshots saw has come by.
    Live { told: Told, settled: bool },
    /// Too much was held.
    Over,
}

/// What is to be done with a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Deliver,
    Nothing,
    Overflow,
}

impl Seam {
    pub(super) fn new(queries: usize, held_bytes_max: usize) -> Self {
        let held = VecDeque::new();
        Self {
            snapshots: vec![None; queries],
            stage: Stage::Stored { held, held_bytes: 0, held_bytes_max },
        }
    }

    pub(super) fn opened(&mut self, index: usize, seq: u64) {
        if let Some(snapshot) = self.snapshots.get_mut(index) {
            *snapshot = Some(seq);
        }
    }

    pub(super) fn offer(&mut self, news: &News, queries: &[Query]) -> Next {
        match &mut self.stage {
            Stage::Stored { held, held_bytes, held_bytes_max } => {
                if seen_by_all(&self.snapshots, news) {
                    return Next::Nothing;
                }
                *held_bytes += news.size() + size_of::<News>();
                if *held_bytes > *held_bytes_max {
                    self.stage = Stage::Over;
                    return Next::Overflow;
                }
                held.push_back(news.clone());
                Next::Nothing
            }
            Stage::Live { told, settled } => {
                if *settled {
                    return Next::Deliver;
                }
                let new = is_new(&self.snapshots, told, news, queries);
                if news.seq.is_some_and(|seq| seq >= last(&self.snapshots)) {
                    *settled = true;
                    *told = Told::new();
                }
                if new { Next::Deliver } else { Next::Nothing }
            }
            Stage::Over => Next::Nothing,
        }
    }

    /// Goes live. `published` is the number up to which everything has been offered.
    pub(super) fn release(
        &mut self,
        told: Told,
        published: u64,
        queries: &[Query],
        mut deliver: impl FnMut(News),
    ) {
        let Stage::Stored { held, .. } = &mut self.stage else { return };
        for news in std::mem::take(held) {
            if is_new(&self.snapshots, &told, &news, queries) {
                deliver(news);
            }
        }
        let settled = published >= last(&self.snapshots);
        let told = if settled { Told::new() } else { told };
        self.stage = Stage::Live { told, settled };
    }
}

/// The number up to which some search saw.
fn last(snapshots: &[Option<u64>]) -> u64 {
    snapshots.iter().flatten().max().copied().unwrap_or(0)
}

/// Whether every search is open and saw the record, so that it need not even be held.
fn seen_by_all(snapshots: &[Option<u64>], news: &News) -> bool {
    news.seq.is_some_and(|seq| snapshots.iter().all(|snapshot| snapshot.is_some_and(|s| seq <= s)))
}

fn is_new(snapshots: &[Option<u64>], told: &Told, news: &News, queries: &[Query]) -> bool {
    let Some(seq) = news.seq else { return true };
    let unseen = |(snapshot, query): (&Option<u64>, &Query)| {
        snapshot.is_none_or(|seen| seq > seen) && news.matches(query)
    };
    snapshots.iter().zip(queries).any(unseen) && !news.is_among(told)
}
