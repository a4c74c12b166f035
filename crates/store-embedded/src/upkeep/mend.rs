//! Making a damaged segment anew beside readers and the writer.
//!
//! What is damaged is the segment's index. Where its records are and which of them are dead is known
//! from other files, whose checksums were looked at when they were opened, and the records lie in the
//! log, each with a checksum of its own. So a segment is made anew as a head is sealed: one for each
//! of its logs, which takes no more memory than sealing does however large the damaged one is. They are
//! merged again later. If a single record can not be read nothing is changed: what is wrong then is
//! not the index.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Started, UpkeepError};
use crate::manifest::SegmentEntry;
use crate::room::BESIDE_OTHERS;
use crate::segment;
use crate::segment::seal::{self, DROPPED, Written};
use crate::segment::view::Segment;
use crate::shelf::{Shelf, lock};

impl Shelf {
    /// Puts a segment for each of its logs in the place of a damaged one; says how many.
    pub(super) fn mend(&self, bad: &Arc<Segment>) -> Result<usize, UpkeepError> {
        let started = Started::now();
        let damaged = || UpkeepError::Damaged(segment::path(&self.dir, bad.entry.number));
        let mut live: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for row in (0..bad.file.rows).filter(|&row| !bad.dead.dead.get(row)) {
            live.entry(bad.address(row).log).or_default().push(row);
        }
        if bad.addresses.faults() > 0 {
            return Err(damaged());
        }
        // As large as it was, and a trailer for each.
        let needs = bad.file.bytes() * 2 + bad.addresses.bytes() + self.dead_files_max();
        let room = self.room("making a damaged segment anew", BESIDE_OTHERS, needs)?;
        let next = lock(&self.manifest).next_segment;
        let mut entries = Vec::new();
        // Of each the rows of the damaged one that went into it, and what became of them.
        let mut made: Vec<(Vec<u32>, Written)> = Vec::new();
        for log in bad.logs.iter().flatten() {
            let rows = live.remove(&log.number).unwrap_or_default();
            let mut records = Vec::with_capacity(rows.len());
            for (at, &row) in (0..).zip(&rows) {
                let address = bad.address(row);
                let record = log.record(address.offset, true).ok_or_else(damaged)?;
                records.push((at, address, record));
            }
            let (number, count) = (next + entries.len() as u32, rows.len() as u32);
            let written = seal::write(&room, &self.dir, number, &records, count, &self.terms)?;
            self.note_written(written.bytes);
            let (first_log, last_log) = (log.number, log.number);
            entries.push(SegmentEntry { number, first_log, last_log, addresses: 0, dead: 0 });
            made.push((rows, written));
        }
        if !live.is_empty() || entries.is_empty() {
            return Err(damaged());
        }
        let died = |at: usize| -> Vec<u32> {
            let (olds, written) = &made[at];
            let both = olds.iter().zip(&written.rows);
            let died = both.filter(|&(&old, &new)| new != DROPPED && bad.dead.dead.get(old));
            died.map(|(_, &new)| new).collect()
        };
        self.install(&room, &entries, &died, &|manifest, entries| {
            let at = manifest.segments.iter().position(|s| s.number == bad.entry.number);
            let at = at.unwrap_or(manifest.segments.len());
            manifest.segments.splice(at..(at + 1).min(manifest.segments.len()), entries);
            manifest.note_dead_bytes(bad.logs.iter().flatten());
        })?;
        let records = made.iter().map(|(_, written)| u64::from(written.count)).sum();
        let bytes = made.iter().map(|(_, written)| written.bytes).sum();
        self.note_done(&started, records, bytes, |done| &mut done.sealing);
        Ok(entries.len())
    }
}
