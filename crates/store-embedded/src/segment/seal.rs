//! Sealing: a head that grows no more becomes a segment.

use std::io;
use std::path::Path;

use hark_archive::Record;
use hark_archive::query::prepared::Terms as _;

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
    write(disk, shelf, number, items, head.inserted(), terms)
}

/// Writes the segment `number` from these records; `old_rows` is above all their rows.
pub fn write(
    disk: &dyn Disk,
    shelf: &Path,
    number: u32,
    mut items: Vec<Item<'_>>,
    old_rows: u32,
    terms: &Terms,
) -> io::Result<Written> {
    items.sort_by(|a, b| {
        b.record.time().cmp(&a.record.time()).then_with(|| a.record.id().cmp(b.record.id()))
    });
    let mut rows = vec![DROPPED; old_rows as usize];
    let mut ids = Vec::with_capacity(items.len());
    let mut postings = Vec::with_capacity(items.len() * 8);
    let mut expiries = Vec::new();
    let mut of_record = Vec::new();
    for (new, Item { row, record, .. }) in items.iter().enumerate() {
        let new = new as u32;
        rows[*row as usize] = new;
        ids.push((terms.id(record.id()), new));
        terms.of(record, &mut of_record);
        postings.extend(of_record.iter().map(|&term| (term, record.kind(), new)));
        expiries.extend(record.expires().map(|at| (at, new)));
    }
    ids.sort_unstable();
    postings.sort_unstable();
    expiries.sort_unstable();

    let mut builder = Builder::new(disk, shelf, number)?;
    builder.times(&items.iter().map(|item| item.record.time()).collect::<Vec<_>>())?;
    builder.ids(ids.into_iter())?;
    let mut rest = postings.as_slice();
    builder.lists(|list| {
        let &(term, kind, _) = rest.first()?;
        let len = rest.iter().take_while(|(t, k, _)| (*t, *k) == (term, kind)).count();
        list.extend(rest[..len].iter().map(|(.., row)| *row));
        rest = &rest[len..];
        Some((term, kind))
    })?;
    builder.expiries(&expiries)?;
    let mut bytes = builder.finish()?;
    let addresses = items.iter().map(|item| item.address.pack());
    bytes += Kind::Addresses.write(disk, shelf, (number, 0), addresses)?;
    Ok(Written { rows, count: items.len() as u32, bytes })
}
