//! Chooses the condition whose index ranges a search walks.
//!
//! No size is estimated: if several conditions have an index, their rows are counted up to a bound.
//! For a listed label, the number of records of each value is known.

use hark_archive::query::plan::Set;
use tokio_postgres::types::ToSql;

use super::label_storage::LabelStorage;
use super::listed_sizes::{ListedSize, ListedSizes};
use super::pages::{PAGE_RANGES_MAX, RangeValue};
use super::statement::PlainStatement;
use super::words::IndexedWords;
use crate::error::StatementError;
use crate::search::SqlQuery;
use crate::session::DatabaseSession;

/// Maximum number of rows that are counted for a condition, to choose between conditions.
const SIZE_MAX: i64 = 1_000;

/// If at least one in this number of records meets the condition, the search walks all records by
/// time. `FEW_SHARE` applies to few values, whose ranges PostgreSQL merges, and `MANY_SHARE` to
/// many values.
const FEW_SHARE: u64 = 4;
const MANY_SHARE: u64 = 24;
/// The same for slim tables, in which an index by value leads directly to the records.
const SLIM_SHARE: u64 = 3;
/// For each `SLIM_VALUES` values, one is added to `SLIM_SHARE`, since each value is looked up once
/// for each page.
const SLIM_VALUES: u64 = 1_000;

/// The values of a condition for which there is an index.
pub(super) enum ConditionValues<'a> {
    Terms(Vec<i64>),
    Authors(Vec<&'a [u8]>),
    Words(&'a Vec<Vec<u8>>),
}

impl ConditionValues<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Terms(terms) => terms.len(),
            Self::Authors(authors) => authors.len(),
            Self::Words(words) => words.len(),
        }
    }

    pub(super) fn array(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Terms(terms) => terms,
            Self::Authors(authors) => authors,
            Self::Words(words) => *words,
        }
    }

    pub(super) fn form(&self, terms: PlainStatement, authors: PlainStatement) -> PlainStatement {
        match self {
            Self::Terms(_) => terms,
            Self::Authors(_) => authors,
            Self::Words(_) => PlainStatement::WordSize,
        }
    }

    pub(super) fn value(&self, at: usize) -> RangeValue {
        match self {
            Self::Terms(terms) => RangeValue::Term(terms[at]),
            Self::Authors(authors) => {
                RangeValue::Author(authors[at].try_into().unwrap_or_default())
            }
            // `WordWalk` walks the ranges of words.
            Self::Words(_) => RangeValue::Any,
        }
    }

    /// Returns the values at these indices.
    pub(super) fn some(&self, indices: &[usize]) -> Self {
        match self {
            Self::Terms(terms) => Self::Terms(indices.iter().map(|&at| terms[at]).collect()),
            Self::Authors(authors) => {
                Self::Authors(indices.iter().map(|&at| authors[at]).collect())
            }
            Self::Words(words) => Self::Words(words),
        }
    }
}

pub(super) fn values(asked: &SqlQuery, set: Set) -> Option<ConditionValues<'_>> {
    match set {
        Set::Label(at) => asked.terms.get(at)?.clone().map(ConditionValues::Terms),
        Set::Authors => {
            let authors = asked.query.authors.as_ref()?;
            Some(ConditionValues::Authors(authors.iter().map(|author| &author[..]).collect()))
        }
        Set::Ids | Set::Kinds | Set::Time | Set::Word(_) => None,
    }
}

/// Returns the indexed condition with the fewest matching records in the parts that have these
/// times. A common condition is not considered unless `by_size` is set or all conditions are
/// common.
pub(super) fn choose(
    asked: &SqlQuery,
    indexed: Option<&IndexedWords>,
    by_size: bool,
    (from, to): (i64, i64),
    session: &mut DatabaseSession,
    visited: &mut u64,
) -> Result<Option<Set>, StatementError> {
    if asked.driver.is_some() {
        return Ok(asked.driver);
    }
    let labels = (0..asked.terms.len()).map(Set::Label);
    let mut sets: Vec<(Set, ConditionValues<'_>)> =
        labels.chain([Set::Authors]).filter_map(|set| Some((set, values(asked, set)?))).collect();
    let words = indexed.iter().flat_map(|indexed| &indexed.sets);
    sets.extend(words.map(|(at, words)| (Set::Word(*at), ConditionValues::Words(words))));
    let is_common = |set: &Set| matches!(set, Set::Label(at) if asked.common[*at]);
    if !by_size && sets.iter().any(|(set, _)| !is_common(set)) {
        sets.retain(|(set, _)| !is_common(set));
    }
    if sets.len() < 2 {
        return Ok(sets.first().map(|(set, _)| *set));
    }
    let bound = |values: &ConditionValues<'_>| match values {
        // This bound is for all words and kinds together.
        ConditionValues::Words(_) => SIZE_MAX,
        _ => (SIZE_MAX / i64::try_from(values.len()).unwrap_or(SIZE_MAX).max(1)).max(16),
    };
    let bounds: Vec<i64> = sets.iter().map(|(_, values)| bound(values)).collect();
    // Records of excluded kinds must not affect the choice.
    let (gaps, kinds) = (asked.gaps(), asked.kinds().unwrap_or_default());
    let given: Vec<Vec<&(dyn ToSql + Sync)>> = sets
        .iter()
        .zip(&bounds)
        .map(|((_, v), bound)| match &gaps {
            _ if matches!(v, ConditionValues::Words(_)) => vec![v.array(), bound, &kinds],
            Some((firsts, lasts)) => vec![v.array(), bound, firsts, lasts, &from, &to],
            None => vec![v.array(), bound, &from, &to],
        })
        .collect();
    let form = |v: &ConditionValues<'_>| match &gaps {
        Some(_) => v.form(PlainStatement::TermSizeBut, PlainStatement::AuthorSizeBut),
        None => v.form(PlainStatement::TermSize, PlainStatement::AuthorSize),
    };
    let calls: Vec<_> =
        sets.iter().zip(&given).map(|((_, v), given)| (form(v).into(), &given[..])).collect();
    let mut best: Option<(i64, bool, usize, Set)> = None;
    for ((set, values), rows) in sets.iter().zip(session.pipeline(&calls)?) {
        let size = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        *visited += size.cast_unsigned();
        let this = (size, is_common(set), values.len(), *set);
        if best.is_none_or(|best| this < best) {
            best = Some(this);
        }
    }
    Ok(best.map(|(.., set)| set))
}

/// Returns how many records have any of these values; `None` unless the values are those of a
/// listed label, and the query has no other condition.
pub(super) fn listed_size(
    asked: &SqlQuery,
    set: Set,
    values: &ConditionValues<'_>,
    sizes: &ListedSizes,
    session: &mut DatabaseSession,
    visited: &mut u64,
) -> Result<Option<ListedSize>, StatementError> {
    let (Set::Label(at), ConditionValues::Terms(terms)) = (set, values) else { return Ok(None) };
    let query = &asked.query;
    let is_alone = asked.terms.len() == 1
        && query.authors.is_none()
        && query.not_kinds.is_empty()
        && query.words.is_none();
    if !asked.listed[at] || !is_alone || asked.driver.is_some() {
        return Ok(None);
    }
    if let Some(size) = sizes.find(terms) {
        return Ok(Some(size));
    }
    let rows = session.query(PlainStatement::ListedSize, &[terms])?;
    *visited += terms.len() as u64 / 4;
    let (matching, all) =
        rows.first().map_or((0, 0), |row| (row.get::<_, i64>(0), row.get::<_, i64>(1)));
    let matching = matching.max(0).cast_unsigned();
    let size = ListedSize { matching, all: all.max(0).cast_unsigned().max(matching) };
    sizes.insert(terms, size);
    Ok(Some(size))
}

/// Returns the number of all records per matching record, if walking all records by time takes less
/// time than reading the rows of `terms` terms; otherwise `None`.
pub(super) fn passed_by_time(size: ListedSize, terms: usize, labels: LabelStorage) -> Option<u64> {
    let share = match labels {
        LabelStorage::Rows if terms <= PAGE_RANGES_MAX => FEW_SHARE,
        LabelStorage::Rows => MANY_SHARE,
        LabelStorage::Records => SLIM_SHARE + terms as u64 / SLIM_VALUES,
    };
    let is_most = size.matching > 0 && size.matching.saturating_mul(share) >= size.all;
    is_most.then(|| size.all / size.matching)
}
