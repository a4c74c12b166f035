//! Chooses the index ranges that a search walks.
//!
//! Nothing is estimated. If several conditions have an index, their rows are counted up to a bound.
//! Values without kinds are read completely if they have few rows, and kind by kind if they have
//! many. Both reads are restricted to the parts that contain the query's times. The numbers of
//! records of a listed label's values are known. If a large part of all records has these values,
//! all records are walked by time. For very many authors, all records are walked by time while
//! enough of them have these authors.

use hark_archive::Order;
use hark_archive::query::plan::Set;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::walk::{IndexWalk, PAGE_RANGES_MAX, PageWalk, RangeValue};
use super::words::IndexedWords;
use super::{FETCH_MAX, Finder, SearchStage, SqlQuery, compare, matching};
use crate::layout::StatementForm;
use crate::parts::Parts;
use crate::session::{DatabaseSession, StatementError};
use crate::time::{IndexKey, to_db};

/// Maximum number of rows that are counted of a condition's values, to choose between conditions.
const SIZE_MAX: i64 = 1_000;
/// Maximum number of kinds of a query whose ranges are walked without first finding the kinds of
/// the values.
const KINDS_MAX: usize = 8;
/// Numbers of rows up to which a value is read completely, in all kinds: the minimum and maximum
/// for one value, and the total of all values.
const FEW_MIN: usize = 8;
const FEW_MAX: usize = 256;
const FEW_ALL: usize = 8_192;
/// Maximum number of values whose ranges between excluded kinds are read at once.
const GAPS_VALUES_MAX: usize = 4;
/// Maximum number of ranges that are walked without first trying to walk all records by time.
const RANGES_MAX: usize = 128;

/// All records are walked by time if at least one in this number meets the condition. `FEW_SHARE`
/// is for few values, whose ranges PostgreSQL merges, and `MANY_SHARE` for many values.
const FEW_SHARE: i64 = 4;
const MANY_SHARE: i64 = 24;

/// The values of a condition that has an index.
enum ConditionValues<'a> {
    Terms(Vec<i64>),
    Authors(Vec<&'a [u8]>),
    Words(&'a Vec<Vec<u8>>),
}

impl ConditionValues<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Terms(terms) => terms.len(),
            Self::Authors(authors) => authors.len(),
            Self::Words(words) => words.len(),
        }
    }

    fn array(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Terms(terms) => terms,
            Self::Authors(authors) => authors,
            Self::Words(words) => *words,
        }
    }

    fn form(&self, terms: StatementForm, authors: StatementForm) -> StatementForm {
        match self {
            Self::Terms(_) => terms,
            Self::Authors(_) => authors,
            Self::Words(_) => StatementForm::WordSize,
        }
    }

    fn value(&self, at: usize) -> RangeValue {
        match self {
            Self::Terms(terms) => RangeValue::Term(terms[at]),
            Self::Authors(authors) => {
                RangeValue::Author(authors[at].try_into().unwrap_or_default())
            }
            // Ranges of words are walked by `WordWalk`.
            Self::Words(_) => RangeValue::Any,
        }
    }

    /// Returns the values at the given positions.
    fn some(&self, indices: &[usize]) -> Self {
        match self {
            Self::Terms(terms) => Self::Terms(indices.iter().map(|&at| terms[at]).collect()),
            Self::Authors(authors) => {
                Self::Authors(indices.iter().map(|&at| authors[at]).collect())
            }
            Self::Words(words) => Self::Words(words),
        }
    }
}

/// Returns the query's kinds in the database's type.
pub(super) fn kinds(asked: &SqlQuery) -> Option<Vec<i32>> {
    let kinds = asked.query.kinds.as_ref()?;
    Some(kinds.iter().map(|kind| kind.cast_signed()).collect())
}

impl Finder {
    /// Chooses the ranges to walk. A query for ids is run at once.
    pub(super) fn plan(
        &mut self,
        parts: &Parts,
        session: &mut DatabaseSession,
    ) -> Result<SearchStage, StatementError> {
        let asked = &self.asked;
        let times = times(asked);
        let times = parts.covering(times.0, times.1);
        if let Some(ids) = &asked.query.ids {
            self.driver = Some(Set::Ids);
            let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
            // Records are read together with their keys only if one fetch could return all records.
            let whole = ids.len() <= self.wanted().min(FETCH_MAX);
            let rows = session.query(StatementForm::Ids { whole }, &[&ids, &asked.seq])?;
            let mut found: Vec<(IndexKey, &Row)> =
                rows.iter().map(|row| (key(row.get(0), row.get(1)), row)).collect();
            found.retain(|(key, _)| lies_ahead(asked, key));
            found.sort_unstable_by(|(a, _), (b, _)| compare(asked.query.order, a, b));
            self.visited += ids.len() as u64;
            if whole {
                let bodies = found.iter().map(|(_, row)| row.get(2));
                let found = matching(asked, bodies, &mut self.visited)?;
                self.bodies.extend(found);
            } else {
                self.keys = found.into_iter().map(|(key, _)| key).collect();
            }
            return Ok(SearchStage::Found);
        }
        let (kinds, mut visited) = (kinds(asked), 0);
        let indexed = IndexedWords::of(asked, session, &mut visited)?;
        let set = choose(asked, indexed.as_ref(), self.by_size, times, session, &mut visited)?;
        if let (Some(indexed), Some(Set::Word(at)), Some(kinds)) = (&indexed, set, &kinds)
            && let Some(walk) = indexed.walk(at, kinds, asked)
        {
            self.driver = set;
            self.visited += visited;
            return Ok(SearchStage::Words(Box::new(walk)));
        }
        self.asked.probes = indexed.map_or_else(Vec::new, |indexed| indexed.probes());
        let asked = &self.asked;
        let values = set.and_then(|set| Some((set, values(asked, set)?)));
        if let Some((set, values)) = &values
            && let Some(passed) = most(asked, *set, values, session, &mut visited)?
        {
            self.driver = Some(Set::Time);
            self.visited += visited;
            let pages = PageWalk::by_time(asked, passed);
            return Ok(SearchStage::Pages(Box::new(pages)));
        }
        let walk = match values {
            None => plain(asked, kinds.as_deref()),
            Some((set, values)) => {
                let ranges = values.len() * kinds.as_ref().map_or(3, Vec::len);
                let walks = set == Set::Authors
                    && ranges > RANGES_MAX
                    && !self.by_value
                    && asked.driver.is_none();
                if walks {
                    plain(asked, kinds.as_deref()).or_instead(ranges as u64)
                } else if let Some(kinds) = kinds.as_ref().filter(|kinds| {
                    kinds.len() == 1 || kinds.len() <= KINDS_MAX && ranges <= RANGES_MAX
                }) {
                    let each = (0..values.len()).map(|at| values.value(at));
                    let ranges =
                        each.flat_map(|value| kinds.iter().map(move |kind| (value, *kind)));
                    IndexWalk::new(set, ranges.collect(), Vec::new(), asked)
                } else {
                    by_kind(asked, (set, &values), kinds.as_deref(), times, session, &mut visited)?
                }
            }
        };
        self.driver = Some(walk.set);
        self.visited += visited;
        Ok(match walk.pages(asked) {
            Some(pages) => SearchStage::Pages(Box::new(pages)),
            None => SearchStage::Walk(Box::new(walk)),
        })
    }
}

fn key(time: i64, id: &[u8]) -> IndexKey {
    IndexKey { time, id: id.try_into().unwrap_or_default() }
}

/// Returns the query's times behind the query's cursor; both bounds are inclusive.
fn times(asked: &SqlQuery) -> (i64, i64) {
    let query = &asked.query;
    let (from, to) = (to_db(query.from), to_db(query.to));
    match (query.order, query.after.map(|after| to_db(after.time))) {
        (_, None) => (from, to),
        (Order::NewestFirst, Some(after)) => (from, to.min(after)),
        (Order::OldestFirst, Some(after)) => (from.max(after), to),
    }
}

/// Whether a key is within the query's times and behind the query's cursor.
pub(super) fn lies_ahead(asked: &SqlQuery, key: &IndexKey) -> bool {
    let query = &asked.query;
    let after = query.after.map(|after| IndexKey { time: to_db(after.time), id: after.id });
    to_db(query.from) <= key.time
        && key.time <= to_db(query.to)
        && after.is_none_or(|after| compare(query.order, &after, key).is_lt())
}

/// Returns a walk along the kinds, or along all times if no kinds are given.
fn plain(asked: &SqlQuery, kinds: Option<&[i32]>) -> IndexWalk {
    match kinds {
        Some(kinds) => {
            let ranges = kinds.iter().map(|kind| (RangeValue::Kind, *kind)).collect();
            IndexWalk::new(Set::Kinds, ranges, Vec::new(), asked)
        }
        None => IndexWalk::new(Set::Time, vec![(RangeValue::Any, 0)], Vec::new(), asked),
    }
}

fn values(asked: &SqlQuery, set: Set) -> Option<ConditionValues<'_>> {
    match set {
        Set::Label(at) => asked.terms.get(at)?.clone().map(ConditionValues::Terms),
        Set::Authors => {
            let authors = asked.query.authors.as_ref()?;
            Some(ConditionValues::Authors(authors.iter().map(|author| &author[..]).collect()))
        }
        Set::Ids | Set::Kinds | Set::Time | Set::Word(_) => None,
    }
}

/// Returns the indexed condition that the fewest records in the parts with the given times meet.
/// Common conditions are ignored unless `by_size` is set or all conditions are common.
fn choose(
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
        // The bound is for all words and kinds together.
        ConditionValues::Words(_) => SIZE_MAX,
        _ => (SIZE_MAX / i64::try_from(values.len()).unwrap_or(SIZE_MAX).max(1)).max(16),
    };
    let bounds: Vec<i64> = sets.iter().map(|(_, values)| bound(values)).collect();
    // Records of excluded kinds must not affect the choice.
    let (gaps, kinds) = (asked.gaps(), kinds(asked).unwrap_or_default());
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
        Some(_) => v.form(StatementForm::TermSizeBut, StatementForm::AuthorSizeBut),
        None => v.form(StatementForm::TermSize, StatementForm::AuthorSize),
    };
    let calls: Vec<_> =
        sets.iter().zip(&given).map(|((_, v), given)| (form(v), &given[..])).collect();
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

/// Returns the number of all records per matching record if so many records match that walking all
/// records by time is cheaper. Otherwise returns `None`. The numbers are known only for a listed
/// label, and used only if the query has no other condition.
fn most(
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
    let rows = session.query(StatementForm::ListedSize, &[values.array()])?;
    *visited += values.len() as u64 / 4;
    let (matching, all) =
        rows.first().map_or((0, 0), |row| (row.get::<_, i64>(0), row.get::<_, i64>(1)));
    let share = if values.len() <= PAGE_RANGES_MAX { FEW_SHARE } else { MANY_SHARE };
    let is_most = matching > 0 && matching.saturating_mul(share) >= all;
    Ok(is_most.then(|| all.max(matching).cast_unsigned() / matching.cast_unsigned()))
}

/// Returns a walk for values without kinds, or with many kinds. Values with few rows in the parts
/// with `times` are read at once. Other values are read kind by kind.
fn by_kind(
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
    let n = |row: &tokio_postgres::Row| row.get::<_, i64>(0) as usize - 1;
    let mut known = Vec::new();
    for FirstRow { n, key, kind } in found {
        if counts[n] < few && wanted(&kind) && lies_ahead(asked, &key) {
            known.push(key);
        }
    }
    let many: Vec<usize> = (0..values.len()).filter(|&at| counts[at] >= few).collect();
    let mut ranges = Vec::new();
    if !many.is_empty() {
        let some = values.some(&many);
        let form = values.form(StatementForm::TermKinds, StatementForm::AuthorKinds);
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

/// One of the first few rows of a value.
struct FirstRow {
    n: usize,
    key: IndexKey,
    kind: i32,
}

/// Returns the first few rows of each value, without rows of excluded kinds. `from` and `to` are
/// bounds of whole parts, so every row that is read counts.
///
/// Reading between the excluded kinds costs one index lookup per range. If there are many values,
/// it is done only for values with excluded rows among their first few rows that may have more
/// rows. The resulting counts are the same.
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
            key: key(row.get(1), row.get(2)),
            kind: row.get(3),
        };
        rows.iter().map(one).collect()
    };
    let Some((firsts, lasts)) = asked.gaps() else {
        let form = values.form(StatementForm::TermFew, StatementForm::AuthorFew);
        return Ok(read(&session.query(form, &[values.array(), &few_max, &from, &to])?));
    };
    let between = values.form(StatementForm::TermFewBut, StatementForm::AuthorFewBut);
    if values.len() <= GAPS_VALUES_MAX {
        let rows =
            session.query(between, &[values.array(), &few_max, &firsts, &lasts, &from, &to])?;
        return Ok(read(&rows));
    }
    let form = values.form(StatementForm::TermFew, StatementForm::AuthorFew);
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
