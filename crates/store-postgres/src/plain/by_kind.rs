//! Plans the walk of a search for values without a condition on kinds, or with many kinds.
//!
//! For a value with few rows, all its rows are read. For any other value, the rows are read kind by
//! kind. Only parts that have times of the query are read.

use tokio_postgres::Row;

use hark_archive::query::plan::Set;

use super::choice::ConditionValues;
use super::statement::PlainStatement;
use super::walk::IndexWalk;
use crate::error::StatementError;
use crate::search::SqlQuery;
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// Number of rows up to which all rows of a value are read, in all kinds: `FEW_ALL` divided by the
/// number of values, but at least `FEW_MIN` and at most `FEW_MAX`.
const FEW_MIN: usize = 8;
const FEW_MAX: usize = 256;
const FEW_ALL: usize = 8_192;
/// Maximum number of values for which the ranges between excluded kinds are read at once.
const GAPS_VALUES_MAX: usize = 4;

/// Returns a walk for values without a condition on kinds, or with many kinds. If a value has few
/// rows in the parts with `times`, all these rows are read at once. For any other value, rows are
/// read kind by kind.
pub(super) fn by_kind(
    asked: &SqlQuery,
    (set, values): (Set, &ConditionValues<'_>),
    kinds: Option<&[i32]>,
    times: (i64, i64),
    session: &mut DatabaseSession,
    visited: &mut u64,
) -> Result<IndexWalk, StatementError> {
    let hidden = |kind: i32| asked.query.not_kinds.contains(&kind.cast_unsigned());
    let wanted = |kind: &i32| kinds.is_none_or(|kinds| kinds.contains(kind)) && !hidden(*kind);
    let few = (FEW_ALL / values.len().max(1)).clamp(FEW_MIN, FEW_MAX);
    let found = few_of(asked, values, few, times, session)?;
    *visited += found.len() as u64 + values.len() as u64 / 4;
    let mut counts = vec![0; values.len()];
    for FirstRow { n, .. } in &found {
        counts[*n] += 1;
    }
    let n = |row: &Row| row.get::<_, i64>(0) as usize - 1;
    let mut known = Vec::new();
    for FirstRow { n, key, kind } in found {
        if counts[n] < few && wanted(&kind) && asked.lies_ahead(&key) {
            known.push(key);
        }
    }
    let many: Vec<usize> = (0..values.len()).filter(|&at| counts[at] >= few).collect();
    let mut ranges = Vec::new();
    if !many.is_empty() {
        let some = values.some(&many);
        let form = values.form(PlainStatement::TermKinds, PlainStatement::AuthorKinds);
        let rows = session.query(form, &[some.array(), &times.0, &times.1])?;
        let found = rows.iter().map(|row| (n(row), row.get::<_, i32>(1)));
        let found: Vec<_> = found.filter(|(_, kind)| !hidden(*kind)).collect();
        *visited += found.len() as u64;
        ranges.extend(
            found
                .into_iter()
                .filter(|(_, kind)| wanted(kind))
                .map(|(n, kind)| (values.value(many[n]), kind)),
        );
    }
    Ok(IndexWalk::new(set, ranges, known, asked))
}

/// One of the first rows of a value.
struct FirstRow {
    n: usize,
    key: IndexKey,
    kind: i32,
}

/// Returns the first rows of each value, at most `few`, without rows of excluded kinds. `from` and
/// `to` are the bounds of whole parts, so the condition on times filters out no row that is read.
///
/// Reading only between the excluded kinds costs one index lookup per range. If there are many
/// values, a value is read in this way only if some of its first rows have excluded kinds, and it
/// may have more rows. This saves lookups, and the result is the same.
fn few_of(
    asked: &SqlQuery,
    values: &ConditionValues<'_>,
    few: usize,
    (from, to): (i64, i64),
    session: &mut DatabaseSession,
) -> Result<Vec<FirstRow>, StatementError> {
    let few_max = i64::from(few as u32);
    let read = |rows: &[Row]| -> Vec<FirstRow> {
        let one = |row: &Row| FirstRow {
            n: row.get::<_, i64>(0) as usize - 1,
            key: IndexKey::read(row, 1),
            kind: row.get(3),
        };
        rows.iter().map(one).collect()
    };
    let Some((firsts, lasts)) = asked.gaps() else {
        let form = values.form(PlainStatement::TermFew, PlainStatement::AuthorFew);
        return Ok(read(&session.query(form, &[values.array(), &few_max, &from, &to])?));
    };
    let between = values.form(PlainStatement::TermFewBut, PlainStatement::AuthorFewBut);
    if values.len() <= GAPS_VALUES_MAX {
        let rows =
            session.query(between, &[values.array(), &few_max, &firsts, &lasts, &from, &to])?;
        return Ok(read(&rows));
    }
    let form = values.form(PlainStatement::TermFew, PlainStatement::AuthorFew);
    let mut found = read(&session.query(form, &[values.array(), &few_max, &from, &to])?);
    let hidden = |kind: i32| asked.query.not_kinds.contains(&kind.cast_unsigned());
    let (mut counts, mut dim) = (vec![0; values.len()], vec![false; values.len()]);
    for FirstRow { n, kind, .. } in &found {
        counts[*n] += 1;
        dim[*n] |= hidden(*kind);
    }
    let again: Vec<usize> = (0..values.len()).filter(|&n| dim[n] && counts[n] >= few).collect();
    found.retain(|one| !hidden(one.kind) && again.binary_search(&one.n).is_err());
    if !again.is_empty() {
        let some = values.some(&again);
        let rows =
            session.query(between, &[some.array(), &few_max, &firsts, &lasts, &from, &to])?;
        found.extend(read(&rows).into_iter().map(|one| FirstRow { n: again[one.n], ..one }));
    }
    Ok(found)
}
