//! Seals a head that no longer grows: writes a segment.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use hark_archive::query::prepared::TermMap as _;
use hark_archive::{Id, Record};

use super::RecordAddress;
use super::build::{DROPPED, SegmentBuilder, WordBuilder};
use super::gathered::GatheredWords;
use super::sidecar::SidecarKind;
use super::spool::{self, Spool};
use super::values::{self, Value};
use crate::disk::Disk;
use crate::head::{Head, HeadRow, ListOfRun};
use crate::term::{TermBuffers, TermHasher};

/// A segment that was written.
pub struct SealedSegment {
    /// For each old row, the new row or [`DROPPED`].
    pub rows: Vec<u32>,
    /// Number of rows in the new segment.
    pub count: u32,
    /// Number of bytes written.
    pub bytes: u64,
}

/// A record that goes into a segment.
pub struct SegmentRow {
    /// The old row of the record.
    pub row: u32,
    /// The record's time.
    pub time: u64,
    /// The record's id.
    pub id: Id,
    /// The hash of the record's id.
    pub hash: u64,
    /// The record's address.
    pub address: RecordAddress,
}

/// Returns the values of listed labels in the live rows of a head.
pub fn values<'a>(head: &'a Head, terms: &TermHasher) -> Vec<Value<'a>> {
    let live = (0..head.inserted()).filter(|&row| !head.is_dead(row));
    values::of(live.filter_map(|row| head.record(row)), terms)
}

/// Upper bound for the bytes that sealing a head with these `values` writes. The bound counts each
/// row's time, hash, filter, address, expiry, id and sum. It also counts the postings, the entries
/// of the lists (in the temporary file and in the dictionary), the values, and the words.
pub fn bytes_max(head: &Head, values: &[Value<'_>], terms: &TermHasher) -> u64 {
    let (mut entries, mut postings, mut rows) = (0, 0, Vec::new());
    for (.., number) in head.lists() {
        head.rows_of_list(number, &mut rows);
        let live = rows.drain(..).filter(|&row| !head.is_dead(row)).count() as u64;
        entries += u64::from(live > 0);
        postings += live;
    }
    let live = u64::from(head.inserted().saturating_sub(head.dead_count()));
    live * (8 + 12 + 1 + 8 + 12 + 32 + 1)
        + postings * 4
        + entries * (16 + spool::ENTRY_BYTES)
        + values::bytes(terms.listed(), values)
        + head.word_bytes_max()
        + (4 << 10)
}

/// Writes the segment `number` and its addresses (generation 0) from `head`. Dead rows are left
/// out.
pub fn seal(
    disk: &dyn Disk,
    shelf: &Path,
    number: u32,
    head: &Head,
    (terms, values): (&TermHasher, &[Value<'_>]),
) -> io::Result<SealedSegment> {
    let item = |row| {
        let &HeadRow { time, id, hash, offset, .. } = head.row(row)?;
        Some(SegmentRow {
            row,
            time,
            // If the record can no longer be read, the first bytes of its id are still known.
            id: head.id(row).unwrap_or_else(|| padded(id)),
            hash,
            address: RecordAddress { log: head.log.number, offset },
        })
    };
    let items = (0..head.inserted()).filter(|&row| !head.is_dead(row)).filter_map(item).collect();
    let sorted = SortedRows::new(items, head.inserted());
    let mut lists: Vec<(u64, u32, u32)> = head.lists().collect();
    lists.sort_unstable();
    let mut old = Vec::new();
    let rows = &sorted.rows;
    // A record may have died after its values were gathered, so values that no row has are left
    // out.
    let mut values = values.to_vec();
    if !values.is_empty() {
        let mut has_rows = |number| {
            head.rows_of_list(number, &mut old);
            old.drain(..).any(|row| rows[row as usize] != DROPPED)
        };
        let live = lists.iter().filter(|(.., number)| has_rows(*number));
        let live: HashSet<u64> = live.map(|(term, ..)| *term).collect();
        values.retain(|&(name, value)| live.contains(&terms.label(name, value)));
    }
    let mut lists = lists.into_iter();
    let next = |list: &mut Vec<u32>| {
        let (term, kind, number) = lists.next()?;
        head.rows_of_list(number, &mut old);
        list.extend(old.drain(..).map(|row| rows[row as usize]).filter(|&row| row != DROPPED));
        list.sort_unstable();
        Some((term, kind))
    };
    let words = |into: &mut WordBuilder<'_>| {
        let (mut list, mut written) = (Vec::new(), Ok(()));
        head.each_word(|word, lists| {
            if written.is_err() {
                return;
            }
            for same in lists.chunk_by(|one, other| one.key == other.key) {
                list.clear();
                let new = same.iter().flat_map(ListOfRun::rows).map(|old| rows[old as usize]);
                list.extend(new.filter(|row| *row != DROPPED));
                list.sort_unstable();
                into.list(same[0].key, &list);
            }
            written = into.word(word.as_bytes());
        });
        written
    };
    let lists = SegmentLists { next, words, expiries: head.expiries(), values: &values };
    let bytes = sorted.write(disk, shelf, number, lists, terms)?;
    Ok(sorted.written(bytes))
}

/// Writes the segment `number` and its addresses (generation 0) from `records`. Their old rows are
/// all below `old_rows`.
pub fn write(
    disk: &dyn Disk,
    shelf: &Path,
    number: u32,
    records: &[(u32, RecordAddress, Record<'_>)],
    old_rows: u32,
    terms: &TermHasher,
) -> io::Result<SealedSegment> {
    let item = |&(row, address, ref record): &(u32, RecordAddress, Record<'_>)| {
        let (time, id) = (record.time(), record.id());
        SegmentRow { row, time, id: *id, hash: terms.id(id), address }
    };
    let sorted = SortedRows::new(records.iter().map(item).collect(), old_rows);
    let mut postings = Vec::with_capacity(records.len() * 8);
    let mut of_record = TermBuffers::default();
    let (mut expiries, mut words) = (Vec::new(), GatheredWords::default());
    for (row, _, record) in records {
        let new = sorted.rows[*row as usize];
        terms.of(record, &mut of_record);
        postings.extend(of_record.terms.iter().map(|&term| (term, record.kind(), new)));
        words.add(record.kind(), new, of_record.words());
        expiries.extend(record.expires().map(|at| (at, *row)));
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
    let values = values::of(records.iter().map(|(.., record)| *record), terms);
    let count = records.len() as u32;
    let words = |into: &mut WordBuilder<'_>| words.put(into, count);
    let lists = SegmentLists { next, words, expiries, values: &values };
    let bytes = sorted.write(disk, shelf, number, lists, terms)?;
    Ok(sorted.written(bytes))
}

/// All of a segment's content except its rows.
struct SegmentLists<'a, N, W> {
    /// The callback for [`SegmentBuilder::lists`].
    next: N,
    /// The callback for [`SegmentBuilder::words`].
    words: W,
    /// Expiry times and old rows.
    expiries: Vec<(u64, u32)>,
    /// The values of listed labels.
    values: &'a [Value<'a>],
}

fn padded(prefix: [u64; 2]) -> Id {
    let mut id = [0; 32];
    for (bytes, half) in id.as_chunks_mut().0.iter_mut().zip(prefix) {
        *bytes = half.to_be_bytes();
    }
    id
}

/// Records in the order of a segment.
struct SortedRows {
    items: Vec<SegmentRow>,
    /// For each old row, the new row or [`DROPPED`].
    rows: Vec<u32>,
}

impl SortedRows {
    fn new(mut items: Vec<SegmentRow>, old_rows: u32) -> Self {
        items.sort_unstable_by_key(|item| (!item.time, item.id, item.row));
        let mut rows = vec![DROPPED; old_rows as usize];
        for (new, item) in (0..).zip(&items) {
            rows[item.row as usize] = new;
        }
        Self { items, rows }
    }

    /// Writes the segment and its addresses, and returns the total number of bytes.
    fn write(
        &self,
        disk: &dyn Disk,
        shelf: &Path,
        number: u32,
        lists: SegmentLists<
            '_,
            impl FnMut(&mut Vec<u32>) -> Option<(u64, u32)>,
            impl FnOnce(&mut WordBuilder<'_>) -> io::Result<()>,
        >,
        terms: &TermHasher,
    ) -> io::Result<u64> {
        let SegmentLists { next, words, mut expiries, values } = lists;
        let mut ids: Vec<_> = (0..).zip(&self.items).map(|(new, item)| (item.hash, new)).collect();
        ids.sort_unstable();
        for (_, row) in &mut expiries {
            *row = self.rows[*row as usize];
        }
        expiries.retain(|(_, row)| *row != DROPPED);
        expiries.sort_unstable();
        let mut builder = SegmentBuilder::new(disk, shelf, number)?;
        builder.times(self.items.iter().map(|item| item.time))?;
        builder.ids(ids.into_iter())?;
        builder.lists(Spool::new(disk, shelf, number)?, next)?;
        builder.expiries(&expiries)?;
        builder.values(terms.listed(), values.iter().copied())?;
        builder.sums(self.items.iter().map(|item| item.id))?;
        builder.words(words)?;
        let addresses = self.items.iter().map(|item| item.address.pack());
        Ok(builder.finish()? + SidecarKind::Addresses.write(disk, shelf, (number, 0), addresses)?)
    }

    fn written(self, bytes: u64) -> SealedSegment {
        SealedSegment { count: self.items.len() as u32, rows: self.rows, bytes }
    }
}
