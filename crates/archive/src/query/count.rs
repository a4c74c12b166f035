//! Counts the rows of one source that match.

use std::sync::Arc;
use std::task::Poll;

use super::Query;
use super::cursor::SourceWalk;
use super::opening::{OpenedPlan, Opening};
use super::plan::Plan;
use super::prepared::PreparedQuery;
use super::set::Set;
use super::source::Source;
use super::stream::{PostingSlice, find};

/// Work that a count may always use to look up posting lists in a source, even if its budget is
/// smaller, because these lookups are not divided into steps.
const COUNT_WORK: u64 = 2_048;

/// Counts the rows of `source` that match, ignoring cursor and limit. Returns `None` if `work` does
/// not suffice, or if a record that may match could not be read. Where possible, the count is
/// computed from the lengths of posting lists, without visiting rows. Adds to `visited` the rows
/// that were visited, and the lookups that count as rows.
pub(super) fn count<S: Source>(
    source: &Arc<S>,
    query: &Arc<PreparedQuery>,
    work: &mut u64,
    visited: &mut u64,
) -> Option<u64> {
    let (mut opening, mut allowed) = (Opening::new(&**source, query), (*work).max(COUNT_WORK));
    let opened = opening.look_up(&**source, query, &mut allowed);
    *visited += opening.visited();
    let Poll::Ready(opened) = opened else { return None };
    let Some(opened) = opened else { return Some(0) };
    let before = *work;
    let counted = count_opened(source, query, opened, work);
    *visited += before.saturating_sub(*work);
    counted
}

/// Does the same as [`count`], with a plan that is already opened.
fn count_opened<S: Source>(
    source: &Arc<S>,
    query: &Arc<PreparedQuery>,
    opened: OpenedPlan<S>,
    work: &mut u64,
) -> Option<u64> {
    if !lengths_suffice(query, &opened.plan) {
        return SourceWalk::new(Arc::clone(source), Arc::clone(query), opened)
            .count_remaining(work);
    }
    let driver = opened.plan.driver;
    let mut count = alive_in(&**source, opened.lists(driver)?, driver != Set::Time, work)?;
    if driver == Set::Time {
        count -= alive_in(&**source, &opened.excluded, true, work)?.min(count);
    }
    let mut expired = Vec::new();
    source.expired(query.now, &mut expired);
    if expired.is_empty() {
        return Some(count);
    }
    *work = work.saturating_sub(expired.len() as u64);
    let alive = Query { now: 0, ..Query::clone(query) };
    let lost = expired.iter().filter(|&&row| {
        !source.is_dead(row) && source.record(row).is_some_and(|record| alive.matches(&record))
    });
    Some(count - lost.count() as u64)
}

/// Counts the live rows of posting lists. With `by_kind`, each posting list has rows of one kind
/// only.
fn alive_in<S: Source>(
    source: &S,
    cuts: &[PostingSlice<S::PostingList>],
    by_kind: bool,
    work: &mut u64,
) -> Option<u64> {
    let (mut count, mut dead, mut dead_kind) = (0, Vec::new(), None);
    let kind = |cut: &PostingSlice<_>| source.list_kind(&cut.list).filter(|_| by_kind);
    let mut cuts: Vec<_> = cuts.iter().map(|cut| (kind(cut), cut)).collect();
    // Sorting brings lists of one kind together, so the dead rows of a kind are looked up only
    // once.
    cuts.sort_by_key(|(kind, _)| *kind);
    for (kind, cut) in cuts {
        count += cut.range.len() as u64;
        if dead_kind != Some(kind) {
            dead.clear();
            source.dead_rows(kind, &mut dead);
            dead_kind = Some(kind);
        }
        count -= dead_of(source, cut, &dead, work)?;
    }
    Some(count)
}

/// Counts the dead rows of a posting list. `dead` has all dead rows of the list's kind.
fn dead_of<S: Source>(
    source: &S,
    cut: &PostingSlice<S::PostingList>,
    dead: &[u32],
    work: &mut u64,
) -> Option<u64> {
    *work = work.checked_sub(dead.len().min(cut.range.len()) as u64)?;
    // Looking up a dead row in the list costs about as much as checking 16 rows of the list.
    if dead.len() * 16 > cut.range.len() {
        return Some(source.count_dead(&cut.list, cut.range.clone()));
    }
    let is_in = |row: u32| {
        source.may_have(&cut.list, row) && source.is_dead(row) && find(source, cut, row).1
    };
    Some(dead.iter().filter(|&&row| is_in(row)).count() as u64)
}

/// Returns whether the driver's posting lists are disjoint and contain only matches.
fn lengths_suffice(query: &Query, plan: &Plan) -> bool {
    let disjoint = match plan.driver {
        Set::Label(i) => query.labels[i].values.len() == 1,
        Set::Ids => false,
        // A word has one list for each class, and each record with the word is in exactly one list.
        Set::Authors | Set::Kinds | Set::Word(_) | Set::Time => true,
    };
    disjoint
        && query.gate.is_none()
        && query.not_authors.is_empty()
        && query.words.as_ref().is_none_or(|words| {
            words.is_needed_enough() && words.needed().iter().all(|one| !one.is_prefix)
        })
        && plan.cuts.is_empty()
        && plan.residual.is_empty()
}
