//! Counts the matches of queries for words.

use std::sync::Arc;

use hark_archive::Query;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::statement::PlainStatement;
use crate::count::{CountedRows, StatementText, all_matches, conditions, number, read, signed};
use crate::error::StatementError;
use crate::query_sessions::QuerySessions;
use crate::search::{Sessions as _, SqlQuery};
use crate::session::DatabaseSession;
use crate::state::PostgresState;
use crate::time::to_db;
use crate::words::state::WordState;

/// Maximum number of rows that are counted for each word to find the rarest word.
const COUNTED_MAX: i64 = 4_000;

/// Counts the matches of a query for words. The database counts the matches if the query has only
/// words, kinds and times, and if the words are indexed. Otherwise Hark reads the records.
pub(crate) fn worded(
    sessions: &mut QuerySessions,
    query: &Query,
) -> Result<CountedRows, StatementError> {
    let inner = Arc::clone(sessions.inner());
    let asked = all_matches(&inner, query, sessions.position());
    if !asked.iter().all(has_words_alone) {
        return read(asked, sessions);
    }
    let counted = sessions.with(|session| {
        // If the index of these words was complete before and after the count, it was not cleared
        // in between, so the count is right.
        let is_indexed = |session: &mut DatabaseSession| {
            let state = WordState::read(session)?;
            Ok::<_, StatementError>(asked.iter().all(|asked| state.has(&asked.query, asked.seq)))
        };
        if !is_indexed(session)? {
            return Ok(None);
        }
        let counted = count_words(&asked, &inner, query.budget, session)?;
        Ok(is_indexed(session)?.then_some(counted))
    })?;
    match counted {
        Some(counted) => Ok(counted),
        None => read(asked, sessions),
    }
}

/// Whether a query has only conditions on words, kinds and times, and every record with these words
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

/// Counts the matches of queries whose words are indexed. `budget` bounds the number of visited
/// rows of words.
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

/// Returns the index of the word with the fewest rows. At most [`COUNTED_MAX`] rows of each word
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
    let calls: Vec<_> =
        given.iter().map(|given| (PlainStatement::WordSize.into(), &given[..])).collect();
    let sizes = session.pipeline(&calls)?;
    let size = |rows: &Vec<Row>| rows.first().map_or(0, |row| row.get::<_, i64>(0));
    // Among words with equally many rows, the first is chosen, because it is the longest and so
    // probably the rarest.
    let best = sizes.iter().enumerate().min_by_key(|(_, rows)| size(rows));
    Ok(best.map_or(0, |(at, _)| at))
}

/// Returns a statement that visits at most `rows_max` + 1 rows of the first word. The statement
/// returns the number of matching records that also have the other words, and the number of visited
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
    conditions(asked, &inner.shelf.terms, &mut text);
    let rows_max = text.value(rows_max.saturating_add(1));
    let conditions = text.conditions.join(" AND ");
    // The records that have the other words are found by the first 62 bits of their ids.
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
