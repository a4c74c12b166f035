//! A layout of a shelf's tables: all steps in which layouts differ.

use std::collections::HashMap;

use super::shared::MigrationText;
use crate::check::RepairSteps;
use crate::check::steps::CheckSteps;
use crate::citus::ShardReads;
use crate::commit::fetch::{FetchedState, RuleLookups};
use crate::commit::{CommittedBatch, PreparedPut, ShelfAdvance};
use crate::connector::Connector;
use crate::count::CountStatements;
use crate::error::StatementError;
use crate::news::{NewsPage, NumberedPut};
use crate::properties::ShelfProperties;
use crate::search::recent::RecentRecords;
use crate::search::{SearchState, SearchSteps, SqlQuery};
use crate::session::DatabaseSession;
use crate::statement::StatementForm;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// The properties of a layout that are needed to open a shelf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutFacts {
    /// Whether the tables are distributed over the workers of a Citus cluster.
    pub(crate) is_cluster: bool,
    /// Whether words are indexed, so that records can be searched for by words.
    pub(crate) has_words: bool,
    /// Whether the tables of records have parts, each for a range of time.
    pub(crate) has_parts: bool,
}

/// A layout of a shelf's tables. The layout is chosen once, when a shelf is opened. Statements name
/// tables without a schema; the session's search path determines the schema.
pub(crate) trait Layout: Send + Sync {
    /// Returns the properties that are needed to open a shelf.
    fn facts(&self) -> LayoutFacts;

    /// The settings of every session, with their values.
    fn settings(&self) -> &'static [(&'static str, &'static str)];

    /// The migrations that create the tables, in order.
    fn migrations(&self) -> &'static [MigrationText];

    /// Prepares a session for the migrations of a shelf. New tables get `shards` shards.
    fn begin_migrations(
        &self,
        session: &mut DatabaseSession,
        shards: u32,
    ) -> Result<(), StatementError>;

    /// Sets those settings of the database that the tables need.
    fn end_migrations(&self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// Returns the text of a query for the sizes of schema $1: number of records, bytes, bytes of
    /// indices, dead rows, oldest and newest time, number of the newest put.
    fn sizes(&self) -> &'static str;

    /// The statement that locks the shelf and reads its state.
    fn lock(&self) -> StatementForm;

    /// Reads the timeline and a number up to which all puts are visible, including every put that a
    /// process has acknowledged. `None` if the table `state` is empty.
    fn newest(
        &self,
        session: &mut DatabaseSession,
        search: &SearchState,
    ) -> Result<Option<(i64, i64)>, StatementError>;

    /// Reads the position of the database, and at most `limit` puts up to this position with
    /// numbers above `after`. Waits until all of these puts are committed.
    fn news(
        &self,
        session: &mut DatabaseSession,
        after: i64,
        limit: i64,
    ) -> Result<NewsPage, StatementError>;

    /// Reads at most `limit` puts, with numbers above `after` and up to `to`. The caller knows that
    /// the commit of number `to` has ended.
    fn puts(
        &self,
        session: &mut DatabaseSession,
        after: i64,
        to: i64,
        limit: i64,
    ) -> Result<Vec<NumberedPut>, StatementError>;

    /// Counts the records of each listed value in the parts that are detached but not dropped yet.
    /// These numbers are subtracted when the parts are dropped.
    fn retired_values(
        &self,
        _: &mut DatabaseSession,
    ) -> Result<Vec<HashMap<i64, i64>>, StatementError> {
        Ok(Vec::new())
    }

    /// Returns an empty cache of records; `None` if searches use no cache.
    fn record_cache(&self) -> Option<RecentRecords>;

    /// Returns the reader of shards without the coordinator, which uses at most `sessions_max`
    /// sessions with each node; `None` if the tables have no shards.
    fn shard_reads(&self, connector: &Connector, sessions_max: usize) -> Option<ShardReads>;

    /// Returns the steps for a new search.
    fn search_steps(&self) -> Box<dyn SearchSteps>;

    /// Returns the statements that count the matches of queries. Each visits at most `budget` + 1
    /// rows. `None` if Hark must read the records instead.
    fn count_statements(
        &self,
        asked: &[SqlQuery],
        terms: &DatabaseTermHasher,
        budget: u64,
    ) -> Option<CountStatements>;

    /// Returns the steps for a new check.
    fn check_steps(&self) -> Box<dyn CheckSteps>;

    /// Returns the steps for the repairs of a check; `None` if faults in this layout are not
    /// repaired.
    fn repair_steps(&self) -> Option<Box<dyn RepairSteps>>;

    /// Prepares a session for commits.
    fn prepare_committer(&self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// Within a transaction, waits until no other process commits, and keeps other processes from
    /// committing until the transaction has ended on all servers.
    fn enter(&self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// After the transaction of a batch, makes the batch known to the other processes. If this
    /// fails, the batch is not acknowledged.
    fn publish(
        &self,
        session: &mut DatabaseSession,
        batch: &CommittedBatch,
        search: &SearchState,
    ) -> Result<(), StatementError>;

    /// The look-ups and searches that answer the queries of rules.
    fn rule_lookups(&self) -> RuleLookups;

    /// Begins the transaction, locks the shelf, and fetches the stored records that the rules may
    /// need for these puts.
    fn fetch(
        &self,
        session: &mut DatabaseSession,
        puts: &[Option<PreparedPut<'_>>],
        terms: &DatabaseTermHasher,
    ) -> Result<FetchedState, StatementError>;

    /// Deletes records and their tags. Returns the number of deleted records.
    fn delete(
        &self,
        session: &mut DatabaseSession,
        shelf: &ShelfProperties,
        deleted: &[IndexKey],
    ) -> Result<i64, StatementError>;

    /// Deletes the rows that lost commits have left of these records (on a cluster), before the
    /// records are inserted. Returns the number of deleted rows of the table `record`.
    fn sweep(
        &self,
        session: &mut DatabaseSession,
        shelf: &ShelfProperties,
        kept: &[(i64, &PreparedPut<'_>)],
    ) -> Result<i64, StatementError>;

    /// Inserts records with the numbers of their puts, and their tags. Returns the inserted bytes.
    fn insert(
        &self,
        session: &mut DatabaseSession,
        shelf: &ShelfProperties,
        kept: &[(i64, &PreparedPut<'_>)],
    ) -> Result<u64, StatementError>;

    /// Updates the shelf's state within the transaction of a batch.
    fn advance(
        &self,
        session: &mut DatabaseSession,
        advance: ShelfAdvance,
    ) -> Result<(), StatementError>;
}
