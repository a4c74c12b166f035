//! The text and the values of a statement that counts.

use tokio_postgres::types::ToSql;

use crate::search::SqlQuery;
use crate::terms::DatabaseTermHasher;
use crate::time::to_db;

/// The statements that count the matches of queries.
pub(crate) struct CountStatements {
    /// One statement for each query.
    pub(crate) statements: Vec<(String, StatementText)>,
    /// The column that has the number of visited rows. The first column has the number of matches.
    pub(crate) visited_column: usize,
}

/// The conditions and the values of a statement that is being built.
#[derive(Default)]
pub(crate) struct StatementText {
    pub(crate) conditions: Vec<String>,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl StatementText {
    /// Adds a value, and returns its name in the text, for example $3.
    pub(crate) fn value(&mut self, value: impl ToSql + Sync + Send + 'static) -> String {
        self.values.push(Box::new(value));
        format!("${}", self.values.len())
    }

    pub(crate) fn condition(&mut self, words: impl Into<String>) {
        self.conditions.push(words.into());
    }

    pub(crate) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.values.iter().map(|value| &**value as _).collect()
    }
}

pub(crate) fn signed(kinds: &[u32]) -> Vec<i32> {
    kinds.iter().map(|kind| kind.cast_signed()).collect()
}

pub(crate) fn lists(keys: &[[u8; 32]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}

/// Adds all conditions of the query except times and ids.
pub(crate) fn conditions(asked: &SqlQuery, terms: &DatabaseTermHasher, text: &mut StatementText) {
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
