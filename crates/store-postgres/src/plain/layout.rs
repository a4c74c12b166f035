//! The steps of the layout for one server.

use std::collections::HashMap;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::check::{PlainCheck, PlainRepair};
use super::commit;
use super::count::statements;
use super::finder::PlainSteps;
use super::label_storage::{LabelStorage, label_storage};
use super::retire;
use super::statement::PlainStatement;
use crate::check::RepairSteps;
use crate::check::steps::CheckSteps;
use crate::citus::ShardReads;
use crate::commit::fetch::{FetchedState, RuleLookups};
use crate::commit::{CommittedBatch, PreparedPut, ShelfAdvance};
use crate::connector::Connector;
use crate::count::CountStatements;
use crate::error::StatementError;
use crate::layout::{Layout, LayoutFacts, MigrationText};
use crate::news::{NewsPage, NumberedPut};
use crate::properties::ShelfProperties;
use crate::search::recent::RecentRecords;
use crate::search::{SearchState, SearchSteps, SqlQuery};
use crate::session::DatabaseSession;
use crate::statement::StatementForm;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// The layout of the tables that `migrations/` creates.
pub(crate) struct PlainLayout {
    labels: LabelStorage,
}

impl PlainLayout {
    /// The layout whose labels have rows of their own.
    pub(crate) const LABELLED: Self = Self { labels: LabelStorage::Rows };
    /// The layout of slim tables.
    pub(crate) const SLIM: Self = Self { labels: LabelStorage::Records };
}

/// Returns the layout of the tables of this session's schema.
pub(crate) fn plain_layout(
    session: &mut DatabaseSession,
) -> Result<&'static PlainLayout, StatementError> {
    Ok(match label_storage(session)? {
        LabelStorage::Rows => &PlainLayout::LABELLED,
        LabelStorage::Records => &PlainLayout::SLIM,
    })
}

impl Layout for PlainLayout {
    fn facts(&self) -> LayoutFacts {
        LayoutFacts { is_cluster: false, has_words: true, has_parts: true }
    }

    // Hark chooses the plans: with these settings, every statement becomes a nested loop over
    // ordered index ranges.
    fn settings(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("plan_cache_mode", "force_generic_plan"),
            ("jit", "off"),
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("enable_sort", "off"),
            ("enable_material", "off"),
            ("enable_memoize", "off"),
            ("max_parallel_workers_per_gather", "0"),
            ("default_transaction_isolation", "read committed"),
            ("synchronous_commit", "on"),
            ("client_min_messages", "warning"),
            ("idle_in_transaction_session_timeout", "30s"),
            // Without this setting, commits are refused: see migrations/0004_words.sql.
            ("hark.writes_words", "on"),
        ]
    }

    fn migrations(&self) -> &'static [MigrationText] {
        &[
            (1, "shelf", include_str!("../../migrations/0001_shelf.sql")),
            (2, "line", include_str!("../../migrations/0002_line.sql")),
            (3, "label_values", include_str!("../../migrations/0003_label_values.sql")),
            (4, "words", include_str!("../../migrations/0004_words.sql")),
        ]
    }

    fn begin_migrations(&self, _: &mut DatabaseSession, _: u32) -> Result<(), StatementError> {
        Ok(())
    }

    fn end_migrations(&self, _: &mut DatabaseSession) -> Result<(), StatementError> {
        Ok(())
    }

    fn sizes(&self) -> &'static str {
        "SELECT (SELECT records FROM state), \
            coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint, \
            coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint, \
            coalesce(sum(pg_stat_get_dead_tuples(c.oid)) FILTER (WHERE c.relname LIKE 'record%'), \
            0)::bigint, \
            (SELECT min(time) FROM record), (SELECT max(time) FROM record), \
            (SELECT seq FROM state) \
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE n.nspname = $1::text AND c.relkind = 'r'"
    }

    fn lock(&self) -> StatementForm {
        PlainStatement::Lock.into()
    }

    fn newest(
        &self,
        session: &mut DatabaseSession,
        _: &SearchState,
    ) -> Result<Option<(i64, i64)>, StatementError> {
        let rows = session.query(PlainStatement::Newest, &[])?;
        Ok(rows.first().map(|row| (row.get(0), row.get(1))))
    }

    fn news(
        &self,
        session: &mut DatabaseSession,
        after: i64,
        limit: i64,
    ) -> Result<NewsPage, StatementError> {
        // A statement may see the number that a commit has reached, and lack the part that the same
        // commit has made. A statement that begins later sees the part.
        let mut news = read_news(session, after, i64::MAX, 0)?;
        if let Some((_, seq)) = news.at.filter(|(_, seq)| *seq > after) {
            news.puts = self.puts(session, after, seq, limit)?;
        }
        Ok(news)
    }

    fn puts(
        &self,
        session: &mut DatabaseSession,
        after: i64,
        to: i64,
        limit: i64,
    ) -> Result<Vec<NumberedPut>, StatementError> {
        Ok(read_news(session, after, to, limit)?.puts)
    }

    fn retired_values(
        &self,
        session: &mut DatabaseSession,
    ) -> Result<Vec<HashMap<i64, i64>>, StatementError> {
        let retired = session.query_once("SELECT number FROM retired", &[])?;
        retired.iter().map(|row| retire::count_values(session, row.get(0))).collect()
    }

    fn record_cache(&self) -> Option<RecentRecords> {
        Some(RecentRecords::default())
    }

    fn shard_reads(&self, _: &Connector, _: usize) -> Option<ShardReads> {
        None
    }

    fn search_steps(&self) -> Box<dyn SearchSteps> {
        Box::new(PlainSteps::new(self.labels))
    }

    fn count_statements(
        &self,
        asked: &[SqlQuery],
        terms: &DatabaseTermHasher,
        budget: u64,
    ) -> Option<CountStatements> {
        Some(statements(asked, terms, budget))
    }

    fn check_steps(&self) -> Box<dyn CheckSteps> {
        Box::new(PlainCheck::default())
    }

    fn repair_steps(&self) -> Option<Box<dyn RepairSteps>> {
        Some(Box::new(PlainRepair::default()))
    }

    fn prepare_committer(&self, _: &mut DatabaseSession) -> Result<(), StatementError> {
        Ok(())
    }

    // The lock of the row in `state` keeps other processes from committing, and `Advance` notifies
    // these processes.
    fn enter(&self, _: &mut DatabaseSession) -> Result<(), StatementError> {
        Ok(())
    }

    fn publish(
        &self,
        _: &mut DatabaseSession,
        _: &CommittedBatch,
        _: &SearchState,
    ) -> Result<(), StatementError> {
        Ok(())
    }

    fn rule_lookups(&self) -> RuleLookups {
        commit::LOOKUPS
    }

    fn fetch(
        &self,
        session: &mut DatabaseSession,
        puts: &[Option<PreparedPut<'_>>],
        terms: &DatabaseTermHasher,
    ) -> Result<FetchedState, StatementError> {
        commit::fetch(session, puts, terms)
    }

    fn delete(
        &self,
        session: &mut DatabaseSession,
        shelf: &ShelfProperties,
        deleted: &[IndexKey],
    ) -> Result<i64, StatementError> {
        commit::delete(session, shelf, deleted)
    }

    // A single server has all rows of a commit or none, so a lost commit leaves no rows.
    fn sweep(
        &self,
        _: &mut DatabaseSession,
        _: &ShelfProperties,
        _: &[(i64, &PreparedPut<'_>)],
    ) -> Result<i64, StatementError> {
        Ok(0)
    }

    fn insert(
        &self,
        session: &mut DatabaseSession,
        shelf: &ShelfProperties,
        kept: &[(i64, &PreparedPut<'_>)],
    ) -> Result<u64, StatementError> {
        commit::insert(session, shelf, kept, self.labels)
    }

    fn advance(
        &self,
        session: &mut DatabaseSession,
        advance: ShelfAdvance,
    ) -> Result<(), StatementError> {
        let ShelfAdvance { seq, records, has_deleted, words_seq } = advance;
        let has_deleted = i32::from(has_deleted);
        let values: [&(dyn ToSql + Sync); 4] = [&seq, &records, &has_deleted, &words_seq];
        session.query(PlainStatement::Advance, &values).map(drop)
    }
}

fn read_news(
    session: &mut DatabaseSession,
    after: i64,
    to: i64,
    limit: i64,
) -> Result<NewsPage, StatementError> {
    let rows = session.query(PlainStatement::News, &[&after, &to, &limit])?;
    let at = rows.first().map(|row| (row.get(0), row.get(1)));
    // If there are no records, the statement still returns one row.
    let put = |row: &Row| {
        let body: Option<&[u8]> = row.get(3);
        Some((row.get::<_, Option<i64>>(2)?, body?.into()))
    };
    Ok(NewsPage { at, puts: rows.iter().filter_map(put).collect() })
}
