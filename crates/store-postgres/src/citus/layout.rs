//! The steps of the layout for a Citus cluster.

use tokio_postgres::Row;

use super::check::CitusCheck;
use super::commit;
use super::count::statements;
use super::finder::CitusSteps;
use super::shards::ShardReads;
use super::statement::CitusStatement;
use super::workers::set_planning;
use crate::check::RepairSteps;
use crate::check::steps::CheckSteps;
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

/// The layout of the tables that `migrations/citus/` creates.
pub(crate) struct CitusLayout;

impl Layout for CitusLayout {
    fn facts(&self) -> LayoutFacts {
        LayoutFacts { is_cluster: true, has_words: false, has_parts: false }
    }

    // Each statement is planned anew for its values, because the values determine the shards.
    // Workers make their own plans.
    fn settings(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("jit", "off"),
            ("max_parallel_workers_per_gather", "0"),
            ("default_transaction_isolation", "read committed"),
            ("synchronous_commit", "on"),
            ("client_min_messages", "warning"),
            ("idle_in_transaction_session_timeout", "30s"),
            // Each worker gets one permanent connection. For a query of some milliseconds, Citus
            // would otherwise open more connections and close them afterwards, which costs more
            // time than they save.
            ("citus.max_adaptive_executor_pool_size", "1"),
        ]
    }

    fn migrations(&self) -> &'static [MigrationText] {
        &[
            (1, "shelf", include_str!("../../migrations/citus/0001_shelf.sql")),
            (2, "published", include_str!("../../migrations/citus/0002_published.sql")),
        ]
    }

    fn begin_migrations(
        &self,
        session: &mut DatabaseSession,
        shards: u32,
    ) -> Result<(), StatementError> {
        session.batch(&format!("SET citus.shard_count = {}", shards.max(1)))
    }

    fn end_migrations(&self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        set_planning(session)
    }

    fn sizes(&self) -> &'static str {
        "SELECT s.records, d.bytes, d.bytes - d.tables, 0::bigint, r.oldest, r.newest, s.seq \
            FROM state s, (SELECT min(time) AS oldest, max(time) AS newest FROM record) r, \
            (SELECT sum(citus_total_relation_size(c.oid))::bigint AS bytes, \
            sum(citus_table_size(c.oid))::bigint AS tables FROM pg_class c \
            JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1::text \
            AND c.relname IN ('record', 'tag', 'id_place')) d"
    }

    fn lock(&self) -> StatementForm {
        CitusStatement::Lock.into()
    }

    // The number in `state` is visible before the workers have committed, so it may be read only
    // while no commit is in progress. The number in `state` is read if no number of the current
    // timeline is published.
    fn newest(
        &self,
        session: &mut DatabaseSession,
        search: &SearchState,
    ) -> Result<Option<(i64, i64)>, StatementError> {
        let mut rows = session.query(CitusStatement::Newest, &[])?;
        if rows.is_empty() {
            rows = session.query(CitusStatement::WholeState, &[])?;
        }
        let Some(row) = rows.first() else { return Ok(None) };
        if let Some(shards) = &search.shards {
            shards.note_nodes(row.get(2));
        }
        Ok(Some((row.get(0), row.get(1))))
    }

    fn news(
        &self,
        session: &mut DatabaseSession,
        after: i64,
        limit: i64,
    ) -> Result<NewsPage, StatementError> {
        let mut news = NewsPage::default();
        let state = session.query(CitusStatement::WholeState, &[])?;
        let Some(row) = state.first() else { return Ok(news) };
        news.at = Some((row.get(0), row.get(1)));
        let to = row.get(1);
        if after < to {
            news.puts = self.puts(session, after, to, limit)?;
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
        let rows = session.query(CitusStatement::News, &[&after, &to, &limit])?;
        let put = |row: &Row| (row.get(0), row.get::<_, &[u8]>(1).into());
        Ok(rows.iter().map(put).collect())
    }

    fn record_cache(&self) -> Option<RecentRecords> {
        None
    }

    fn shard_reads(&self, connector: &Connector, sessions_max: usize) -> Option<ShardReads> {
        Some(ShardReads::new(connector.clone(), sessions_max))
    }

    fn search_steps(&self) -> Box<dyn SearchSteps> {
        Box::new(CitusSteps::default())
    }

    fn count_statements(
        &self,
        asked: &[SqlQuery],
        terms: &DatabaseTermHasher,
        budget: u64,
    ) -> Option<CountStatements> {
        statements(asked, terms, budget)
    }

    fn check_steps(&self) -> Box<dyn CheckSteps> {
        Box::new(CitusCheck::default())
    }

    fn repair_steps(&self) -> Option<Box<dyn RepairSteps>> {
        None
    }

    fn prepare_committer(&self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        commit::prepare(session)
    }

    fn enter(&self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        session.query(CitusStatement::Enter, &[]).map(drop)
    }

    fn publish(
        &self,
        session: &mut DatabaseSession,
        batch: &CommittedBatch,
        search: &SearchState,
    ) -> Result<(), StatementError> {
        let nodes = commit::publish(session, batch)?;
        if let Some((shards, nodes)) = search.shards.as_ref().zip(nodes) {
            shards.note_nodes(nodes);
        }
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

    fn sweep(
        &self,
        session: &mut DatabaseSession,
        shelf: &ShelfProperties,
        kept: &[(i64, &PreparedPut<'_>)],
    ) -> Result<i64, StatementError> {
        commit::sweep(session, shelf, kept)
    }

    fn insert(
        &self,
        session: &mut DatabaseSession,
        shelf: &ShelfProperties,
        kept: &[(i64, &PreparedPut<'_>)],
    ) -> Result<u64, StatementError> {
        commit::insert(session, shelf, kept)
    }

    fn advance(
        &self,
        session: &mut DatabaseSession,
        advance: ShelfAdvance,
    ) -> Result<(), StatementError> {
        session.query(CitusStatement::Advance, &[&advance.seq, &advance.records]).map(drop)
    }
}
