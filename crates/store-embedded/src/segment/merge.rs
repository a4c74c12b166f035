//! Merges several segments into a new segment. A record is read only if a segment of an earlier
//! format has no ids.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use hark_archive::Id;
use hark_archive::query::prepared::TermMap as _;

use super::build::{DROPPED, SegmentBuilder, WordBuilder};
use super::opened::Segment;
use super::sidecar::SidecarKind;
use super::spool::{self, Spool};
use super::values::Value;
use super::word_blocks::{WordReader, Words};
use crate::disk::Disk;
use crate::merged::merged;
use crate::term::TermHasher;

/// The result of a merge.
pub struct MergedSegment {
    /// For each old segment and each of its rows, the new row or [`DROPPED`].
    pub rows: Vec<Vec<u32>>,
    /// Number of rows in the new segment.
    pub count: u32,
    /// Number of bytes written.
    pub bytes: u64,
}

/// Upper bound for the bytes that a merge writes. To the bytes of the old files it adds 4 bytes per
/// row, since times may need 8 bytes instead of 4 if the new segment spans more time; 33 bytes per
/// row of a file without ids; the entries of the dictionary, which are also written to a temporary
/// file; and the growth of words.
pub fn bytes_max(segments: &[Arc<Segment>]) -> u64 {
    let bytes = |segment: &Arc<Segment>| {
        let file = &segment.file;
        let aside = file.entries() as u64 * spool::ENTRY_BYTES;
        let ids = if file.has_ids { 0 } else { 33 };
        // Adjacent rows of a small segment are far apart in a large segment, so in the large
        // segment a word's list may need three times as many bytes.
        let words = file.words().blocks.len() as u64 * 2;
        file.bytes() + segment.addresses.bytes() + u64::from(file.rows) * (4 + ids) + aside + words
    };
    segments.iter().map(bytes).sum()
}

/// Writes the segment `number` and its addresses (generation 0) from `segments`, all of which must
/// list the same labels. Dead rows are left out.
pub fn merge(
    disk: &dyn Disk,
    shelf: &Path,
    number: u32,
    segments: &[Arc<Segment>],
    terms: &TermHasher,
) -> io::Result<MergedSegment> {
    let order = interleave(segments);
    let mut rows: Vec<Vec<u32>> =
        segments.iter().map(|segment| vec![DROPPED; segment.file.rows as usize]).collect();
    for (new, &(segment, old)) in order.iter().enumerate() {
        rows[segment as usize][old as usize] = new as u32;
    }
    let mut builder = SegmentBuilder::new(disk, shelf, number)?;
    let time = |&(segment, row): &(u32, u32)| segments[segment as usize].file.time(row);
    builder.times(order.iter().map(time))?;
    builder.ids(ids(segments, &rows))?;
    lists(&mut builder, Spool::new(disk, shelf, number)?, segments, &rows)?;
    let mut expiries: Vec<(u64, u32)> = Vec::new();
    for (segment, map) in segments.iter().zip(&rows) {
        let moved = |(time, row): (u64, u32)| Some((time, new_row(map, row)?));
        expiries.extend(segment.file.expiries().filter_map(moved));
    }
    expiries.sort_unstable();
    builder.expiries(&expiries)?;
    builder.values(terms.listed(), values(segments, &rows, terms))?;
    builder.sums(order.iter().map(|&(segment, row)| id(&segments[segment as usize], row)))?;
    let words: Vec<Words<'_>> = segments.iter().map(|segment| segment.file.words()).collect();
    builder.words(|into| merge_words(into, &words, |at, row| new_row(&rows[at], row)))?;
    let mut bytes = builder.finish()?;
    let addresses =
        order.iter().map(|&(segment, row)| segments[segment as usize].address(row).pack());
    bytes += SidecarKind::Addresses.write(disk, shelf, (number, 0), addresses)?;
    Ok(MergedSegment { rows, count: order.len() as u32, bytes })
}

fn new_row(map: &[u32], row: u32) -> Option<u32> {
    map.get(row as usize).copied().filter(|&new| new != DROPPED)
}

/// Returns the id of a live row; the highest id if neither the segment nor the log has the id.
fn id(segment: &Segment, row: u32) -> Id {
    segment.id(row).unwrap_or([0xff; 32])
}

/// Returns all live rows as (segment, row), newest first; rows of the same time are ordered by id.
fn interleave(segments: &[Arc<Segment>]) -> Vec<(u32, u32)> {
    let next = |at: usize, from: u32| {
        let segment = &segments[at];
        let row = (from..segment.file.rows).find(|&row| !segment.dead.dead.get(row))?;
        Some(Reverse((!segment.file.time(row), at as u32, row)))
    };
    let id = |segment: u32, row: u32| id(&segments[segment as usize], row);
    let mut heap: BinaryHeap<_> = (0..segments.len()).filter_map(|at| next(at, 0)).collect();
    let mut order = Vec::with_capacity(segments.iter().map(|s| s.file.rows as usize).sum());
    let mut group = Vec::new();
    while let Some(Reverse((time, segment, row))) = heap.pop() {
        heap.extend(next(segment as usize, row + 1));
        let tied = |heap: &BinaryHeap<Reverse<(u64, u32, u32)>>| {
            heap.peek().is_some_and(|Reverse((other, ..))| *other == time)
        };
        if group.is_empty() && !tied(&heap) {
            order.push((segment, row));
            continue;
        }
        group.push((segment, row));
        if !tied(&heap) {
            let first = group[0].0;
            let is_known = |at: u32| segments[at as usize].file.has_ids;
            if group.iter().any(|(segment, _)| *segment != first || !is_known(*segment)) {
                group.sort_by_cached_key(|&(segment, row)| id(segment, row));
            }
            order.append(&mut group);
        }
    }
    order
}

/// Returns the merged entries of the id indices.
fn ids(segments: &[Arc<Segment>], rows: &[Vec<u32>]) -> impl Iterator<Item = (u64, u32)> {
    let parts = segments.iter().zip(rows).map(|(segment, map)| {
        let entries = (0..).map_while(|entry| segment.file.id_entry(entry));
        entries.filter_map(|(hash, row)| Some((hash, new_row(map, row)?)))
    });
    merged(parts.collect())
}

/// Merges the values of listed labels. Values that no remaining row has are left out.
fn values<'a>(
    segments: &'a [Arc<Segment>],
    rows: &'a [Vec<u32>],
    terms: &'a TermHasher,
) -> impl Iterator<Item = Value<'a>> {
    let is_kept = move |(name, value): Value<'_>| {
        let term = terms.label(name, value);
        segments.iter().zip(rows).any(|(segment, map)| {
            let file = &segment.file;
            let mut postings = file.term(term).flat_map(|entry| file.list(entry));
            postings.any(|at| new_row(map, file.posting(at)).is_some())
        })
    };
    let mut last = None;
    let all = merged(segments.iter().map(|segment| segment.file.values()).collect());
    all.filter(move |&value| last.replace(value) != Some(value) && is_kept(value))
}

/// Merges the dictionaries and their posting lists.
fn lists(
    builder: &mut SegmentBuilder,
    aside: Spool<'_>,
    segments: &[Arc<Segment>],
    rows: &[Vec<u32>],
) -> io::Result<()> {
    let next = |at: usize, entry: usize| {
        let file = &segments[at].file;
        (entry < file.entries())
            .then(|| Reverse((file.entry_term(entry), file.kind(entry), at, entry)))
    };
    let mut heap: BinaryHeap<_> = (0..segments.len()).filter_map(|at| next(at, 0)).collect();
    builder.lists(aside, |list| {
        let Reverse((term, kind, ..)) = *heap.peek()?;
        let mut lists = 0;
        while let Some(&Reverse((t, k, at, entry))) = heap.peek() {
            if (t, k) != (term, kind) {
                break;
            }
            heap.pop();
            heap.extend(next(at, entry + 1));
            let file = &segments[at].file;
            list.extend(file.list(entry).filter_map(|i| new_row(&rows[at], file.posting(i))));
            lists += 1;
        }
        if lists > 1 {
            list.sort_unstable();
        }
        Some((term, kind))
    })
}

/// The next word of each part.
type WordHeap = BinaryHeap<Reverse<(Vec<u8>, usize)>>;

/// Merges words and their posting lists. `kept` maps a part and a row of this part to the new row.
/// Words without rows are left out.
pub fn merge_words(
    into: &mut WordBuilder<'_>,
    parts: &[Words<'_>],
    kept: impl Fn(usize, u32) -> Option<u32>,
) -> io::Result<()> {
    let mut readers: Vec<_> = parts.iter().map(|part| part.read()).collect();
    let mut heap = WordHeap::new();
    let advance = |readers: &mut [WordReader<'_>], heap: &mut WordHeap, at: usize| {
        if readers[at].advance() {
            heap.push(Reverse((readers[at].word.clone(), at)));
        }
    };
    (0..readers.len()).for_each(|at| advance(&mut readers, &mut heap, at));
    let (mut lists, mut merged) = (Vec::new(), Vec::new());
    while let Some(Reverse((word, first))) = heap.pop() {
        let mut next = Some(first);
        while let Some(at) = next {
            lists.extend(readers[at].lists().map(|(key, list)| (key, at, list)));
            advance(&mut readers, &mut heap, at);
            let is_same = heap.peek().is_some_and(|Reverse((other, _))| *other == word);
            next = if is_same { heap.pop().map(|Reverse((_, at))| at) } else { None };
        }
        lists.sort_unstable_by_key(|(key, at, _)| (*key, *at));
        for same in lists.chunk_by(|(one, ..), (other, ..)| one == other) {
            for (_, at, list) in same {
                merged.extend(list.rows(parts[*at].blocks).filter_map(|row| kept(*at, row)));
            }
            // The rows of each part ascend, unless a page was lost during the merge. After such a
            // loss the merge fails later.
            if !merged.is_sorted_by(|one, other| one < other) {
                #[expect(clippy::stable_sort_primitive, reason = "the rows of each part ascend")]
                merged.sort();
                merged.dedup();
            }
            into.list(same[0].0, &merged);
            merged.clear();
        }
        lists.clear();
        into.word(&word)?;
    }
    Ok(())
}
