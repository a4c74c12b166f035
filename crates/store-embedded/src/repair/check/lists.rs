//! Checking the posting lists of a segment.

use std::collections::HashSet;
use std::sync::Arc;

use super::faults::{FaultCount, ShelfCheck};
use crate::segment::opened::Segment;
use crate::segment::{RecordAddress, SECTIONS};
use crate::term::{TermBuffers, lists_words};

impl ShelfCheck<'_> {
    /// Compares the posting lists with the records, by sums that do not depend on the order of the
    /// postings. So the check keeps no list in memory.
    pub(super) fn lists(&mut self, segment: &Arc<Segment>, faults: &mut FaultCount) {
        let file = &segment.file;
        let gone = |row: u32| segment.address(row) == RecordAddress::GONE;
        let mut sums = [(0u64, 0u64); 2];
        let mut add = |at: usize, term: u64, kind: u32, row: u32| {
            let mixed = (term ^ u64::from(kind).rotate_left(40) ^ u64::from(row))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let (sum, count) = &mut sums[at];
            (*sum, *count) = (sum.wrapping_add(mixed ^ mixed >> 32), *count + 1);
        };
        let mut terms = TermBuffers::default();
        for row in (0..file.rows).filter(|&row| !gone(row)) {
            if let Some(record) = segment.record(row) {
                if segment.has_words() {
                    self.terms.of(&record, &mut terms);
                } else {
                    self.terms.of_labels(&record, &mut terms);
                }
                for &term in &terms.terms {
                    add(0, term, record.kind(), row);
                }
                for term in terms.word_terms() {
                    add(0, term, record.kind(), row);
                }
            }
        }
        let mut last = None;
        for entry in 0..file.entries() {
            let here = (file.entry_term(entry), file.kind(entry));
            if last.is_some_and(|last| last >= here) {
                self.count_fault(
                    faults,
                    format!("entry {entry} of the dictionary is out of order"),
                );
            }
            last = Some(here);
            let mut before = None;
            for row in file.list(entry).map(|at| file.posting(at)) {
                if before.is_some_and(|before| before >= row) || row >= file.rows {
                    self.count_fault(faults, format!("list {entry} is out of order"));
                    break;
                }
                before = Some(row);
                if !gone(row) {
                    add(1, here.0, here.1, row);
                }
            }
        }
        if segment.has_words() {
            self.words(segment, faults, &mut |term, kind, row| {
                if !gone(row) {
                    add(1, term, kind, row);
                }
            });
        }
        // If a segment was written with another configuration, it is unknown which words it should
        // have.
        let has_other_words = lists_words(file.listed()) && !segment.has_words();
        if sums[0] != sums[1] && !has_other_words {
            let what = format!(
                "the lists do not agree with the records ({} entries, {} expected)",
                sums[1].1, sums[0].1
            );
            self.count_fault(faults, what);
        }
        let expiring: Vec<(u64, u32)> = file.expiries().collect();
        let listed: HashSet<(u64, u32)> = expiring.iter().copied().collect();
        for row in (0..file.rows).filter(|&row| !gone(row)) {
            let expires = segment.record(row).and_then(|record| record.expires());
            if expires.is_some_and(|at| !listed.contains(&(at, row))) {
                self.count_fault(faults, format!("row {row} is missing from the list of expiries"));
            }
        }
        if !expiring.is_sorted() {
            self.count_fault(faults, "the list of expiries is out of order".into());
        }
        debug_assert_eq!(SECTIONS.len(), 15, "a new section needs its check here");
    }

    /// Checks the order of the words and of their lists, and passes each posting to `each` as term,
    /// kind and row.
    fn words(
        &mut self,
        segment: &Segment,
        faults: &mut FaultCount,
        each: &mut impl FnMut(u64, u32, u32),
    ) {
        let words = segment.file.words();
        let (mut last, mut reader, mut at) = (None, words.read(), 0);
        while reader.advance() {
            let Ok(word) = str::from_utf8(&reader.word) else {
                self.count_fault(faults, format!("word {at} is not valid text"));
                continue;
            };
            if last.as_deref().is_some_and(|last: &str| last >= word) {
                self.count_fault(faults, format!("word {at} is out of order"));
            }
            last = Some(word.to_owned());
            at += 1;
            let terms: Vec<u64> = self.terms.of_word(word).map(|(_, term)| term).collect();
            let mut before = None;
            for ((kind, class), list) in reader.lists() {
                let mut rows = list.rows(words.blocks);
                let is_sound = rows.try_fold(None, |before, row| {
                    let is_next = before.is_none_or(|before| before < row);
                    each(terms[usize::from(class)], kind, row);
                    (is_next && row < segment.file.rows).then_some(Some(row))
                });
                if is_sound.is_none() || before >= Some((kind, class)) {
                    self.count_fault(faults, format!("a list of word {at} is out of order"));
                }
                before = Some((kind, class));
            }
        }
    }
}
