//! The records and bytes of each kind, author or span of time. The records are read in the order of
//! their puts, without their bytes, some thousands at a time. Commits maintain no counters for
//! these numbers: with such counters, each commit would write more rows than it has records.

use hark_archive::SearchError;
use hark_archive::store::shares::{RecordShare, ShareBy, ShareKey, gather_shares};

use crate::error::StatementError;
use crate::session::DatabaseSession;
use crate::state::PostgresState;
use crate::time::from_db;

/// Maximum number of records that one statement reads.
const PAGE: i64 = 20_000;

const NEWEST: &str = "SELECT seq FROM state";

/// Passes the groups of a shelf to `each`, ascending. Puts after the call do not count.
pub(crate) fn shares(
    state: &PostgresState,
    by: ShareBy,
    each: &mut dyn FnMut(ShareKey, RecordShare),
) -> Result<(), SearchError> {
    let newest = state.pool.with(|session| session.query_once(NEWEST, &[]))?;
    let newest: i64 = newest.first().map_or(0, |row| row.get(0));
    let mut read = |add: &mut dyn FnMut(ShareKey, RecordShare)| {
        let mut after = i64::MIN;
        while state.pool.with(|session| read_page(session, by, (&mut after, newest), add))? {}
        Ok(())
    };
    gather_shares(&mut read, each)
}

/// Passes the records with the next numbers after `after`, up to `newest`, to `add`. Returns
/// whether more may follow.
fn read_page(
    session: &mut DatabaseSession,
    by: ShareBy,
    (after, newest): (&mut i64, i64),
    add: &mut dyn FnMut(ShareKey, RecordShare),
) -> Result<bool, StatementError> {
    let column = match by {
        ShareBy::Kind => "kind",
        ShareBy::Author => "author",
        ShareBy::Time(_) => "time",
    };
    let text = format!(
        "SELECT r.seq, octet_length(r.body), r.{column} FROM record r \
         WHERE r.seq > $1 AND r.seq <= $2 ORDER BY r.seq LIMIT $3"
    );
    let rows = session.query_once(&text, &[after, &newest, &PAGE])?;
    for row in &rows {
        *after = row.get(0);
        let bytes = u64::from(row.get::<_, i32>(1).cast_unsigned());
        let key = match by {
            ShareBy::Kind => ShareKey::Kind(row.get::<_, i32>(2).cast_unsigned()),
            ShareBy::Author => {
                let author = row.get::<_, Option<&[u8]>>(2);
                ShareKey::Author(author.and_then(|author| author.try_into().ok()))
            }
            ShareBy::Time(span) => ShareKey::Time(from_db(row.get(2)) / span.max(1)),
        };
        add(key, RecordShare { records: 1, bytes });
    }
    Ok(i64::try_from(rows.len()) == Ok(PAGE))
}
