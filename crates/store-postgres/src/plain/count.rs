//! Counts matches on one server with one statement for each query.

use hark_archive::query::plan::Set;

use crate::count::{CountStatements, StatementText, conditions, lists, signed};
use crate::search::SqlQuery;
use crate::terms::DatabaseTermHasher;
use crate::time::to_db;

/// Returns the statements that count the matches of queries. Each visits at most `budget` + 1 rows.
pub(super) fn statements(
    asked: &[SqlQuery],
    terms: &DatabaseTermHasher,
    budget: u64,
) -> CountStatements {
    let budget = i64::try_from(budget).unwrap_or(i64::MAX);
    let statements = asked.iter().map(|asked| statement(asked, terms, budget)).collect();
    CountStatements { statements, visited_column: 1 }
}

/// Returns a statement that visits at most `budget` + 1 rows. The statement returns the number of
/// matching records and the number of visited rows.
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

/// Returns the FROM clause that finds the records, and an expression for the number of rows that
/// were visited for a record. At most `rows_max` rows of labels are visited.
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
