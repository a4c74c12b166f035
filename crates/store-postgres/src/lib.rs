//! The archive on PostgreSQL. Each shelf has one schema, and any number of Hark processes can share
//! the schema.
//!
//! Read `migrations/0001_shelf.sql` first (the tables). Then read `commit` (makes a batch durable),
//! `search` (runs a query) and `layout` (all steps in which the tables of one server and those of a
//! Citus cluster differ). `plain` and `citus` have these steps and their SQL. `state` is shared by
//! the threads of a shelf, `open` makes this state, and `store` implements the archive's store.
//! `connector`, `session` and `pool` manage connections.

pub use address::{AddressError, ConnectError, DatabaseAddress};
pub use check::{
    CheckProgress, DatabaseCheck, DatabaseFault, FaultSort, MessageCheck, Remedy, check,
};
pub use distribute::{DistributeError, Distribution, distribute};
pub use migrate::{MigrateError, Migration};
pub use open::{DatabaseOpenError, migrations};
pub use options::PostgresOptions;
pub use rebuild::{DatabaseRebuild, RebuildError, rebuild};
pub use shown::{is_database, shown};
pub use snapshot::{PutSnapshot, SnapshotError};
pub use store::PostgresStore;
pub use words::state::WordProgress;

mod address;
mod check;
mod citus;
pub mod cluster;
mod commit;
mod connector;
mod copy;
mod count;
mod deadline;
mod distribute;
mod error;
mod explain;
mod failover;
mod first_rows;
mod hosts;
mod label_values;
mod layout;
mod line;
mod listen;
mod migrate;
mod news;
mod open;
mod options;
mod others;
mod parts;
mod password;
mod plain;
mod pool;
mod properties;
mod query_sessions;
mod rebuild;
mod replica;
mod search;
mod session;
mod session_gate;
mod shares;
mod shown;
mod snapshot;
mod state;
mod statement;
mod stats;
mod store;
mod terms;
mod time;
mod waiting;
mod warnings;
mod words;
