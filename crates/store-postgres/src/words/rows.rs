//! The rows of the tables `word` and `worded`.

use std::sync::Arc;

use hark_archive::{Record, TextSource};
use hark_words::{RecordWords, WeighedWords};

use super::mark::mark;
use crate::copy::CopyRows;
use crate::error::StatementError;
use crate::plain::PlainStatement;
use crate::session::DatabaseSession;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// Number of gathered rows at which the rows are written to the database.
const ROWS: usize = 50_000;
/// Rows of words that are gathered and not written yet.
pub(crate) struct WordRows<'a> {
    texts: &'a Arc<dyn TextSource>,
    terms: &'a DatabaseTermHasher,
    words: RecordWords,
    found: WeighedWords,
    /// The letters of all gathered words.
    letters: Vec<u8>,
    /// For each row, the position of its word in `letters`, and its other columns.
    rows: Vec<CopiedWord>,
    /// For each record, its time, its mark, its kind, and the range of its words in `rows`.
    records: Vec<(i64, i64, i32, std::ops::Range<usize>)>,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct CopiedWord {
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
            found: WeighedWords::default(),
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
            self.rows.push(CopiedWord { first, last, time: key.time, mark, kind });
        }
        if begin < self.rows.len() {
            self.records.push((key.time, base, kind, begin..self.rows.len()));
        }
    }

    /// Adds the words of a stored record.
    pub(crate) fn add_stored(&mut self, body: &[u8]) {
        if let Ok(record) = Record::new(body) {
            self.add(&record, &IndexKey::of(&record));
        }
    }

    /// The number of gathered rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the rows should be written before more rows are added.
    pub(crate) fn are_many(&self) -> bool {
        self.rows.len() >= ROWS
    }

    /// Inserts the gathered rows into the database, and forgets the rows here.
    pub(crate) fn write(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let Self { letters, rows, records, .. } = self;
        let word = |row: &CopiedWord| &letters[row.first..row.last];
        let mut worded = CopyRows::new(letters.len() + rows.len() * 4 + records.len() * 64);
        for (time, mark, kind, range) in records.drain(..) {
            worded.row(4);
            worded.bigint(time);
            worded.bigint(mark);
            worded.int(kind);
            worded.byte_strings(rows[range].iter().map(word));
        }
        worded.end();
        // The rows are sorted in the order of the index, so that each index page is visited once.
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
        session.copy(PlainStatement::CopyWorded, std::iter::once(worded.take(0)))?;
        session.copy(PlainStatement::CopyWords, std::iter::once(copied.take(0)))?;
        self.letters.clear();
        self.rows.clear();
        Ok(())
    }

    /// The number of bytes of all rows written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
