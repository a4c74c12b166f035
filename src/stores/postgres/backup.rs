//! A shelf in a database as the source of a backup.

use hark_archive::store::NumberedRecord;
use hark_store_embedded::backup::{PutSource, SourceError};
use hark_store_postgres::{PostgresOptions, PutSnapshot, SnapshotError};

/// Opens the present state of a shelf. Returns `None` if the database has no such shelf.
pub(super) fn put_source(
    url: &str,
    shelf: &str,
    options: &PostgresOptions,
) -> Result<Option<Box<dyn PutSource>>, SnapshotError> {
    let snapshot = PutSnapshot::open(url, shelf, options)?;
    Ok(snapshot.map(|snapshot| Box::new(DatabaseShelf(snapshot)) as Box<dyn PutSource>))
}

/// One state of a shelf in a database.
struct DatabaseShelf(PutSnapshot);

impl PutSource for DatabaseShelf {
    fn origin(&self) -> String {
        self.0.origin().into()
    }

    fn records(&self) -> u64 {
        self.0.records()
    }

    fn position(&self, number: Option<u64>) -> String {
        self.0.position(number)
    }

    fn common(&self, position: &str) -> Option<u64> {
        self.0.common(position)
    }

    fn puts(&mut self, after: u64) -> Result<Vec<NumberedRecord>, SourceError> {
        Ok(self.0.puts(after)?)
    }

    fn numbers(&mut self, after: u64, to: u64) -> Result<Vec<u64>, SourceError> {
        Ok(self.0.numbers(after, to)?)
    }
}
