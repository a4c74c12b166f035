//! The planner. It chooses the set to walk, the sets to intersect, and the conditions to check on
//! the records.
//!
//! A plan depends only on the query and on the exact lengths of posting lists. The planner requests
//! the lengths from a closure, since each length costs a lookup in the source. It requests cheap
//! lengths first, and then only lengths that can change its choice. If a length is not available
//! yet, planning starts over once the length is available.

use std::task::{Poll, ready};

use super::Query;
use super::words::WORD_LISTS;

pub use super::set::{Set, SetSize};

/// The plan for one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The set whose rows are walked.
    pub driver: Set,
    /// The size of the driver.
    pub size: SetSize,
    /// The sets in which each walked row is looked up before its record is read.
    pub cuts: Vec<Set>,
    /// The conditions that are checked on the record.
    pub residual: Vec<Set>,
    /// Number of rows expected to be visited.
    pub estimate: u64,
    /// Number of these rows that are expected to match.
    pub matches: u64,
}

/// A set with at most this many terms is always looked up, since a lookup costs about as much as
/// visiting a row.
const PROBES_FREE: u64 = 64;
/// Maximum number of posting lists in which a row is looked up for one set. If the set has more
/// lists, reading the record is cheaper.
const CUT_LISTS_MAX: usize = 8;
/// The same maximum for the set of a word. This maximum is higher, because dividing a record's text
/// into words costs far more than reading the record.
const CUT_WORD_LISTS_MAX: usize = 64;
/// Number of lookups that the planner assumes for a word prefix.
const BEGINNING_PROBES: u64 = PROBES_FREE;

/// Returns the size of a set. The size is `None` if the set has too many posting lists to be walked
/// or intersected.
pub type SizeOf<'a> = dyn FnMut(Set) -> Poll<Option<SetSize>> + 'a;

/// Plans a query for a source that has `rows` rows. Returns `None` if nothing in the source can
/// match.
pub fn plan(
    query: &Query,
    conditions: &[(Set, u64)],
    rows: u64,
    size: &mut SizeOf<'_>,
) -> Poll<Option<Plan>> {
    if query.is_void() || rows == 0 {
        return Poll::Ready(None);
    }
    if query.ids.is_some() {
        return by_ids(query, conditions, size);
    }
    let mut best = (Set::Time, SetSize { rows, ..SetSize::default() });
    let mut window = None;
    let mut known: Vec<(Set, SetSize)> = Vec::new();
    let mut residual = Vec::new();
    for &(set, probes) in conditions {
        // The best set so far has separate posting lists for each kind, so the kinds need no
        // lookup.
        if set == Set::Kinds && best.0 != Set::Time {
            continue;
        }
        if probes > PROBES_FREE {
            // The choice must not depend on the number of rows of excluded kinds.
            if best.0 == Set::Time && window.is_none() && !query.not_kinds.is_empty() {
                best.1 = *window.insert(ready!(size(Set::Time)).unwrap_or_default());
            }
            if probes > best.1.rows {
                residual.push(set);
                continue;
            }
        }
        let Some(here) = ready!(size(set)) else {
            residual.push(set);
            continue;
        };
        if here.rows == 0 {
            return Poll::Ready(None);
        }
        if best.0 == Set::Time || here.rows < best.1.rows {
            best = (set, here);
        }
        known.push((set, here));
    }
    // The time window is looked up as a set if it restricts the query, or if no other driver is
    // possible.
    let mut window_rows = rows;
    if query.is_windowed() || best.0 == Set::Time {
        let window = match window {
            Some(window) => window,
            None => ready!(size(Set::Time)).unwrap_or_default(),
        };
        window_rows = window.rows;
        if best.0 == Set::Time || window.rows < best.1.rows {
            best = (Set::Time, window);
        }
    }
    if window_rows == 0 {
        return Poll::Ready(None);
    }
    let (driver, chosen) = best;
    let covers_kinds = matches!(driver, Set::Authors | Set::Label(_) | Set::Word(_));
    let mut share = 1.0;
    let mut cuts = Vec::new();
    for (set, here) in known {
        if set == driver || (set == Set::Kinds && covers_kinds) {
            continue;
        }
        share *= (here.rows as f64 / window_rows as f64).min(1.0);
        // If the kind of a row is known, only one posting list of each term may contain the row.
        let looks = if driver == Set::Time { here.lists } else { here.terms };
        let is_worth_it = match set {
            Set::Word(_) => looks <= CUT_WORD_LISTS_MAX,
            _ => looks <= CUT_LISTS_MAX && here.rows < window_rows / 2,
        };
        if is_worth_it {
            cuts.push(set);
        } else {
            residual.push(set);
        }
    }
    let matches = chosen.rows as f64 * share;
    let wanted = query.limit as f64;
    let estimate =
        if wanted >= matches { chosen.rows } else { ((wanted / share) as u64).min(chosen.rows) };
    Poll::Ready(Some(Plan {
        driver,
        size: chosen,
        cuts,
        residual,
        estimate: estimate.max(1),
        matches: matches.min(wanted).ceil() as u64,
    }))
}

/// Plans a query with a given driver, so that the visited rows do not depend on the other sets.
/// Sets that have few terms in this source are intersected; the other conditions are checked on the
/// records.
pub fn driven_by(
    driver: Set,
    query: &Query,
    conditions: &[(Set, u64)],
    size: &mut SizeOf<'_>,
) -> Poll<Option<Plan>> {
    if query.is_void() {
        return Poll::Ready(None);
    }
    let found = ready!(size(driver)).unwrap_or_default();
    if found.rows == 0 {
        return Poll::Ready(None);
    }
    // The driver has separate posting lists for each kind, so the kinds need no lookup.
    let others = conditions.iter().filter(|(set, _)| *set != driver && *set != Set::Kinds);
    let (mut cuts, mut residual) = (Vec::new(), Vec::new());
    for &(set, probes) in others {
        // If the driver has fewer records than the set has terms, reading the records is cheaper
        // than looking up the terms.
        let is_asked = probes <= found.rows.max(CUT_LISTS_MAX as u64);
        let few = is_asked && ready!(size(set)).is_some_and(|size| size.terms <= CUT_LISTS_MAX);
        (if few { &mut cuts } else { &mut residual }).push(set);
    }
    let matches = found.rows.min(query.limit as u64);
    let estimate = found.rows;
    Poll::Ready(Some(Plan { driver, size: found, cuts, residual, estimate, matches }))
}

/// Returns the conditions that an index can evaluate, each with its number of terms, fewest terms
/// first.
pub fn conditions(query: &Query) -> Vec<(Set, u64)> {
    let mut sets: Vec<(Set, u64)> = query
        .labels
        .iter()
        .enumerate()
        .map(|(i, set)| (Set::Label(i), set.values.len() as u64))
        .collect();
    sets.extend(query.authors.iter().map(|authors| (Set::Authors, authors.len() as u64)));
    for (i, needed) in query.words.iter().flat_map(|words| words.needed()).enumerate() {
        let probes = if needed.is_prefix { BEGINNING_PROBES } else { WORD_LISTS as u64 };
        sets.push((Set::Word(i), probes));
    }
    sets.sort_by_key(|(_, probes)| *probes);
    // Kinds come first if another condition has many terms, because the lookup of the kinds may
    // make the other lookup unnecessary. Otherwise kinds come last.
    let at = if sets.iter().any(|(_, probes)| *probes > PROBES_FREE) { 0 } else { sets.len() };
    sets.splice(at..at, query.kinds.iter().map(|kinds| (Set::Kinds, kinds.len() as u64)));
    sets
}

fn by_ids(query: &Query, conditions: &[(Set, u64)], size: &mut SizeOf<'_>) -> Poll<Option<Plan>> {
    let found = ready!(size(Set::Ids)).unwrap_or_default();
    Poll::Ready((found.rows > 0).then(|| Plan {
        driver: Set::Ids,
        size: found,
        cuts: Vec::new(),
        residual: conditions.iter().map(|(set, _)| *set).collect(),
        estimate: found.rows,
        matches: found.rows.min(query.limit as u64),
    }))
}

/// Describes a set as text, for explanations.
pub fn describe(set: Set, query: &Query) -> String {
    let kinds = query.kinds.as_ref().map_or(String::new(), |kinds| match kinds.as_slice() {
        [kind] => format!(" of kind {kind}"),
        many => format!(" of {} kinds", many.len()),
    });
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    match set {
        Set::Ids => count(query.ids.as_ref().map_or(0, Vec::len), "id"),
        Set::Authors => count(query.authors.as_ref().map_or(0, Vec::len), "author") + &kinds,
        Set::Label(i) => {
            let label = &query.labels[i];
            let name = if label.name < 0x20 { '.' } else { char::from(label.name) };
            format!("label {name} with {}{kinds}", count(label.values.len(), "value"))
        }
        Set::Word(i) => {
            let needed = query.words.as_ref().and_then(|words| words.needed().get(i));
            needed.map_or(String::new(), |needed| {
                let star = if needed.is_prefix { "*" } else { "" };
                format!("word {}{star}{kinds}", needed.word)
            })
        }
        Set::Kinds => match query.kinds.as_deref() {
            Some([kind]) => format!("kind {kind}"),
            kinds => count(kinds.map_or(0, <[u32]>::len), "kind"),
        },
        Set::Time => "time".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::LabelSet;

    const TOO_MANY: usize = 1 << 20;

    fn choose(
        query: &Query,
        sizes: &[(Set, u64, usize)],
    ) -> Option<(Set, Vec<Set>, Vec<Set>, u64)> {
        let mut size = |set| {
            let found = sizes.iter().find(|(known, ..)| *known == set);
            let (_, rows, lists) =
                found.unwrap_or_else(|| panic!("{set:?} was not to be looked up"));
            let size = SetSize { rows: *rows, lists: *lists, terms: *lists };
            Poll::Ready((size.lists < TOO_MANY).then_some(size))
        };
        let plan = plan(query, &conditions(query), 1_000_000, &mut size);
        let Poll::Ready(plan) = plan else { panic!("all sizes are known") };
        plan.map(|p| (p.driver, p.cuts, p.residual, p.estimate))
    }

    fn authors(n: u32) -> Vec<[u8; 32]> {
        let key = |i: u32| std::array::from_fn(|at| i.to_le_bytes().get(at).copied().unwrap_or(0));
        (0..n).map(key).collect()
    }

    #[test]
    fn a_plan_follows_the_lengths() {
        let author_and_kind = Query {
            authors: Some(authors(1)),
            kinds: Some(vec![1]),
            limit: 20,
            ..Query::default()
        };
        assert_eq!(
            choose(&author_and_kind, &[(Set::Authors, 300, 1)]),
            Some((Set::Authors, vec![], vec![], 20))
        );
        let rare_kind = Query {
            kinds: Some(vec![30_000]),
            labels: vec![LabelSet::one(b'p', b"x")],
            ..Query::default()
        };
        assert_eq!(choose(&rare_kind, &[(Set::Label(0), 0, 0)]), None, "no look at the kind");
        let two_labels = Query {
            labels: vec![LabelSet::one(b't', b"x"), LabelSet::one(b'p', b"y")],
            limit: 50,
            ..Query::default()
        };
        assert_eq!(
            choose(&two_labels, &[(Set::Label(0), 10_000, 3), (Set::Label(1), 40, 2)]),
            Some((Set::Label(1), vec![Set::Label(0)], vec![], 40))
        );
        let crowd = Query { authors: Some(authors(500)), limit: 100, ..Query::default() };
        assert_eq!(
            choose(&crowd, &[(Set::Authors, 20_000, 1500)]),
            Some((Set::Authors, vec![], vec![], 100))
        );
        let window = Query { from: 1, to: 2, limit: 500, ..Query::default() };
        assert_eq!(choose(&window, &[(Set::Time, 700, 1)]), Some((Set::Time, vec![], vec![], 500)));
    }

    #[test]
    fn what_costs_more_to_look_up_than_to_check_is_checked() {
        let query = Query {
            authors: Some(authors(10_000)),
            labels: vec![LabelSet::one(b'e', b"x")],
            ..Query::default()
        };
        assert_eq!(
            choose(&query, &[(Set::Label(0), 30, 1)]),
            Some((Set::Label(0), vec![], vec![Set::Authors], 30))
        );
    }

    #[test]
    fn a_set_of_too_many_lists_is_checked_on_the_records() {
        let query = Query {
            kinds: Some(vec![1, 2]),
            labels: vec![LabelSet::one(b't', b"x")],
            ..Query::default()
        };
        assert_eq!(
            choose(&query, &[(Set::Label(0), 1, TOO_MANY), (Set::Kinds, 40, 2)]),
            Some((Set::Kinds, vec![], vec![Set::Label(0)], 40))
        );
    }

    #[test]
    fn a_plan_waits_for_the_sizes_that_it_needs() {
        let query = Query { authors: Some(authors(2)), ..Query::default() };
        assert!(plan(&query, &conditions(&query), 9, &mut |_| Poll::Pending).is_pending());
    }
}
