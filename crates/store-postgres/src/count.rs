//! Counts matches in the database with one statement, which is built from the query's conditions.
//!
//! Labels are compared by their terms alone, so a chance collision of a keyed 64-bit hash would add
//! one to the count.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::plan::Set;
use hark_archive::{Query, Record, SearchProgress};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::layout::StatementForm;
use crate::line::TimelinePosition;
use crate::replica::QuerySessions;
use crate::search::windows::id_head;
use crate::search::{Finders, Sessions as _, SqlQuery};
use crate::session::{DatabaseSession, StatementError};
use crate::state::PostgresState;
use crate::terms::DatabaseTermHasher;
use crate::time::to_db;
use crate::words::state::WordState;

/// Maximum number of rows that are counted of each word to choose the rarest.
const COUNTED_MAX: i64 = 4_000;

/// The conditions and the values of a statement that is being built.
#[derive(Default)]
struct StatementText {
    conditions: Vec<String>,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl StatementText {
    /// Adds a value, and returns the value's name in the text.
    fn value(&mut self, value: impl ToSql + Sync + Send + 'static) -> String {
        self.values.push(Box::new(value));
        format!("${}", self.values.len())
    }

    fn condition(&mut self, words: impl Into<String>) {
        self.conditions.push(words.into());
    }

    fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.values.iter().map(|value| &**value as _).collect()
    }
}

fn signed(kinds: &[u32]) -> Vec<i32> {
    kinds.iter().map(|kind| kind.cast_signed()).collect()
}

fn lists(keys: &[[u8; 32]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}

/// Returns the queries for all matches of a query, ignoring its limit and cursor. Empty if nothing
/// can match; several if a gate divides the query.
fn all_matches(inner: &PostgresState, query: &Query, position: TimelinePosition) -> Vec<SqlQuery> {
    let query = &Query { after: None, limit: usize::MAX, ..query.clone() };
    let mut asked = inner.asked(query, position);
    asked.retain(|asked| !asked.query.is_void());
    asked
}

/// The result of a count.
pub(crate) struct CountedRows {
    /// The number of matches. `None` if the query's budget of rows is exceeded.
    pub(crate) matches: Option<u64>,
    /// Rows that the count has visited.
    pub(crate) visited: u64,
}

impl CountedRows {
    /// A count that has visited this many rows, of which the budget allows `budget`.
    fn within(budget: u64, matches: u64, visited: u64) -> Self {
        Self { matches: (visited <= budget).then_some(matches), visited }
    }
}

/// The number in a column of the only row of a result.
fn number(rows: &[Row], column: usize) -> u64 {
    rows.first().map_or(0, |row| row.get::<_, i64>(column)).max(0).cast_unsigned()
}

/// The statements that count a query's matches. The statements ignore the query's limit and cursor.
pub(crate) struct CountQuery {
    /// Empty if nothing can match; several if a gate divides the query.
    statements: Vec<(String, StatementText)>,
    budget: u64,
}

impl CountQuery {
    pub(crate) fn new(inner: &PostgresState, query: &Query, position: TimelinePosition) -> Self {
        let asked = all_matches(inner, query, position);
        let budget = i64::try_from(query.budget).unwrap_or(i64::MAX);
        let statements = asked.iter().map(|asked| statement(asked, &inner.terms, budget)).collect();
        Self { statements, budget: query.budget }
    }

    /// Counts the matching records.
    pub(crate) fn count(
        &self,
        session: &mut DatabaseSession,
    ) -> Result<CountedRows, StatementError> {
        let (mut matches, mut visited) = (0, 0_u64);
        for (sql, text) in &self.statements {
            let rows = session.query_once(sql, &text.values())?;
            matches += number(&rows, 0);
            visited = visited.saturating_add(number(&rows, 1));
            if visited > self.budget {
                break;
            }
        }
        Ok(CountedRows::within(self.budget, matches, visited))
    }

    /// Returns the statements, each with PostgreSQL's output of EXPLAIN ANALYZE.
    pub(crate) fn explain(
        &self,
        session: &mut DatabaseSession,
    ) -> Result<Vec<String>, StatementError> {
        let mut lines = Vec::new();
        for (sql, text) in &self.statements {
            lines.push(sql.clone());
            lines.extend(session.explain(sql, &text.values())?);
        }
        Ok(lines)
    }
}

/// Counts the matches in distributed tables. The workers count them unless the query has conditions
/// of labels.
pub(crate) fn placed(
    inner: &Arc<PostgresState>,
    query: &Query,
) -> Result<CountedRows, StatementError> {
    let position = inner.current.now();
    let mut reading = QuerySessions::new(Arc::clone(inner), position);
    let asked = all_matches(inner, query, position);
    let mut count = 0_u64;
    if asked.iter().all(|asked| asked.terms.is_empty()) {
        for asked in &asked {
            let (sql, text) = whole_statement(asked, &inner.terms);
            let rows = reading.with(|session| session.query_once(&sql, &text.values()))?;
            count += number(&rows, 0);
        }
        return Ok(CountedRows::within(query.budget, count, count));
    }
    read(inner, asked, &mut reading)
}

/// Counts matches by reading the records.
fn read(
    inner: &PostgresState,
    asked: Vec<SqlQuery>,
    reading: &mut QuerySessions,
) -> Result<CountedRows, StatementError> {
    let (mut finders, mut count) = (Finders::new(asked), 0);
    let mut each = |_: &Record<'_>| {
        count += 1;
        ControlFlow::Continue(())
    };
    let progress = finders.slice(inner, u64::MAX, reading, &mut each)?;
    let matches = (progress != SearchProgress::Exhausted).then_some(count);
    Ok(CountedRows { matches, visited: finders.visited() })
}

/// Counts the matches of a query for words. The database counts them if the query has only words,
/// kinds and times, and the words are indexed. Otherwise the records are read.
pub(crate) fn worded(
    inner: &Arc<PostgresState>,
    query: &Query,
    position: TimelinePosition,
) -> Result<CountedRows, StatementError> {
    let mut reading = QuerySessions::new(Arc::clone(inner), position);
    let asked = all_matches(inner, query, position);
    if !asked.iter().all(has_words_alone) {
        return read(inner, asked, &mut reading);
    }
    let counted = reading.with(|session| {
        // The count is complete if the index of these words is complete before and after it: the
        // index was not cleared meanwhile.
        let is_indexed = |session: &mut DatabaseSession| {
            let state = WordState::read(session)?;
            Ok::<_, StatementError>(asked.iter().all(|asked| state.has(&asked.query, asked.seq)))
        };
        if !is_indexed(session)? {
            return Ok(None);
        }
        let counted = count_words(&asked, inner, query.budget, session)?;
        Ok(is_indexed(session)?.then_some(counted))
    })?;
    match counted {
        Some(counted) => Ok(counted),
        None => read(inner, asked, &mut reading),
    }
}

/// Whether a query has conditions of words, kinds and times only, and every record with these words
/// matches.
fn has_words_alone(asked: &SqlQuery) -> bool {
    let query = &asked.query;
    let is_alone = query.ids.is_none() && query.authors.is_none() && query.labels.is_empty();
    let is_enough = query.words.as_ref().is_some_and(|words| {
        let needed = words.needed();
        let is_whole = needed.iter().all(|needed| !needed.is_prefix);
        words.is_needed_enough() && is_whole && !needed.is_empty()
    });
    is_enough && is_alone && query.kinds.is_some() && asked.driver.is_none()
}

/// Counts the matches of queries whose words are indexed. `budget` bounds the visited rows of words.
fn count_words(
    asked: &[SqlQuery],
    inner: &PostgresState,
    budget: u64,
    session: &mut DatabaseSession,
) -> Result<CountedRows, StatementError> {
    let (mut matches, mut visited) = (0, 0);
    for asked in asked {
        let words = asked.query.words.as_ref().map_or(&[][..], |words| words.needed());
        let mut words: Vec<Vec<u8>> =
            words.iter().map(|one| one.word.as_bytes().to_vec()).collect();
        let kinds = signed(asked.query.kinds.as_deref().unwrap_or_default());
        let first = words.remove(rarest(&words, &kinds, session)?);
        let left = i64::try_from(budget - visited).unwrap_or(i64::MAX);
        let (sql, text) = word_statement(asked, inner, (first, words), kinds, left);
        let rows = session.query_once(&sql, &text.values())?;
        matches += number(&rows, 0);
        visited += number(&rows, 1);
        if visited > budget {
            break;
        }
    }
    Ok(CountedRows::within(budget, matches, visited))
}

/// Returns the position of the word with the fewest rows. At most [`COUNTED_MAX`] rows of each word
/// are counted.
fn rarest(
    words: &[Vec<u8>],
    kinds: &[i32],
    session: &mut DatabaseSession,
) -> Result<usize, StatementError> {
    if words.len() < 2 {
        return Ok(0);
    }
    let words: Vec<[&[u8]; 1]> = words.iter().map(|word| [&word[..]]).collect();
    let words: Vec<&[&[u8]]> = words.iter().map(|word| &word[..]).collect();
    let given: Vec<[&(dyn ToSql + Sync); 3]> =
        words.iter().map(|word| [word as _, &COUNTED_MAX as _, &kinds as _]).collect();
    let calls: Vec<_> = given.iter().map(|given| (StatementForm::WordSize, &given[..])).collect();
    let sizes = session.pipeline(&calls)?;
    let size = |rows: &Vec<Row>| rows.first().map_or(0, |row| row.get::<_, i64>(0));
    // If counts are equal, the first word is used: it is the longest, and so likely to be the
    // rarest.
    let best = sizes.iter().enumerate().min_by_key(|(_, rows)| size(rows));
    Ok(best.map_or(0, |(at, _)| at))
}

/// Returns a statement that visits the rows of the first word, at most `rows_max` and one more. It
/// counts the matching records that have the other words, and also returns the number of visited
/// rows.
fn word_statement(
    asked: &SqlQuery,
    inner: &PostgresState,
    (first, others): (Vec<u8>, Vec<Vec<u8>>),
    kinds: Vec<i32>,
    rows_max: i64,
) -> (String, StatementText) {
    let query = &asked.query;
    let mut text = StatementText::default();
    let times = [text.value(to_db(query.from)), text.value(to_db(query.to))];
    let (kinds, word, others) = (text.value(kinds), text.value(first), text.value(others));
    conditions(asked, &inner.terms, &mut text);
    let rows_max = text.value(rows_max.saturating_add(1));
    let conditions = text.conditions.join(" AND ");
    // A record that has the other words is found by the first 62 bits of its id.
    let top = "(-9223372036854775808)";
    let sql = format!(
        "SELECT count(r.matches), count(*) FROM (SELECT w.time, w.mark, w.kind \
         FROM unnest({kinds}::int[]) k(kind) CROSS JOIN LATERAL (SELECT w.time, w.mark, w.kind \
         FROM word w WHERE w.word = {word} AND w.kind = k.kind AND w.time >= {from} \
         AND w.time <= {to} OFFSET 0) w LIMIT {rows_max}) w LEFT JOIN LATERAL (SELECT true AS matches \
         FROM (SELECT r.* FROM record r WHERE (SELECT count(*) FROM unnest({others}::bytea[]) \
         AS o(word) CROSS JOIN LATERAL (SELECT FROM word v WHERE v.word = o.word \
         AND v.kind = w.kind AND v.time = w.time AND v.mark >= (w.mark | 3) - 3 \
         AND v.mark <= (w.mark | 3) LIMIT 1) v) = cardinality({others}::bytea[]) \
         AND r.time = w.time AND r.id >= int8send(((w.mark | 3) - 3) # {top}) \
         ORDER BY r.time DESC, r.id LIMIT 1) r WHERE {conditions}) r ON true",
        from = times[0],
        to = times[1],
    );
    (sql, text)
}

/// Returns a statement that each shard can execute by itself.
fn whole_statement(asked: &SqlQuery, terms: &DatabaseTermHasher) -> (String, StatementText) {
    let query = &asked.query;
    let mut text = StatementText::default();
    let times = [text.value(to_db(query.from)), text.value(to_db(query.to))];
    text.condition(format!("r.time >= {} AND r.time <= {}", times[0], times[1]));
    if let Some(ids) = &query.ids {
        let heads: Vec<i64> = ids.iter().map(id_head).collect();
        let (heads, ids) = (text.value(heads), text.value(lists(ids)));
        text.condition(format!(
            "r.id_head = ANY({heads}::bigint[]) AND r.id = ANY({ids}::bytea[])"
        ));
    }
    if let Some(authors) = &query.authors {
        let authors = text.value(lists(authors));
        text.condition(format!("r.place = ANY({authors}::bytea[])"));
    }
    conditions(asked, terms, &mut text);
    let sql = format!("SELECT count(*) FROM record r WHERE {}", text.conditions.join(" AND "));
    (sql, text)
}

/// Returns a statement that visits at most `budget` rows and one more. It counts the matching
/// records, and also returns the number of visited rows.
fn statement(asked: &SqlQuery, terms: &DatabaseTermHasher, budget: i64) -> (String, StatementText) {
    let query = &asked.query;
    let mut text = StatementText::default();
    let times = [text.value(to_db(query.from)), text.value(to_db(query.to))];
    let within =
        |table: &str| format!("{table}.time >= {} AND {table}.time <= {}", times[0], times[1]);
    let rows_max = text.value(budget.saturating_add(1));
    let (from, rows) = driver(asked, &mut text, &within, &rows_max);
    conditions(asked, terms, &mut text);
    let conditions = text.conditions.join(" AND ");
    let sql = format!(
        "SELECT count(*) FILTER (WHERE {conditions}), coalesce(sum(r.rows), 0)::bigint \
         FROM (SELECT r.seq, r.expires, r.kind, r.author, r.terms, {rows} AS rows FROM {from} \
         WHERE {} LIMIT {rows_max}) r",
        within("r")
    );
    (sql, text)
}

/// Adds the query's conditions other than its times and ids.
fn conditions(asked: &SqlQuery, terms: &DatabaseTermHasher, text: &mut StatementText) {
    let query = &asked.query;
    let seq = text.value(asked.seq);
    text.condition(format!("r.seq <= {seq}"));
    let now = text.value(to_db(query.now));
    text.condition(format!("(r.expires IS NULL OR r.expires > {now})"));
    if let Some(kinds) = &query.kinds {
        let kinds = text.value(signed(kinds));
        text.condition(format!("r.kind = ANY({kinds}::int[])"));
    }
    if !query.not_kinds.is_empty() {
        let kinds = text.value(signed(&query.not_kinds));
        text.condition(format!("r.kind <> ALL({kinds}::int[])"));
    }
    if let Some(authors) = &query.authors {
        let authors = text.value(lists(authors));
        text.condition(format!("r.author = ANY({authors}::bytea[])"));
    }
    if !query.not_authors.is_empty() {
        let authors = text.value(lists(&query.not_authors));
        text.condition(format!("coalesce(r.author <> ALL({authors}::bytea[]), true)"));
    }
    for terms in &asked.terms {
        let terms = text.value(terms.clone().unwrap_or_default());
        text.condition(format!("r.terms && {terms}::bigint[]"));
    }
    if let Some(gate) = &query.gate {
        let addressed = gate.addressed.values.iter();
        let addressed: Vec<i64> =
            addressed.filter_map(|value| terms.label(gate.addressed.name, value, None)).collect();
        let kinds = text.value(signed(&gate.kinds));
        let readers = text.value(lists(&gate.readers));
        let addressed = text.value(addressed);
        text.condition(format!(
            "(r.kind <> ALL({kinds}::int[]) OR coalesce(r.author = ANY({readers}::bytea[]), false) \
             OR r.terms && {addressed}::bigint[])"
        ));
    }
}

/// Returns the FROM clause that finds the records, and the number of rows that were visited for a
/// record. At most `rows_max` rows of labels are visited.
fn driver(
    asked: &SqlQuery,
    text: &mut StatementText,
    within: &dyn Fn(&str) -> String,
    rows_max: &str,
) -> (String, &'static str) {
    let query = &asked.query;
    if let Some(ids) = &query.ids {
        let ids = text.value(lists(ids));
        return (format!("unnest({ids}::bytea[]) v(id) JOIN record r ON r.id = v.id"), "1");
    }
    let authors = query.authors.as_ref().map_or(usize::MAX, Vec::len);
    let label = match asked.driver {
        Some(Set::Label(at)) => asked.terms.get(at).and_then(Option::as_ref),
        Some(_) => None,
        None => {
            let labels = asked.terms.iter().flatten();
            labels.min_by_key(|terms| terms.len()).filter(|terms| terms.len() < authors)
        }
    };
    // Rows of excluded kinds are not read.
    let gaps = asked.gaps().filter(|_| label.is_some() || query.authors.is_some());
    let kinds = match (&query.kinds, gaps) {
        (Some(kinds), _) => {
            let kinds = text.value(signed(kinds));
            Some((format!("unnest({kinds}::int[]) k(kind)"), "= k.kind"))
        }
        (None, Some((firsts, lasts))) => {
            let (firsts, lasts) = (text.value(firsts), text.value(lasts));
            let ranges = format!("unnest({firsts}::int[], {lasts}::int[]) k(first, last)");
            Some((ranges, "BETWEEN k.first AND k.last"))
        }
        (None, None) => None,
    };
    if let Some(terms) = label {
        let terms = text.value(terms.clone());
        let (and_kinds, of_kind) = kinds.map_or_else(Default::default, |(kinds, within)| {
            (format!(", {kinds}"), format!(" AND t.kind {within}"))
        });
        let from = format!(
            "(SELECT t.time, t.id, count(*) AS rows FROM (SELECT t.time, t.id \
             FROM unnest({terms}::bigint[]) v(term){and_kinds} \
             CROSS JOIN LATERAL (SELECT t.time, t.id FROM tag t WHERE t.term = v.term{of_kind} \
             AND {} OFFSET 0) t LIMIT {rows_max}) t GROUP BY t.time, t.id) t \
             CROSS JOIN LATERAL (SELECT r.* FROM record r \
             WHERE r.time = t.time AND r.id = t.id LIMIT 1) r",
            within("t")
        );
        return (from, "t.rows");
    }
    let (mut lists_of, mut same) = (Vec::new(), Vec::new());
    if let Some(authors) = &query.authors {
        let authors = text.value(lists(authors));
        lists_of.push(format!("unnest({authors}::bytea[]) a(author)"));
        same.push("r.author = a.author".to_owned());
    }
    if let Some((kinds, within)) = kinds {
        lists_of.push(kinds);
        same.push(format!("r.kind {within}"));
    }
    if lists_of.is_empty() {
        return ("record r".into(), "1");
    }
    let from = format!(
        "{} CROSS JOIN LATERAL (SELECT r.* FROM record r WHERE {} AND {} OFFSET 0) r",
        lists_of.join(" CROSS JOIN "),
        same.join(" AND "),
        within("r")
    );
    (from, "1")
}
