//! Plans a search on one server: chooses the index ranges to walk.
//!
//! No size is estimated: [`choose`] counts the rows of conditions, and [`by_kind`] reads a value
//! completely or kind by kind. If a large part of all records has one of the values of a listed
//! label, the search walks all records by time. If a query names very many authors, the search
//! walks all records by time as long as enough of the records are by these authors.

use hark_archive::query::plan::Set;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::by_kind::by_kind;
use super::choice::{ConditionValues, choose, listed_size, passed_by_time, values};
use super::label_storage::LabelStorage;
use super::pages::{PageWalk, RangeValue};
use super::statement::PlainStatement;
use super::term_windows::TermWindowWalk;
use super::walk::IndexWalk;
use super::word_walk::WordWalk;
use super::words::IndexedWords;
use crate::error::StatementError;
use crate::search::asked::compare;
use crate::search::found::{FETCH_MAX, FinderState, IDS_BYTES_MAX, matching};
use crate::search::{SearchState, SqlQuery};
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// Maximum number of kinds of a query for which the search walks all ranges, without first finding
/// out which kinds the values have.
const KINDS_MAX: usize = 8;
/// Maximum number of ranges that are walked without first trying to walk all records by time.
const RANGES_MAX: usize = 128;

/// The walk by which a search on one server finds keys or records.
pub(super) enum PlainStage {
    /// The search is not planned yet.
    Start,
    /// The search finds keys by walking index ranges.
    Walk(Box<IndexWalk>),
    /// The search reads keys together with their records, page by page.
    Pages(Box<PageWalk>),
    /// The search reads the records of listed terms in windows of time.
    Terms(Box<TermWindowWalk>),
    /// The search walks index ranges of words, and then reads the records.
    Words(Box<WordWalk>),
}

/// Findings of a walk that change the plan of the same search.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlanHints {
    /// Whether too many records of other authors had to be skipped.
    pub(super) by_value: bool,
    /// Whether hardly any record met the conditions that were expected to be common.
    pub(super) by_size: bool,
}

/// Chooses the ranges to walk. If the query names ids, finds the ids at once.
pub(super) fn plan(
    found: &mut FinderState,
    (hints, labels): (PlanHints, LabelStorage),
    shared: &SearchState,
    session: &mut DatabaseSession,
) -> Result<PlainStage, StatementError> {
    if found.asked.query.ids.is_some() {
        find_ids(found, session)?;
        return Ok(PlainStage::Start);
    }
    let asked = &found.asked;
    let (from, to) = asked.times();
    let parts = shared.parts();
    let times = parts.covering(from, to);
    let (kinds, mut visited) = (asked.kinds(), 0);
    let indexed = IndexedWords::of(asked, session, &mut visited)?;
    let set = choose(asked, indexed.as_ref(), hints.by_size, times, session, &mut visited)?;
    if let (Some(indexed), Some(Set::Word(at)), Some(kinds)) = (&indexed, set, &kinds)
        && let Some(walk) = indexed.walk(at, kinds, asked)
    {
        found.driver = set;
        found.visited += visited;
        return Ok(PlainStage::Words(Box::new(walk)));
    }
    found.asked.probes = indexed.map_or_else(Vec::new, |indexed| indexed.probes());
    let asked = &found.asked;
    let values = set.and_then(|set| Some((set, values(asked, set)?)));
    if let Some((set, values)) = &values
        && let Some(size) =
            listed_size(asked, *set, values, &shared.listed_sizes, session, &mut visited)?
    {
        if let Some(passed) = passed_by_time(size, values.len(), labels) {
            let pages = PageWalk::by_time(asked, passed);
            found.driver = Some(Set::Time);
            found.visited += visited;
            return Ok(PlainStage::Pages(Box::new(pages)));
        }
        if let (ConditionValues::Terms(terms), Some([kind])) = (values, kinds.as_deref())
            && labels == LabelStorage::Records
        {
            let walk = TermWindowWalk::new(asked, (terms.clone(), *kind), size, &parts);
            found.driver = Some(*set);
            found.visited += visited;
            return Ok(PlainStage::Terms(Box::new(walk)));
        }
    }
    let walk = match values {
        None => unrestricted(asked, kinds.as_deref()),
        Some((set, values)) => {
            let ranges = range_count(&values, kinds.as_deref());
            let walks = set == Set::Authors
                && ranges > RANGES_MAX
                && !hints.by_value
                && asked.driver.is_none();
            if walks {
                unrestricted(asked, kinds.as_deref()).or_instead(ranges as u64)
            } else if let Some(kinds) = kinds.as_ref().filter(|kinds| {
                kinds.len() == 1 || kinds.len() <= KINDS_MAX && ranges <= RANGES_MAX
            }) {
                let each = (0..values.len()).map(|at| values.value(at));
                let ranges = each.flat_map(|value| kinds.iter().map(move |kind| (value, *kind)));
                IndexWalk::new(set, ranges.collect(), Vec::new(), asked)
            } else {
                by_kind(asked, (set, &values), kinds.as_deref(), times, session, &mut visited)?
            }
        }
    };
    let (driver, pages) = (walk.set, walk.pages(asked));
    found.driver = Some(driver);
    found.visited += visited;
    Ok(match pages {
        Some(pages) => PlainStage::Pages(Box::new(pages)),
        None => PlainStage::Walk(Box::new(walk)),
    })
}

/// Finds the keys of ids; if one fetch can return all records, finds the records.
fn find_ids(found: &mut FinderState, session: &mut DatabaseSession) -> Result<(), StatementError> {
    found.driver = Some(Set::Ids);
    let asked = &found.asked;
    let ids: Vec<&[u8]> = asked.query.ids.iter().flatten().map(|id| &id[..]).collect();
    let mut whole = ids.len() <= found.wanted().min(FETCH_MAX);
    let values: [&(dyn ToSql + Sync); 2] = [&ids, &asked.seq];
    let form = PlainStatement::Ids { whole };
    let (mut rows, is_cut) = session.query_first(form, &values, IDS_BYTES_MAX)?;
    if is_cut {
        // The records are too long to be read at once. Their keys are sorted, and the records are
        // then read page by page.
        whole = false;
        rows = session.query(PlainStatement::Ids { whole }, &values)?;
    }
    let mut keys: Vec<(IndexKey, &Row)> =
        rows.iter().map(|row| (IndexKey::read(row, 0), row)).collect();
    keys.retain(|(key, _)| asked.lies_ahead(key));
    keys.sort_unstable_by(|(a, _), (b, _)| compare(asked.query.order, a, b));
    found.visited += ids.len() as u64;
    if whole {
        let bodies = keys.iter().map(|(_, row)| row.get(2));
        let records = matching(asked, bodies, &mut found.visited)?;
        found.bodies.extend(records);
    } else {
        found.keys = keys.into_iter().map(|(key, _)| key).collect();
    }
    found.is_over = true;
    Ok(())
}

/// Returns the number of ranges of these values and kinds. A value without kinds counts as three
/// ranges.
fn range_count(values: &ConditionValues<'_>, kinds: Option<&[i32]>) -> usize {
    values.len() * kinds.map_or(3, <[i32]>::len)
}

/// Returns a walk by kinds; if no kinds are given, a walk through all records by time.
fn unrestricted(asked: &SqlQuery, kinds: Option<&[i32]>) -> IndexWalk {
    match kinds {
        Some(kinds) => {
            let ranges = kinds.iter().map(|kind| (RangeValue::Kind, *kind)).collect();
            IndexWalk::new(Set::Kinds, ranges, Vec::new(), asked)
        }
        None => IndexWalk::new(Set::Time, vec![(RangeValue::Any, 0)], Vec::new(), asked),
    }
}
