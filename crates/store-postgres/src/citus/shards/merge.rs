//! Merges the rows of several shards.

use hark_archive::Order;
use tokio_postgres::Row;

use crate::search::asked::compare;
use crate::time::IndexKey;

/// Rows of a shard, in order.
pub(in crate::citus) struct ShardPage<R = Row> {
    pub(in crate::citus) rows: Vec<R>,
    /// Whether the shard may have more rows after the last row.
    pub(in crate::citus) is_cut: bool,
}

/// A row with a position in the order.
trait Positioned {
    fn position(&self) -> IndexKey;
}

impl Positioned for Row {
    fn position(&self) -> IndexKey {
        IndexKey::read(self, 0)
    }
}

/// Merges the rows of shards into one page of at most `limit` rows. Also returns whether the page
/// ends early, because a shard may have further rows before the next row of another shard.
pub(in crate::citus) fn merge(
    order: Order,
    pages: Vec<ShardPage>,
    limit: usize,
) -> (Vec<Row>, bool) {
    merge_positioned(order, pages, limit)
}

fn merge_positioned<R: Positioned>(
    order: Order,
    pages: Vec<ShardPage<R>>,
    limit: usize,
) -> (Vec<R>, bool) {
    // After the last row of a cut page, rows of its shard may be missing.
    let cut = pages.iter().filter(|page| page.is_cut);
    let ends = cut.filter_map(|page| page.rows.last().map(Positioned::position));
    let end = ends.min_by(|a, b| compare(order, a, b));
    let mut rows: Vec<(IndexKey, R)> = pages
        .into_iter()
        .flat_map(|page| page.rows)
        .map(|row| (row.position(), row))
        .filter(|(at, _)| end.is_none_or(|end| compare(order, at, &end).is_le()))
        .collect();
    rows.sort_by(|(a, _), (b, _)| compare(order, a, b));
    let is_cut = end.is_some() && rows.len() <= limit;
    rows.truncate(limit);
    (rows.into_iter().map(|(_, row)| row).collect(), is_cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Positioned for i64 {
        fn position(&self) -> IndexKey {
            IndexKey { time: *self, id: [0; 32] }
        }
    }

    fn page(rows: &[i64], is_cut: bool) -> ShardPage<i64> {
        ShardPage { rows: rows.to_vec(), is_cut }
    }

    #[test]
    fn no_row_is_returned_behind_rows_that_a_shard_has_not_returned_yet() {
        let merged = |pages, limit| merge_positioned(Order::OldestFirst, pages, limit);
        let pages = || vec![page(&[1, 4, 9], false), page(&[2, 3], true), page(&[], false)];
        assert_eq!(merged(pages(), 10), (vec![1, 2, 3], true));
        assert_eq!(merged(pages(), 2), (vec![1, 2], false));
        let whole = || vec![page(&[1, 4, 9], false), page(&[2, 3], false)];
        assert_eq!(merged(whole(), 10), (vec![1, 2, 3, 4, 9], false));
        assert_eq!(merged(whole(), 5), (vec![1, 2, 3, 4, 9], false));
        let newest = merge_positioned(
            Order::NewestFirst,
            vec![page(&[9, 4], true), page(&[8, 7, 2], true)],
            10,
        );
        assert_eq!(newest, (vec![9, 8, 7, 4], true));
    }
}
