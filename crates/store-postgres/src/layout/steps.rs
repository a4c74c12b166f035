//! A layout of a shelf's tables, with all steps in which layouts differ.

use super::shared::MigrationText;
use crate::commit::fetch::{FetchedState, RuleLookups};
use crate::commit::{CommitAttempt, PreparedPut, ShelfAdvance};
use crate::count::CountStatements;
use crate::error::StatementError;
use crate::news::NewsPage;
use crate::properties::ShelfProperties;
use crate::search::recent::RecentRecords;
use crate::search::{SearchSteps, SqlQuery};
use crate::session::DatabaseSession;
use crate::statement::StatementForm;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// The facts of a layout that are needed to open a shelf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutFacts {
    /// Whether the tables are distributed over the workers of a Citus cluster.
    pub(crate) is_cluster: bool,
    /// Whether words are indexed, and records are searched for by words.
    pub(crate) has_words: bool,
    /// Whether records are in parts by their times.
    pub(crate) has_parts: bool,
}

/// A layout of a shelf's tables. The layout is chosen once, when the shelf is opened. Names of
/// tables are found through the session's search path.
pub(crate) trait Layout: Send + Sync {
    /// The facts that are needed to open a shelf.
    fn facts(&self) -> LayoutFacts;

    /// Settings of every session, by name.
    fn settings(&self) -> &'static [(&'static str, &'static str)];

    /// The migrations that create the tables, in order.
    fn migrations(&self) -> &'static [MigrationText];

    /// Prepares a session for the migrations of a shelf whose new tables have `shards` shards.
    fn begin_migrations(
        &self,
        session: &mut DatabaseSession,
        shards: u32,
    ) -> Result<(), StatementError>;

    /// Sets the settings of the database that the tables need.
    fn end_migrations(&self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// Returns the text of a query for the sizes of the schema $1: records, bytes, bytes of
    /// indices, dead rows, oldest and newest time, and the number of the newest put.
    fn sizes(&self) -> &'static str;

    /// The statement that locks the shelf and returns its state.
    fn lock(&self) -> StatementForm;

    /// Reads the timeline and a number up to which all puts are visible, including every put that a
    /// process has acknowledged. `None` if the table `state` is empty.
    fn newest(&self, session: &mut DatabaseSession) -> Result<Option<(i64, i64)>, StatementError>;

    /// Reads at most `limit` puts with numbers above `after` and up to `to`.
    fn news(
        &self,
        session: &mut DatabaseSession,
        after: i64,
        to: i64,
        limit: i64,
    ) -> Result<NewsPage, StatementError>;

    /// Returns an empty cache of records, if searches use a cache.
    fn record_cache(&self) -> Option<RecentRecords>;

    /// Returns the steps of a new search.
    fn search_steps(&self) -> Box<dyn SearchSteps>;

    /// Returns the statements that count the matches of queries, each of which visits at most
    /// `budget` rows and one more. `None` if the records have to be read.
    fn count_statements(
        &self,
        asked: &[SqlQuery],
        terms: &DatabaseTermHasher,
        budget: u64,
    ) -> Option<CountStatements>;

    /// Prepares a session for commits.
    fn prepare_committer(&self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// Waits until no other process commits, and excludes other commits.
    fn enter(&self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// Lets other processes commit.
    fn leave(&self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// Lets other processes commit after an attempt to commit, and notifies the processes of a
    /// durable batch.
    fn leave_after(
        &self,
        session: &mut DatabaseSession,
        attempt: &CommitAttempt,
    ) -> Result<(), StatementError>;

    /// The look-ups and searches that answer the queries of rules.
    fn rule_lookups(&self) -> RuleLookups;

    /// Begins the transaction, locks the shelf, and fetches the records that the rules of puts may
    /// affect.
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

    /// Inserts records and their tags, with the numbers of the puts. Returns the inserted bytes.
    fn insert(
        &self,
        session: &mut DatabaseSession,
        shelf: &ShelfProperties,
        kept: &[(i64, &PreparedPut<'_>)],
    ) -> Result<u64, StatementError>;

    /// Updates the shelf's state in the transaction of a batch.
    fn advance(
        &self,
        session: &mut DatabaseSession,
        advance: ShelfAdvance,
    ) -> Result<(), StatementError>;
}
