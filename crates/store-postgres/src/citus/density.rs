//! The density of records in time: the span of time that contains a given number of records. The
//! density determines the first window of a search.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_postgres::Row;

use super::statement::CitusStatement;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Number of newest records by which the density is measured.
pub(super) const DENSITY_RECORDS: i64 = 1_000;
/// Time after which the density is measured again.
const DENSITY_AGE_MAX: Duration = Duration::from_mins(1);

/// The density of a shelf's records in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordDensity {
    read: Instant,
    pub(super) oldest: i64,
    pub(super) newest: i64,
    /// The span of time of the newest [`DENSITY_RECORDS`] records. If there are fewer records, the
    /// maximum span.
    pub(super) width: u64,
}

/// Returns the density of records, and measures it again if the last measurement is too old.
pub(super) fn density<'s>(
    known: &Mutex<Option<RecordDensity>>,
    session: impl FnOnce() -> Result<&'s mut DatabaseSession, StatementError>,
) -> Result<RecordDensity, StatementError> {
    let last_read = *known.lock();
    if let Some(density) = last_read.filter(|known| known.read.elapsed() < DENSITY_AGE_MAX) {
        return Ok(density);
    }
    let session = session()?;
    let newest = session.query(CitusStatement::NewestTimes, &[&DENSITY_RECORDS])?;
    let oldest = session.query(CitusStatement::OldestTime, &[])?;
    let time = |row: Option<&Row>| row.map(|row| row.get::<_, i64>(0));
    let last = newest.get(DENSITY_RECORDS as usize - 1);
    // The newest tenth is ignored, because a few records may have times far in the future.
    let first = time(newest.get(newest.len() / 10)).unwrap_or(i64::MAX);
    let density = RecordDensity {
        read: Instant::now(),
        oldest: time(oldest.first()).unwrap_or(i64::MIN),
        newest: first,
        width: time(last).map_or(u64::MAX, |last| first.abs_diff(last).max(1)),
    };
    *known.lock() = Some(density);
    Ok(density)
}
