//! nostream's two translations of a filter to SQL: older versions query the tags as jsonb, and
//! newer versions join `event_tags`. A filter without tags becomes the same SQL in both
//! translations.

use std::fmt::Write as _;

use anyhow::Context as _;
use hark_codec::nostr::{Filter, json};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

/// nostream's limit for filters without a limit.
const LIMIT_DEFAULT: i64 = 500;

/// How tags are queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagLookup {
    Jsonb,
    EventTags,
}

/// A value that is bound to a statement.
enum SqlValue {
    Bytes(Vec<u8>),
    Int(i32),
    Long(i64),
    Text(String),
}

impl SqlValue {
    fn bound(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Bytes(bytes) => (bytes, Type::BYTEA),
            Self::Int(number) => (number, Type::INT4),
            Self::Long(number) => (number, Type::INT8),
            Self::Text(text) => (text, Type::TEXT),
        }
    }
}

/// A statement under construction, with its bound values.
#[derive(Default)]
struct SqlStatement {
    sql: String,
    values: Vec<SqlValue>,
}

impl SqlStatement {
    fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// Binds a value and appends its placeholder.
    fn bind(&mut self, value: SqlValue) {
        self.values.push(value);
        // Writing to a String cannot fail.
        let _ = write!(self.sql, "${}", self.values.len());
    }

    fn is_one_of(&mut self, column: &str, values: impl Iterator<Item = SqlValue>) {
        self.push(" AND ");
        self.push(column);
        for (at, value) in values.enumerate() {
            self.push(if at == 0 { " IN (" } else { ", " });
            self.bind(value);
        }
        self.push(")");
    }
}

impl TagLookup {
    /// Runs a filter as the PostgreSQL driver of Node.js does, with values bound to an unnamed
    /// statement. Reads all columns of the answer and returns its number of events.
    pub(super) async fn ask(self, client: &Client, filter: &str) -> anyhow::Result<u64> {
        let mut parsed = Filter::default();
        parsed.parse(filter.as_bytes()).context("a filter of the bench is invalid")?;
        let statement = self.statement(&parsed);
        let values: Vec<_> = statement.values.iter().map(SqlValue::bound).collect();
        let rows = client.query_typed(&statement.sql, &values).await?;
        Ok(rows.len() as u64)
    }

    fn statement(self, filter: &Filter) -> SqlStatement {
        let mut out = SqlStatement::default();
        let joined = self == Self::EventTags && filter.tags().next().is_some();
        out.push(if joined {
            "SELECT DISTINCT events.* FROM events \
             LEFT JOIN event_tags ON events.event_id = event_tags.event_id WHERE true"
        } else {
            "SELECT events.* FROM events WHERE true"
        });
        let bytes = |key: &[u8; 32]| SqlValue::Bytes(key.to_vec());
        if let Some(authors) = filter.authors() {
            out.is_one_of("event_pubkey", authors.iter().map(bytes));
        }
        if let Some(ids) = filter.ids() {
            out.is_one_of("events.event_id", ids.iter().map(bytes));
        }
        if let Some(kinds) = filter.kinds() {
            out.is_one_of("event_kind", kinds.iter().map(|kind| SqlValue::Int(i32::from(*kind))));
        }
        let time = |time: u64| SqlValue::Int(i32::try_from(time).unwrap_or(i32::MAX));
        if let Some(since) = filter.since() {
            out.push(" AND event_created_at >= ");
            out.bind(time(since));
        }
        if let Some(until) = filter.until() {
            out.push(" AND event_created_at <= ");
            out.bind(time(until));
        }
        for (letter, values) in filter.tags() {
            let name = char::from(letter).to_string();
            for (at, value) in values.iter().enumerate() {
                out.push(if at == 0 { " AND (" } else { " OR " });
                self.tag(&mut out, &name, value);
            }
            out.push(")");
        }
        let limit = filter.limit().and_then(|limit| i64::try_from(limit).ok());
        out.push(" ORDER BY event_created_at DESC, event_id ASC LIMIT ");
        out.bind(SqlValue::Long(limit.unwrap_or(LIMIT_DEFAULT)));
        out
    }

    fn tag(self, out: &mut SqlStatement, name: &str, value: &str) {
        match self {
            Self::Jsonb => {
                let mut text = b"[[".to_vec();
                json::write_string(&mut text, name);
                text.push(b',');
                json::write_string(&mut text, value);
                text.extend_from_slice(b"]]");
                out.push("event_tags @> ");
                out.bind(SqlValue::Text(String::from_utf8_lossy(&text).into_owned()));
                out.push("::text::jsonb");
            }
            Self::EventTags => {
                out.push("event_tags.tag_name = ");
                out.bind(SqlValue::Text(name.to_owned()));
                out.push(" AND event_tags.tag_value = ");
                out.bind(SqlValue::Text(value.to_owned()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sql(form: TagLookup, filter: &str) -> (String, usize) {
        let mut parsed = Filter::default();
        parsed.parse(filter.as_bytes()).unwrap();
        let statement = form.statement(&parsed);
        (statement.sql, statement.values.len())
    }

    #[test]
    fn tags_are_joined_or_contained_and_what_has_none_is_asked_alike() {
        let tags = r##"{"kinds":[1,7],"#t":["a","b"],"until":9,"limit":5}"##;
        assert_eq!(
            sql(TagLookup::EventTags, tags),
            (
                "SELECT DISTINCT events.* FROM events LEFT JOIN event_tags ON events.event_id = \
                 event_tags.event_id WHERE true AND event_kind IN ($1, $2) AND event_created_at <= \
                 $3 AND (event_tags.tag_name = $4 AND event_tags.tag_value = $5 OR \
                 event_tags.tag_name = $6 AND event_tags.tag_value = $7) \
                 ORDER BY event_created_at DESC, event_id ASC LIMIT $8"
                    .into(),
                8
            )
        );
        let (jsonb, values) = sql(TagLookup::Jsonb, tags);
        assert!(
            jsonb.contains("AND (event_tags @> $4::text::jsonb OR event_tags @> $5"),
            "{jsonb}"
        );
        assert_eq!(values, 6);
        let plain = r#"{"kinds":[1],"limit":5}"#;
        assert_eq!(sql(TagLookup::EventTags, plain), sql(TagLookup::Jsonb, plain));
    }
}
