//! Chooses the condition whose index ranges a search walks.
//!
//! No size is estimated: if several conditions have an index, their rows are counted up to a bound.
//! For a listed label, the number of records of each value is known.

use hark_archive::query::plan::Set;
use tokio_postgres::types::ToSql;

use super::pages::{PAGE_RANGES_MAX, RangeValue};
use super::statement::PlainStatement;
use super::words::IndexedWords;
use crate::error::StatementError;
use crate::search::SqlQuery;
use crate::session::DatabaseSession;

/// Maximum number of rows that are counted for a condition, to choose between conditions.
const SIZE_MAX: i64 = 1_000;

/// If at least one in this number of all records meets the condition, all records are walked by
/// time. `FEW_SHARE` applies to few values, whose ranges PostgreSQL merges, and `MANY_SHARE` to
/// many values.
const FEW_SHARE: i64 = 4;
const MANY_SHARE: i64 = 24;

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

/// Returns the number of all records per matching record, if the number is so low that walking all
/// records by time is cheaper; otherwise `None`. The number is known only for a listed label, and
/// is used only if the query has no other condition.
pub(super) fn most(
    asked: &SqlQuery,
    set: Set,
    values: &ConditionValues<'_>,
    session: &mut DatabaseSession,
    visited: &mut u64,
) -> Result<Option<u64>, StatementError> {
    let Set::Label(at) = set else { return Ok(None) };
    let query = &asked.query;
    let is_alone = asked.terms.len() == 1
        && query.authors.is_none()
        && query.not_kinds.is_empty()
        && query.words.is_none();
    if !asked.listed[at] || !is_alone || asked.driver.is_some() {
        return Ok(None);
    }
    let rows = session.query(PlainStatement::ListedSize, &[values.array()])?;
    *visited += values.len() as u64 / 4;
    let (matching, all) =
        rows.first().map_or((0, 0), |row| (row.get::<_, i64>(0), row.get::<_, i64>(1)));
    let share = if values.len() <= PAGE_RANGES_MAX { FEW_SHARE } else { MANY_SHARE };
    let is_most = matching > 0 && matching.saturating_mul(share) >= all;
    Ok(is_most.then(|| all.max(matching).cast_unsigned() / matching.cast_unsigned()))
}
