//! Sealing: a head that grows no more becomes a segment.

use std::io;
use std::path::Path;

use hark_archive::query::prepared::Terms as _;
use hark_archive::{Id, Record};

use super::Address;
use super::build::Builder;
use super::sidecar::Kind;
use crate::disk::Disk;
use crate::head::Head;
use crate::term::Terms;

/// A row that was left out.
pub const DROPPED: u32 = u32::MAX;

/// A segment that has been written.
pub struct Written {
    /// For each old row, the new one or [`DROPPED`].
    pub rows: Vec<u32>,
    /// Rows in the new segment.
    pub count: u32,
    /// Bytes written.
    pub bytes: u64,
}

/// A record that goes into a segment.
pub struct Item<'a> {
    /// The row it had.
    pub row: u32,
    /// Where it is.
    pub address: Address,
    /// What it says.
    pub record: Record<'a>,
}

/// Writes the segment `number` and its addresses (generation 0) from `head`. Rows that are dead now
/// are left out.
pub fn seal(
    disk: &dyn Disk,
    shelf: &Path,
    number: u32,
    head: &Head,
    terms: &Terms,
) -> io::Result<Written> {
    let item = |row| {
        let address = Address { log: head.log.number, offset: head.row(row)?.offset };
        Some(Item { row, address, record: head.record(row)? })
    };
    let items = (0..head.inserted()).filter(|&row| !head.is_dead(row)).filter_map(item).collect();
    let sorted = Sorted::new(items, head.inserted());
    let mut lists: Vec<(u64, u32, u32)> = head.lists().collect();
    lists.sort_unstable();
    let mut lists = lists.into_iter();
    let mut old = Vec::new();
    let rows = &sorted.rows;
    let next = |list: &mut Vec<u32>| {
        let (term, kind, number) = lists.next()?;
        head.rows_of_list(number, &mut old);
        list.extend(old.drain(..).map(|row| rows[row as usize]).filter(|&row| row != DROPPED));
        list.sort_unstable();
        Some((term, kind))
    };
    let bytes = sorted.write(disk, shelf, number, terms, next)?;
    Ok(sorted.written(bytes))
}

/// Writes the segment `number` from these records; `old_rows` is above all their rows.
pub fn write(
    disk: &dyn Disk,
    shelf: &Path,
    number: u32,
    items: Vec<Item<'_>>,
    old_rows: u32,
    terms: &Terms,
) -> io::Result<Written> {
    let sorted = Sorted::new(items, old_rows);
    let mut postings = Vec::with_capacity(sorted.items.len() * 8);
    let mut of_record = Vec::new();
    for (new, Item { record, .. }) in (0..).zip(&sorted.items) {
        terms.of(record, &mut of_record);
        postings.extend(of_record.iter().map(|&term| (term, record.kind(), new)));
    }
    postings.sort_unstable();
    let mut rest = postings.as_slice();
    let next = |list: &mut Vec<u32>| {
        let &(term, kind, _) = rest.first()?;
        let len = rest.iter().take_while(|(t, k, _)| (*t, *k) == (term, kind)).count();
        list.extend(rest[..len].iter().map(|(.., row)| *row));
        rest = &rest[len..];
        Some((term, kind))
    };
    let bytes = sorted.write(disk, shelf, number, terms, next)?;
    Ok(sorted.written(bytes))
}

/// Records in the order of a segment.
struct Sorted<'a> {
    items: Vec<Item<'a>>,
    /// For each old row, the new one or [`DROPPED`].
    rows: Vec<u32>,
}

impl<'a> Sorted<'a> {
    fn new(items: Vec<Item<'a>>, old_rows: u32) -> Self {
        // By what is at hand: nearly always the id's first bytes tell, without a look at the record.
        let first = |id: &Id| id.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
        let key = |item: Item<'a>| (!item.record.time(), first(item.record.id()), item);
        let mut keyed: Vec<(u64, u64, Item<'a>)> = items.into_iter().map(key).collect();
        keyed.sort_unstable_by(|a, b| {
            (a.0, a.1).cmp(&(b.0, b.1)).then_with(|| a.2.record.id().cmp(b.2.record.id()))
        });
        let items: Vec<_> = keyed.into_iter().map(|(.., item)| item).collect();
        let mut rows = vec![DROPPED; old_rows as usize];
        for (new, item) in (0..).zip(&items) {
            rows[item.row as usize] = new;
        }
        Self { items, rows }
    }

    /// Writes the segment and its addresses: `next` as for [`Builder::lists`]. Gives their bytes.
    fn write(
        &self,
        disk: &dyn Disk,
        shelf: &Path,
        number: u32,
        terms: &Terms,
        next: impl FnMut(&mut Vec<u32>) -> Option<(u64, u32)>,
    ) -> io::Result<u64> {
        let mut ids = Vec::with_capacity(self.items.len());
        let mut expiries = Vec::new();
        for (new, Item { record, .. }) in (0..).zip(&self.items) {
            ids.push((terms.id(record.id()), new));
            expiries.extend(record.expires().map(|at| (at, new)));
        }
        ids.sort_unstable();
        expiries.sort_unstable();
        let mut builder = Builder::new(disk, shelf, number)?;
        builder.times(&self.items.iter().map(|item| item.record.time()).collect::<Vec<_>>())?;
        builder.ids(ids.into_iter())?;
        builder.lists(next)?;
        builder.expiries(&expiries)?;
        let addresses = self.items.iter().map(|item| item.address.pack());
        Ok(builder.finish()? + Kind::Addresses.write(disk, shelf, (number, 0), addresses)?)
    }

    fn written(self, bytes: u64) -> Written {
        Written { count: self.items.len() as u32, rows: self.rows, bytes }
    }
}
