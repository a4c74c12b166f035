//! Shares: the records and bytes of each kind, of each author, or of each span of time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use hark_codec::record::{Key, Record};

use super::search::{Search, SearchError};

/// Maximum number of groups that [`gather_shares`] keeps in memory.
const GROUPS_MAX: usize = 1 << 18;

/// The property that puts records into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareBy {
    /// The record's kind.
    Kind,
    /// The record's author.
    Author,
    /// The record's time, in spans of this many units. 0 counts as 1.
    Time(u64),
}

/// The name of a group of records. The names of one [`ShareBy`] have an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShareKey {
    /// The records of this kind.
    Kind(u32),
    /// The records by this author, or those without an author.
    Author(Option<Key>),
    /// The records of this span of time: the time divided by the length of a span.
    Time(u64),
}

/// The size of a group of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordShare {
    /// Number of records.
    pub records: u64,
    /// Number of bytes of these records (see [`Record::bytes`]), without any index.
    pub bytes: u64,
}

impl RecordShare {
    /// Adds another share.
    pub fn add(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
    }

    /// The share of one record.
    pub fn of(record: &Record<'_>) -> Self {
        Self { records: 1, bytes: record.bytes().len() as u64 }
    }
}

impl ShareBy {
    /// The group of a record.
    pub fn key(self, record: &Record<'_>) -> ShareKey {
        match self {
            Self::Kind => ShareKey::Kind(record.kind()),
            Self::Author => ShareKey::Author(record.author().copied()),
            Self::Time(span) => ShareKey::Time(record.time() / span.max(1)),
        }
    }
}

/// Passes each group and its share to `each`, in ascending order, by reading every record of the
/// searches that `begin` begins. See [`gather_shares`].
pub fn scan_shares(
    by: ShareBy,
    begin: &mut dyn FnMut() -> Result<Box<dyn Search>, SearchError>,
    each: &mut dyn FnMut(ShareKey, RecordShare),
) -> Result<(), SearchError> {
    let mut read = |add: &mut dyn FnMut(ShareKey, RecordShare)| {
        begin()?.read_all(&mut |record| add(by.key(record), RecordShare::of(record)))
    };
    gather_shares(&mut read, each)
}

/// A function that passes the group and the share of each record to its argument.
pub type ReadShares<'a> =
    &'a mut dyn FnMut(&mut dyn FnMut(ShareKey, RecordShare)) -> Result<(), SearchError>;

/// Adds up the shares that `read` passes on, and passes each group to `each`, in ascending order.
/// If there are more groups than fit into memory, `read` is called several times. Then the result
/// is exact only if no record comes or goes meanwhile.
pub fn gather_shares(
    read: ReadShares<'_>,
    each: &mut dyn FnMut(ShareKey, RecordShare),
) -> Result<(), SearchError> {
    gather_in_passes(GROUPS_MAX, read, each)
}

fn gather_in_passes(
    groups_max: usize,
    read: ReadShares<'_>,
    each: &mut dyn FnMut(ShareKey, RecordShare),
) -> Result<(), SearchError> {
    let mut last = None;
    loop {
        let (mut groups, mut end) = (BTreeMap::<ShareKey, RecordShare>::new(), None);
        read(&mut |key, share| {
            if last.is_none_or(|last| key > last) && end.is_none_or(|end| key < end) {
                groups.entry(key).or_default().add(share);
                if groups.len() > groups_max {
                    end = groups.pop_last().map(|(key, _)| key);
                }
            }
        })?;
        last = groups.last_key_value().map(|(key, _)| *key);
        for (key, share) in groups {
            each(key, share);
        }
        if end.is_none() {
            return Ok(());
        }
    }
}

/// The order of the largest groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareOrder {
    /// Most records first.
    #[default]
    Records,
    /// Most bytes first.
    Bytes,
}

/// The largest groups of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LargestShares {
    /// The largest groups, largest first. Groups of the same size are in the order of their names.
    pub largest: Vec<(ShareKey, RecordShare)>,
    /// Number of all groups.
    pub groups: u64,
    /// The share of all groups together.
    pub total: RecordShare,
}

/// Returns the `limit` largest of the groups that `read` passes on. Only these groups are in memory.
///
/// ```
/// use hark_archive::effects::KeepAll;
/// use hark_archive::store::memory::MemoryStore;
/// use hark_archive::store::shares::{ShareBy, ShareKey, ShareOrder, largest_shares};
/// use hark_archive::{RecordHeader, Store, Write};
///
/// let store = MemoryStore::new(KeepAll);
/// for (id, kind) in [(1, 7), (2, 1), (3, 7)] {
///     let head = RecordHeader { id: [id; 32], time: 7, author: None, kind, expires: None };
///     let mut bytes = Vec::new();
///     hark_codec::record::write(&mut bytes, &head, b"the message", std::iter::empty());
///     store.commit(&[Write::Put(bytes.into())])?;
/// }
/// let found = largest_shares(ShareOrder::Records, 1, |each| store.shares(ShareBy::Kind, each))?;
/// assert_eq!(found.largest[0].0, ShareKey::Kind(7));
/// assert_eq!((found.largest[0].1.records, found.total.records, found.groups), (2, 3, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn largest_shares(
    order: ShareOrder,
    limit: usize,
    read: impl FnOnce(&mut dyn FnMut(ShareKey, RecordShare)) -> Result<(), SearchError>,
) -> Result<LargestShares, SearchError> {
    let mut found = LargestShares::default();
    let mut heap = BinaryHeap::new();
    read(&mut |key, share| {
        found.groups += 1;
        found.total.add(share);
        let size = match order {
            ShareOrder::Records => (share.records, share.bytes),
            ShareOrder::Bytes => (share.bytes, share.records),
        };
        heap.push(Reverse((size, Reverse(key), share)));
        if heap.len() > limit {
            heap.pop();
        }
    })?;
    let largest = heap.into_sorted_vec().into_iter();
    found.largest = largest.map(|Reverse((_, Reverse(key), share))| (key, share)).collect();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use hark_codec::record::{self, RecordHeader};

    use super::*;
    use crate::effects::KeepAll;
    use crate::query::Query;
    use crate::store::memory::MemoryStore;
    use crate::store::{Store, Write};

    fn store() -> MemoryStore {
        let store = MemoryStore::new(KeepAll);
        for id in 0..40_u8 {
            let author = (!id.is_multiple_of(9)).then_some([id % 9; 32]);
            let kind = u32::from(id % 5);
            let head =
                RecordHeader { id: [id; 32], time: u64::from(id), author, kind, expires: None };
            let mut bytes = Vec::new();
            record::write(&mut bytes, &head, &vec![b'x'; id.into()], std::iter::empty());
            store.commit(&[Write::Put(bytes.into())]).unwrap();
        }
        store
    }

    #[test]
    fn passes_give_the_same_groups_as_one_pass() {
        let store = store();
        for by in [ShareBy::Kind, ShareBy::Author, ShareBy::Time(7), ShareBy::Time(0)] {
            let groups = |groups_max| {
                let mut all = Vec::new();
                let mut read = |add: &mut dyn FnMut(ShareKey, RecordShare)| {
                    let mut search = store.search(&Query::default())?;
                    search.read_all(&mut |record| add(by.key(record), RecordShare::of(record)))
                };
                let mut each = |key, share| all.push((key, share));
                gather_in_passes(groups_max, &mut read, &mut each).unwrap();
                all
            };
            let all = groups(GROUPS_MAX);
            assert!(all.is_sorted_by(|(one, _), (other, _)| one < other));
            assert_eq!(all.iter().map(|(_, share)| share.records).sum::<u64>(), 40);
            for groups_max in [1, 2, 3, all.len() - 1, all.len()] {
                assert_eq!(groups(groups_max), all, "{by:?}, {groups_max} groups");
            }
        }
    }

    #[test]
    fn the_largest_groups_come_first_and_ties_in_the_order_of_their_names() {
        let store = store();
        let largest = |order, limit| {
            let found =
                largest_shares(order, limit, |each| store.shares(ShareBy::Kind, each)).unwrap();
            assert_eq!((found.groups, found.total.records), (5, 40));
            found.largest.iter().map(|(key, _)| *key).collect::<Vec<_>>()
        };
        // Each kind has 8 records, and higher kinds have larger records.
        let kinds = [4, 3, 2, 1, 0].map(ShareKey::Kind);
        assert_eq!(largest(ShareOrder::Bytes, 10), kinds);
        assert_eq!(largest(ShareOrder::Records, 2), kinds[..2]);
        assert_eq!(largest(ShareOrder::Bytes, 0), []);
        let days =
            largest_shares(ShareOrder::Records, 3, |each| store.shares(ShareBy::Time(10), each))
                .unwrap();
        let days = days.largest.iter().map(|(key, _)| *key);
        // The spans have 10 records each, and later spans have larger records.
        assert!(days.eq([3, 2, 1].map(ShareKey::Time)));
    }
}
