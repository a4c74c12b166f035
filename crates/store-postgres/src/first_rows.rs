//! The first rows of a statement's result.

use futures_util::TryStreamExt as _;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

/// The first rows of a statement, and whether there were more rows.
pub(crate) type FirstRows = (Vec<Row>, bool);

/// Executes a statement and returns its first rows: as many rows as fit into `bytes_max`, but at
/// least one.
pub(crate) async fn first_rows(
    client: &Client,
    statement: &Statement,
    values: &[&(dyn ToSql + Sync)],
    bytes_max: usize,
) -> Result<FirstRows, tokio_postgres::Error> {
    let stream = client.query_raw(statement, values.iter().copied()).await?;
    let mut stream = std::pin::pin!(stream);
    let (mut rows, mut bytes, mut is_cut) = (Vec::new(), 0, false);
    // Rows that do not fit are read and dropped: otherwise the database would wait in the middle of
    // its answer, with a snapshot, until the session's next use.
    while let Some(row) = stream.try_next().await? {
        bytes += row.raw_size_bytes();
        is_cut |= bytes > bytes_max && !rows.is_empty();
        if !is_cut {
            rows.push(row);
        }
    }
    Ok((rows, is_cut))
}
