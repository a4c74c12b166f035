//! Counts matches in distributed tables. Each worker counts in its own shards.

use super::places::id_head;
use crate::count::{CountStatements, StatementText, conditions, lists};
use crate::search::SqlQuery;
use crate::terms::DatabaseTermHasher;
use crate::time::to_db;

/// Returns the statements that count the matches of queries. Returns `None` if a query has a
/// condition on labels, or if the count may visit only a limited number of rows, because the
/// statements read all rows of the queries' times.
pub(super) fn statements(
    asked: &[SqlQuery],
    terms: &DatabaseTermHasher,
    budget: u64,
) -> Option<CountStatements> {
    if budget < u64::MAX || !asked.iter().all(|asked| asked.terms.is_empty()) {
        return None;
    }
    let statements = asked.iter().map(|asked| statement(asked, terms)).collect();
    // The number of matches also serves as the number of visited rows.
    Some(CountStatements { statements, visited_column: 0 })
}

/// Returns a statement that each shard can execute by itself.
fn statement(asked: &SqlQuery, terms: &DatabaseTermHasher) -> (String, StatementText) {
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
