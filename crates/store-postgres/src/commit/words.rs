//! The rows by which records are found by their words.

use std::sync::Arc;

use hark_archive::{Record, TextSource};
use hark_words::{RecordWords, WeighedWord};

use super::copy::CopyRows;
use crate::layout::StatementForm;
use crate::session::{DatabaseSession, StatementError};
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// Rows that are copied in at a time.
const ROWS: usize = 50_000;
/// The bits of a mark that tell a word's class.
const CLASS_BITS: i64 = 3;

/// Returns the mark of a record's words of class 0.
pub(crate) fn mark(id: &[u8; 32]) -> i64 {
    let head = id.first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
    crate::time::to_db(head) & !CLASS_BITS
}

/// Returns the first and the last id that records of a mark may have.
pub(crate) fn ids_of(mark: i64) -> ([u8; 32], [u8; 32]) {
    let (mut first, mut last) = ([0; 32], [0xff; 32]);
    let head = crate::time::from_db(mark & !CLASS_BITS);
    first[..8].copy_from_slice(&head.to_be_bytes());
    last[..8].copy_from_slice(&(head | CLASS_BITS.cast_unsigned()).to_be_bytes());
    (first, last)
}

/// Rows of words that are being made.
pub(crate) struct WordRows<'a> {
    texts: &'a Arc<dyn TextSource>,
    terms: &'a DatabaseTermHasher,
    words: RecordWords,
    found: Vec<WeighedWord>,
    /// The letters of all words.
    letters: Vec<u8>,
    /// Where a word ends in `letters`, and what else its row has.
    rows: Vec<WordRow>,
    /// Of each record its key, its kind, and where its words begin and end in `rows`.
    records: Vec<(i64, i64, i32, std::ops::Range<usize>)>,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct WordRow {
    first: usize,
    last: usize,
    time: i64,
    mark: i64,
    kind: i32,
}

impl<'a> WordRows<'a> {
    pub(crate) fn new(texts: &'a Arc<dyn TextSource>, terms: &'a DatabaseTermHasher) -> Self {
        Self {
            texts,
            terms,
            words: RecordWords::default(),
            found: Vec::new(),
            letters: Vec::new(),
            rows: Vec::new(),
            records: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds a record's words.
    pub(crate) fn add(&mut self, record: &Record<'_>, key: &IndexKey) {
        if !self.texts.has_texts(record.kind()) {
            return;
        }
        let Self { words, found, terms, .. } = self;
        words.clear();
        self.texts.texts(record, &mut |part, text| words.add(part, text));
        words.weigh(|word| terms.word(word), found);
        let (kind, base, begin) = (record.kind().cast_signed(), mark(&key.id), self.rows.len());
        for word in found.iter() {
            let first = self.letters.len();
            self.letters.extend_from_slice(words.text(word).as_bytes());
            let (last, mark) = (self.letters.len(), base | i64::from(word.class));
            self.rows.push(WordRow { first, last, time: key.time, mark, kind });
        }
        if begin < self.rows.len() {
            self.records.push((key.time, base, kind, begin..self.rows.len()));
        }
    }

    /// Whether the rows should be written before more are added.
    pub(crate) fn are_many(&self) -> bool {
        self.rows.len() >= ROWS
    }

    /// Inserts the rows, and begins anew.
    pub(crate) fn write(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let Self { letters, rows, records, .. } = self;
        let word = |row: &WordRow| &letters[row.first..row.last];
        let mut worded = CopyRows::new(letters.len() + rows.len() * 4 + records.len() * 64);
        for (time, mark, kind, range) in records.drain(..) {
            worded.row(4);
            worded.bigint(time);
            worded.bigint(mark);
            worded.int(kind);
            worded.byte_strings(rows[range].iter().map(word));
        }
        worded.end();
        // In the order of the index, so that a page of it is visited once.
        rows.sort_unstable_by(|a, b| (word(a), a.kind).cmp(&(word(b), b.kind)));
        let mut copied = CopyRows::new(letters.len() + rows.len() * 40);
        for row in rows.iter() {
            copied.row(4);
            copied.bigint(row.time);
            copied.bigint(row.mark);
            copied.int(row.kind);
            copied.bytes(word(row));
        }
        copied.end();
        self.bytes += (worded.len() + copied.len()) as u64;
        session.copy(StatementForm::CopyWorded, std::iter::once(worded.take(0)))?;
        session.copy(StatementForm::CopyWords, std::iter::once(copied.take(0)))?;
        self.letters.clear();
        self.rows.clear();
        Ok(())
    }

    /// The bytes of all rows that were written.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_which_ids_it_is_of_in_their_order() {
        let ids = [[0; 32], [7; 32], [0x7f; 32], [0x80; 32], [0xff; 32]];
        let marks = ids.map(|id| mark(&id));
        assert!(marks.is_sorted(), "{marks:?}");
        for (id, mark) in ids.iter().zip(marks) {
            for class in 0..4 {
                let (first, last) = ids_of(mark | class);
                assert!(first <= *id && *id <= last, "{first:?} {last:?}");
                assert_eq!((super::mark(&first), super::mark(&last)), (mark, mark));
            }
        }
        let (_, last) = ids_of(mark(&[0x10; 32]));
        assert_eq!(mark(&last), mark(&[0x10; 32]));
    }
}
