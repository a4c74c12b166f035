//! Answering from many sources as if they were one: opened lazily, merged by (time, id).

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_codec::record::Record;

use super::cursor::{AnyWalk, Step, Walk, count, explain};
use super::explain::{Explanation, Step as Line};
use super::plan::describe;
use super::source::Source;
use super::{Order, Query};
use crate::store::{Progress, Search, SearchError};

/// A source whose kind does not matter any more.
pub trait Part: Send + Sync {
    /// Oldest and newest time in it.
    fn span(&self) -> Option<(u64, u64)>;
    /// Starts a walk; `None` if nothing can match.
    fn walk(self: Arc<Self>, query: &Arc<Query>) -> Option<Box<dyn AnyWalk>>;
    /// Counts matches.
    fn count(self: Arc<Self>, query: &Arc<Query>, work: &mut u64) -> Option<u64>;
    /// The plan as a line, and how many matches it expects.
    fn explain(&self, query: &Query) -> Option<(Line, u64)>;
}

impl<S: Source> Part for S {
    fn span(&self) -> Option<(u64, u64)> {
        Source::span(self)
    }

    fn walk(self: Arc<Self>, query: &Arc<Query>) -> Option<Box<dyn AnyWalk>> {
        let walk = Walk::new(self, Arc::clone(query))?;
        Some(Box::new(walk))
    }

    fn count(self: Arc<Self>, query: &Arc<Query>, work: &mut u64) -> Option<u64> {
        count(&self, query, work)
    }

    fn explain(&self, query: &Query) -> Option<(Line, u64)> {
        let plan = explain(self, query)?;
        let words = |sets: &[_]| sets.iter().map(|&set| describe(set, query)).collect();
        let line = Line {
            source: self.name(),
            rows: self.rows(),
            driver: describe(plan.driver, query),
            intersect: words(&plan.cuts),
            residual: words(&plan.residual),
            estimate: plan.estimate,
        };
        Some((line, plan.matches))
    }
}

/// The time at which a part comes into play, as a key that grows in the query's order.
fn opens_at(part: &dyn Part, order: Order) -> Option<u64> {
    let (oldest, newest) = part.span()?;
    Some(time_key(if order == Order::NewestFirst { newest } else { oldest }, order))
}

fn time_key(time: u64, order: Order) -> u64 {
    if order == Order::NewestFirst { !time } else { time }
}

/// Parts that can hold matches, in the order in which they come into play.
fn in_order(parts: Vec<Arc<dyn Part>>, query: &Query) -> Vec<(u64, Arc<dyn Part>)> {
    let mut parts: Vec<(u64, Arc<dyn Part>)> = parts
        .into_iter()
        .filter(|part| {
            part.span().is_some_and(|(oldest, newest)| oldest <= query.to && query.from <= newest)
        })
        .filter_map(|part| Some((opens_at(&*part, query.order)?, part)))
        .collect();
    parts.sort_by_key(|(at, _)| *at);
    parts
}

/// A search over the parts of one snapshot.
pub struct Merged {
    query: Arc<Query>,
    /// Not opened yet, the next one last.
    unopened: Vec<(u64, Arc<dyn Part>)>,
    /// Opened, each standing at a match, the next one last.
    ready: Vec<Box<dyn AnyWalk>>,
    /// Opened, but it paused before it found its next match.
    moving: Option<Box<dyn AnyWalk>>,
    told: usize,
    visited: u64,
    seq: u64,
}

impl Merged {
    /// A search for a normalised `query` over `parts`, which see puts up to `seq`.
    pub fn new(parts: Vec<Arc<dyn Part>>, query: Query, seq: u64) -> Self {
        let mut unopened = if query.is_void() { Vec::new() } else { in_order(parts, &query) };
        unopened.reverse();
        Self {
            query: Arc::new(query),
            unopened,
            ready: Vec::new(),
            moving: None,
            told: 0,
            visited: 0,
            seq,
        }
    }

    /// Lets `moving` find its next match, then opens what could hold an earlier one. False if `work`
    /// ran out before.
    fn settle(&mut self, work: &mut u64) -> bool {
        loop {
            if let Some(mut walk) = self.moving.take() {
                let before = walk.visited();
                let step = walk.advance(work);
                self.visited += walk.visited() - before;
                match step {
                    Step::Found => self.insert(walk),
                    Step::Paused => {
                        self.moving = Some(walk);
                        return false;
                    }
                    Step::End => {}
                }
            }
            let first = self.ready.last().map(|walk| time_key(walk.time(), self.query.order));
            let Some((at, _)) = self.unopened.last() else { return true };
            if first.is_some_and(|first| first < *at) {
                return true;
            }
            if let Some((_, part)) = self.unopened.pop() {
                self.moving = part.walk(&self.query);
            }
        }
    }

    fn insert(&mut self, walk: Box<dyn AnyWalk>) {
        let order = self.query.order;
        let at = self.ready.partition_point(|other| {
            let times = time_key(walk.time(), order).cmp(&time_key(other.time(), order));
            let id = |walk: &dyn AnyWalk| walk.record().map(|record| *record.id());
            times.then_with(|| id(&*walk).cmp(&id(&**other))).is_lt()
        });
        self.ready.insert(at, walk);
    }
}

impl Search for Merged {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<Progress, SearchError> {
        let mut work = work.max(1);
        loop {
            if self.visited >= self.query.budget {
                return Ok(Progress::Exhausted);
            }
            work = work.min(self.query.budget - self.visited);
            if !self.settle(&mut work) {
                if self.visited < self.query.budget {
                    return Ok(Progress::Paused);
                }
                continue;
            }
            let Some(walk) = self.ready.pop() else { return Ok(Progress::Done { more: false }) };
            if self.told == self.query.limit {
                self.ready.push(walk);
                return Ok(Progress::Done { more: true });
            }
            let flow = walk.record().map_or(ControlFlow::Continue(()), |record| {
                self.told += 1;
                sink(&record)
            });
            self.moving = Some(walk);
            if flow.is_break() {
                return Ok(Progress::Paused);
            }
        }
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn visited(&self) -> u64 {
        self.visited
    }
}

/// Counts the matches of a normalised query in all parts. `None` if its budget does not last.
pub fn count_all(parts: &[Arc<dyn Part>], query: Query) -> Option<u64> {
    let query = Arc::new(Query { after: None, limit: usize::MAX, ..query });
    if query.is_void() {
        return Some(0);
    }
    let mut work = query.budget;
    parts.iter().map(|part| Arc::clone(part).count(&query, &mut work)).sum()
}

/// Explains a normalised query: the parts in the order they would be opened, until the limit is
/// expected to be reached.
pub fn explain_all(parts: Vec<Arc<dyn Part>>, mut query: Query) -> Explanation {
    let mut explanation = Explanation { plan: "nothing to visit".into(), ..Explanation::default() };
    let mut largest = 0;
    if query.is_void() {
        return explanation;
    }
    for (_, part) in in_order(parts, &query) {
        let Some((line, matches)) = part.explain(&query) else { continue };
        explanation.estimate += line.estimate;
        if line.estimate > largest {
            largest = line.estimate;
            explanation.plan.clone_from(&line.driver);
            if !line.intersect.is_empty() {
                explanation.plan += &format!(", cut with {}", line.intersect.join(" and "));
            }
        }
        explanation.steps.push(line);
        query.limit = query.limit.saturating_sub(matches as usize);
        if query.limit == 0 {
            break;
        }
    }
    explanation
}
