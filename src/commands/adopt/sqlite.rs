//! The connection to another server's SQLite database, which is only read.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rusqlite::{Connection, ErrorCode, OpenFlags};

/// Maximum time that a statement waits for a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The first bytes of every SQLite database.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// Returns the full path of a database. `path` is the file, or the directory with the file `name`.
pub(super) fn database_file(path: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = &if path.is_dir() { path.join(name) } else { path.into() };
    let shown = path.display();
    if path.exists() && !path.is_file() {
        bail!("{shown} is no file. Nothing was done");
    }
    let is_sqlite = begins_with_magic(path)
        .with_context(|| format!("{shown} cannot be read; nothing was done"))?;
    if !is_sqlite {
        bail!("{shown} is no SQLite database. Nothing was done");
    }
    path.canonicalize().with_context(|| format!("{shown} cannot be read"))
}

/// Whether a file begins as every SQLite database does.
fn begins_with_magic(path: &Path) -> std::io::Result<bool> {
    let mut first = Vec::new();
    std::fs::File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut first)?;
    Ok(first == MAGIC)
}

/// Opens a database for reading. Returns the connection, and the number in `PRAGMA user_version`.
pub(super) fn connect(path: &Path) -> rusqlite::Result<(Connection, i64)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags)?;
    database.busy_timeout(LOCK_TIMEOUT)?;
    // The schema must not call unsafe functions, and cells must lie within their pages.
    database.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON")?;
    let version = database.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    Ok((database, version))
}

/// Returns the names in `columns` that are not columns of the table; all names if the table does
/// not exist. Like SQLite, the comparison ignores the case of names.
pub(super) fn missing(
    database: &Connection,
    table: &str,
    columns: &[&'static str],
) -> rusqlite::Result<Vec<&'static str>> {
    let sql = "SELECT columns.name FROM sqlite_schema JOIN pragma_table_info(?1) AS columns \
               WHERE sqlite_schema.type = 'table' AND sqlite_schema.name = ?1 COLLATE NOCASE";
    let mut statement = database.prepare(sql)?;
    let names = statement.query_map([table], |row| row.get::<_, String>(0))?;
    let names = names.collect::<rusqlite::Result<Vec<_>>>()?;
    let is_missing = |column: &&&str| !names.iter().any(|name| name.eq_ignore_ascii_case(column));
    Ok(columns.iter().filter(is_missing).copied().collect())
}

/// Returns advice for a database that cannot be opened or read. `server` is the program that
/// writes the database.
pub(super) fn advice(error: &rusqlite::Error, file: &str, server: &str) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => format!(
            "It is damaged. Make a copy of what is whole by `sqlite3 {file} .recover | sqlite3 \
             new.db`, and adopt that"
        ),
        _ => format!(
            "Beside a running {server}, and after one that was killed, SQLite needs {file}-wal and \
             {file}-shm: run this as root or as the {server}'s user, or on a copy of these files in \
             a directory of yours"
        ),
    }
}
