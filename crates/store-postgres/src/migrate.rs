//! The migrations of a shelf's schema: SQL files. Each is applied once, in order, by one process at
//! a time.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::error::StatementError;
use crate::layout::Layout;
use crate::session::DatabaseSession;
use crate::terms::SECRET;

/// Time limit of a migration. The index of a large table takes minutes.
const MIGRATION_MAX: Duration = Duration::from_mins(10);

/// A migration, and whether it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The migration's number.
    pub number: i32,
    /// The migration's name.
    pub name: String,
    /// When the migration was applied; `None` if it is missing.
    pub applied: Option<String>,
}

/// Why the schema could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database is unreachable, or refused a statement.
    #[error("{0}")]
    Database(String),
    /// In the database, the migration with this number has a different text.
    #[error(
        "migration {number} in the database is not the one that this version of Hark has; nothing \
         was changed"
    )]
    Changed {
        /// The migration's number.
        number: i32,
    },
    /// The database was changed by a newer version of Hark.
    #[error(
        "the database has migration {number}, which this version of Hark does not know; use a \
             newer one"
    )]
    Newer {
        /// The migration's number.
        number: i32,
    },
    /// Migrations are missing.
    #[error("{missing} migration{} not applied; run `hark migrate up --network {shelf}`", if *missing == 1 { " is" } else { "s are" })]
    Missing {
        /// How many migrations are missing.
        missing: usize,
        /// The name of the shelf.
        shelf: String,
    },
}

impl From<StatementError> for MigrateError {
    fn from(fault: StatementError) -> Self {
        Self::Database(fault.to_string())
    }
}

fn checksum(text: &str) -> Vec<u8> {
    Sha256::digest(text.as_bytes()).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Returns all migrations, after comparing them with those in the database.
pub(crate) fn status(
    session: &mut DatabaseSession,
    layout: &dyn Layout,
    schema: &str,
) -> Result<Vec<Migration>, MigrateError> {
    let there = session.query_once(
        "SELECT to_regclass($1::text) IS NOT NULL",
        &[&format!("{schema}.migration")],
    )?;
    let mut applied = Vec::new();
    if there.first().is_some_and(|row| row.get(0)) {
        applied = session.query_once(
            "SELECT number, checksum, to_char(applied AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') \
             FROM migration ORDER BY number",
            &[],
        )?;
    }
    let texts = layout.migrations();
    let mut all: Vec<Migration> = texts
        .iter()
        .map(|(number, name, _)| Migration { number: *number, name: (*name).into(), applied: None })
        .collect();
    for row in applied {
        let (number, sum): (i32, Vec<u8>) = (row.get(0), row.get(1));
        let Some(at) = texts.iter().position(|(known, ..)| *known == number) else {
            return Err(MigrateError::Newer { number });
        };
        if checksum(texts[at].2) != sum {
            return Err(MigrateError::Changed { number });
        }
        all[at].applied = row.get(2);
    }
    Ok(all)
}

/// Applies and returns the missing migrations.
pub(crate) fn up(
    session: &mut DatabaseSession,
    layout: &dyn Layout,
    schema: &str,
    shards: u32,
) -> Result<Vec<Migration>, MigrateError> {
    layout.begin_migrations(session, shards)?;
    // Only one process at a time migrates, for all shelves together. The lock is also released when
    // the session ends.
    session.batch("SELECT pg_advisory_lock(7235419860234518)")?;
    let done = apply(session, layout, schema);
    let ended = layout.end_migrations(session);
    session.batch("SELECT pg_advisory_unlock(7235419860234518)")?;
    ended?;
    done
}

/// Applies the missing migrations in order, each in its own transaction. Returns the applied
/// migrations.
pub(crate) fn apply(
    session: &mut DatabaseSession,
    layout: &dyn Layout,
    schema: &str,
) -> Result<Vec<Migration>, MigrateError> {
    let missing = status(session, layout, schema)?.into_iter().filter(|one| one.applied.is_none());
    let mut done = Vec::new();
    for migration in missing {
        let text = layout.migrations().iter().find(|(number, ..)| *number == migration.number);
        let Some((number, name, text)) = text else { continue };
        let sum = hex(&checksum(text));
        let secret = if *number == 1 { new_secret()? } else { String::new() };
        let all = format!(
            "BEGIN; SET LOCAL statement_timeout = 0; CREATE SCHEMA IF NOT EXISTS {schema};
             CREATE TABLE IF NOT EXISTS migration (number integer PRIMARY KEY, name text NOT NULL,
             checksum bytea NOT NULL, applied timestamptz NOT NULL DEFAULT now());
             {text}\n{secret}
             INSERT INTO migration (number, name, checksum) VALUES ({number}, '{name}', '\\x{sum}');
             COMMIT"
        );
        if let Err(fault) = session.batch_within(MIGRATION_MAX, &all) {
            // The rollback fails if the connection is lost. The first fault is more informative
            // than a fault of the rollback.
            let _ = session.batch("ROLLBACK");
            return Err(fault.into());
        }
        done.push(migration);
    }
    Ok(done)
}

/// Returns a new secret for the shelf's hashes, as the text that the database stores.
fn new_secret() -> Result<String, MigrateError> {
    let mut secret = [0; SECRET];
    getrandom::fill(&mut secret).map_err(|error| MigrateError::Database(error.to_string()))?;
    Ok(format!("INSERT INTO meta VALUES ('secret', '\\x{}');", hex(&secret)))
}
