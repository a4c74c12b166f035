//! Searches many sources as if they were one: opens sources lazily and merges their rows by (time,
//! id).

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_codec::record::Record;

use super::count::count;
use super::explain::{Explanation, SourcePlan};
use super::opening::explain;
use super::opening_walk::walk;
use super::plan::describe;
use super::prepared::PreparedQuery;
use super::set::Set;
use super::source::Source;
use super::walk::{AnyWalk, WalkEnd, WalkStep, time_key};
use super::{Order, Query};
use crate::store::{Search, SearchError, SearchProgress};

/// A [`Source`] of any type, behind a trait object.
pub trait AnySource: Send + Sync {
    /// Returns the oldest and the newest time in the part.
    fn span(&self) -> Option<(u64, u64)>;
    /// Returns whether a row of these kinds with this term may exist. The call must be as cheap as
    /// possible.
    fn may_match(&self, kinds: Option<&[u32]>, term: Option<u64>) -> bool;
    /// Begins a walk, and looks up its lists as far as `work` allows. Returns `None` if nothing can
    /// match. The lookups are charged as rows: their number is added to `visited`, and is also part
    /// of [`AnyWalk::visited`].
    fn walk(
        self: Arc<Self>,
        query: &Arc<PreparedQuery>,
        work: &mut u64,
        visited: &mut u64,
    ) -> Option<Box<dyn AnyWalk>>;
    /// Counts the matches, ignoring cursor and limit. Returns `None` if `work` does not suffice, or
    /// if a record that may match could not be read. Adds the number of visited rows, including
    /// lookups, to `visited`.
    fn count(
        self: Arc<Self>,
        query: &Arc<PreparedQuery>,
        work: &mut u64,
        visited: &mut u64,
    ) -> Option<u64>;
    /// Returns the reason if the data of the part cannot be trusted.
    fn trouble(&self) -> Option<String>;
    /// Returns the plan for an explanation, and the expected number of matches.
    fn explain(&self, query: &PreparedQuery) -> Option<(SourcePlan, u64)>;
}

impl<S: Source> AnySource for S {
    fn span(&self) -> Option<(u64, u64)> {
        Source::span(self)
    }

    fn may_match(&self, kinds: Option<&[u32]>, term: Option<u64>) -> bool {
        kinds.is_none_or(|kinds| self.has_kinds(kinds))
            && term.is_none_or(|term| self.has_term(term, kinds))
    }

    fn walk(
        self: Arc<Self>,
        query: &Arc<PreparedQuery>,
        work: &mut u64,
        visited: &mut u64,
    ) -> Option<Box<dyn AnyWalk>> {
        walk(self, query, work, visited)
    }

    fn count(
        self: Arc<Self>,
        query: &Arc<PreparedQuery>,
        work: &mut u64,
        visited: &mut u64,
    ) -> Option<u64> {
        count(&self, query, work, visited)
    }

    fn trouble(&self) -> Option<String> {
        Source::trouble(self)
    }

    fn explain(&self, query: &PreparedQuery) -> Option<(SourcePlan, u64)> {
        let plan = explain(self, query)?;
        let words = |sets: &[_]| sets.iter().map(|&set| describe(set, query)).collect();
        let line = SourcePlan {
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

/// The immutable parts of a snapshot, sorted once for all queries: newest first and oldest first.
#[derive(Clone, Default)]
pub struct SnapshotSources {
    newest_first: Arc<[OrderedSource]>,
    oldest_first: Arc<[OrderedSource]>,
}

#[derive(Clone)]
struct OrderedSource {
    /// The time of the part's first record, as a key that ascends in the order of the query.
    opens_at: u64,
    span: (u64, u64),
    part: Arc<dyn AnySource>,
}

impl OrderedSource {
    fn new(part: &Arc<dyn AnySource>, order: Order) -> Option<Self> {
        let span = part.span()?;
        let time = if order == Order::NewestFirst { span.1 } else { span.0 };
        Some(Self { opens_at: time_key(time, order), span, part: Arc::clone(part) })
    }

    fn overlaps(&self, query: &Query) -> bool {
        self.span.0 <= query.to && query.from <= self.span.1
    }
}

impl SnapshotSources {
    /// Sorts the parts newest first and oldest first.
    pub fn new(parts: &[Arc<dyn AnySource>]) -> Self {
        let sorted = |order| {
            let mut placed: Vec<OrderedSource> =
                parts.iter().filter_map(|part| OrderedSource::new(part, order)).collect();
            placed.sort_by_key(|placed| placed.opens_at);
            placed.into()
        };
        Self { newest_first: sorted(Order::NewestFirst), oldest_first: sorted(Order::OldestFirst) }
    }

    /// Returns whether a part may have a row of these kinds with this term.
    pub fn may_match(&self, kinds: Option<&[u32]>, term: Option<u64>) -> bool {
        self.newest_first.iter().any(|placed| placed.part.may_match(kinds, term))
    }

    /// Returns the reason if a part that the query may need cannot be trusted.
    pub fn trouble(&self, query: &Query) -> Option<String> {
        let mut needed = self.newest_first.iter().filter(|placed| placed.overlaps(query));
        needed.find_map(|placed| placed.part.trouble())
    }

    fn sorted(&self, order: Order) -> &Arc<[OrderedSource]> {
        match order {
            Order::NewestFirst => &self.newest_first,
            Order::OldestFirst => &self.oldest_first,
        }
    }
}

/// A search over the parts of one snapshot.
pub struct SnapshotSearch {
    /// The queries that are run on each part. The queries share order, times, limit and budget, and
    /// their matches are disjoint.
    questions: Vec<Arc<PreparedQuery>>,
    order: Order,
    limit: usize,
    budget: u64,
    /// The head: the only part that still grows.
    head: Option<OrderedSource>,
    parts: Arc<[OrderedSource]>,
    /// Index in `parts` of the next part to open.
    next: usize,
    /// Open walks that are at a match, sorted so that the walk with the search's next match is
    /// last.
    ready: Vec<Box<dyn AnyWalk>>,
    /// Open walks that are not yet at their next match.
    moving: Vec<Box<dyn AnyWalk>>,
    delivered: usize,
    visited: u64,
    damaged: u64,
    /// The driver with the most rows in the opened parts, and the number of its rows.
    driver: Option<(u64, Set)>,
    seq: u64,
}

impl SnapshotSearch {
    /// Starts a search over `parts` and a `head`. The search sees the records up to the sequence
    /// number `seq`. `questions` are the queries into which [`PreparedQuery::opened`] has split the
    /// query.
    pub fn new(
        parts: &SnapshotSources,
        head: &Arc<dyn AnySource>,
        mut questions: Vec<PreparedQuery>,
        seq: u64,
    ) -> Self {
        questions.retain(|query| !query.is_void());
        let questions: Vec<_> = questions.into_iter().map(Arc::new).collect();
        let none = Query { limit: 0, ..Query::default() };
        let first = questions.first().map_or(&none, |first| first);
        let (order, limit, budget) = (first.order, first.limit, first.budget);
        Self {
            head: OrderedSource::new(head, order).filter(|head| head.overlaps(first)),
            parts: Arc::clone(parts.sorted(order)),
            next: if questions.is_empty() { usize::MAX } else { 0 },
            order,
            limit,
            budget,
            questions,
            ready: Vec::new(),
            moving: Vec::new(),
            delivered: 0,
            visited: 0,
            damaged: 0,
            driver: None,
            seq,
        }
    }

    /// Returns the reason if a part that the search has opened cannot be trusted.
    pub fn trouble(&self) -> Option<String> {
        let opened = &self.parts[..self.next.min(self.parts.len())];
        let question = self.questions.first()?;
        let mut needed = opened.iter().filter(|placed| placed.overlaps(question));
        needed.find_map(|placed| placed.part.trouble())
    }

    /// Returns the time key (`opens_at`) at which the next part must be open, and whether this part
    /// is the head.
    fn unopened(&mut self) -> Option<(u64, bool)> {
        let first = self.questions.first()?;
        while self.parts.get(self.next).is_some_and(|placed| !placed.overlaps(first)) {
            self.next += 1;
        }
        let part = self.parts.get(self.next).map(|placed| placed.opens_at);
        match (&self.head, part) {
            (Some(head), None) => Some((head.opens_at, true)),
            (Some(head), Some(part)) if head.opens_at <= part => Some((head.opens_at, true)),
            (_, part) => part.map(|at| (at, false)),
        }
    }

    /// Advances the walks of `moving` to their next matches, and opens each part that could have an
    /// earlier match. Returns false if the work runs out first.
    fn advance_walks(&mut self, work: &mut u64) -> bool {
        loop {
            while let Some(mut walk) = self.moving.pop() {
                let (visited, damaged) = (walk.visited(), walk.damaged());
                let step = walk.advance(work);
                self.visited += walk.visited() - visited;
                self.damaged += walk.damaged() - damaged;
                self.driver = self.driver.max(walk.driver());
                match step {
                    WalkStep::Found => self.insert(walk),
                    WalkStep::Paused => {
                        self.moving.push(walk);
                        return false;
                    }
                    WalkStep::End => {}
                }
            }
            let Some((at, is_head)) = self.unopened() else { return true };
            let first = self.ready.last().map(|walk| time_key(walk.time(), self.order));
            if first.is_some_and(|first| first < at) {
                return true;
            }
            if *work == 0 {
                return false;
            }
            let part = if is_head {
                self.head.take().map(|head| head.part)
            } else {
                self.next += 1;
                self.parts.get(self.next - 1).map(|placed| Arc::clone(&placed.part))
            };
            let Some(part) = part else { continue };
            for query in &self.questions {
                let walk = Arc::clone(&part).walk(query, work, &mut self.visited);
                self.moving.extend(walk);
            }
        }
    }

    fn insert(&mut self, walk: Box<dyn AnyWalk>) {
        if self.ready.is_empty() {
            return self.ready.push(walk);
        }
        let order = self.order;
        let at = self.ready.partition_point(|other| {
            let times = time_key(walk.time(), order).cmp(&time_key(other.time(), order));
            times.then_with(|| walk.id().cmp(&other.id())).is_lt()
        });
        self.ready.insert(at, walk);
    }
}

impl Search for SnapshotSearch {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError> {
        let mut work = work.max(1);
        loop {
            if self.visited >= self.budget {
                return Ok(SearchProgress::with_spent_budget(self.delivered, self.limit));
            }
            work = work.min(self.budget - self.visited);
            if !self.advance_walks(&mut work) {
                if self.visited < self.budget {
                    return Ok(SearchProgress::Paused);
                }
                continue;
            }
            let Some(mut walk) = self.ready.pop() else {
                return Ok(SearchProgress::Done { more: false });
            };
            if self.delivered == self.limit {
                self.ready.push(walk);
                return Ok(SearchProgress::Done { more: true });
            }
            let order = self.order;
            let other = self.ready.last().map(|other| time_key(other.time(), order));
            let unopened = self.unopened().map(|(at, _)| at);
            let bound = other.into_iter().chain(unopened).min().unwrap_or(u64::MAX);
            let (visited, damaged) = (walk.visited(), walk.damaged());
            let mut wanted = self.limit - self.delivered;
            let stop = walk.run(&mut work, bound, &mut wanted, sink);
            self.visited += walk.visited() - visited;
            self.damaged += walk.damaged() - damaged;
            self.delivered = self.limit - wanted;
            match stop {
                WalkEnd::AtMatch => self.insert(walk),
                WalkEnd::End => {}
                WalkEnd::Full => self.moving.push(walk),
                WalkEnd::Paused | WalkEnd::Broke => {
                    self.moving.push(walk);
                    if self.visited < self.budget {
                        return Ok(SearchProgress::Paused);
                    }
                }
            }
        }
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn visited(&self) -> u64 {
        self.visited
    }

    fn damaged(&self) -> u64 {
        self.damaged
    }

    fn driver(&self) -> Option<Set> {
        self.driver.map(|(_, set)| set)
    }

    fn bytes(&self) -> usize {
        self.ready.iter().chain(&self.moving).map(|walk| walk.bytes()).sum()
    }
}

/// Counts the matches of these queries in all parts, ignoring cursor and limit. Returns `None` if
/// the budget does not suffice. Adds to `visited` as [`AnySource::count`] does.
pub fn count_all(
    parts: &SnapshotSources,
    head: &Arc<dyn AnySource>,
    questions: Vec<PreparedQuery>,
    visited: &mut u64,
) -> Option<u64> {
    let mut work = questions.first().map_or(0, |query| query.budget);
    let mut count = 0;
    for query in questions.into_iter().filter(|query| !query.is_void()) {
        let query = Arc::new(query);
        let placed = parts.newest_first.iter().filter(|placed| placed.overlaps(&query));
        for part in placed.map(|placed| &placed.part).chain([head]) {
            count += Arc::clone(part).count(&query, &mut work, visited)?;
        }
    }
    Some(count)
}

/// Explains the queries one after another: for each query, the parts in the order of opening, until
/// the limit is expected to be reached.
pub fn explain_all(
    parts: &SnapshotSources,
    head: &Arc<dyn AnySource>,
    questions: Vec<PreparedQuery>,
) -> Explanation {
    let mut explanation = Explanation { plan: "nothing to visit".into(), ..Explanation::default() };
    let mut largest = 0;
    for query in questions.into_iter().filter(|query| !query.is_void()) {
        explain_one(parts, head, query, &mut explanation, &mut largest);
    }
    explanation
}

fn explain_one(
    parts: &SnapshotSources,
    head: &Arc<dyn AnySource>,
    mut query: PreparedQuery,
    explanation: &mut Explanation,
    largest: &mut u64,
) {
    let mut placed = parts.sorted(query.order).to_vec();
    placed.extend(OrderedSource::new(head, query.order));
    placed.sort_by_key(|placed| placed.opens_at);
    placed.retain(|placed| placed.overlaps(&query));
    for OrderedSource { part, .. } in placed {
        let Some((line, matches)) = part.explain(&query) else { continue };
        explanation.estimate += line.estimate;
        if line.estimate > *largest {
            *largest = line.estimate;
            explanation.plan.clone_from(&line.driver);
            if !line.intersect.is_empty() {
                explanation.plan += ", cut with ";
                explanation.plan += &line.intersect.join(" and ");
            }
        }
        explanation.steps.push(line);
        let rest = query.limit.saturating_sub(matches as usize);
        if rest == 0 {
            break;
        }
        query = query.with_limit(rest);
    }
}
