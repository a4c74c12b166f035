//! Encodes the rows that a batch inserts.

use std::marker::PhantomData;

use bytes::Bytes;

use super::batch::PreparedPut;
use crate::copy::CopyRows;
use crate::error::StatementError;
use crate::label_values::ValueTally;
use crate::properties::ShelfProperties;
use crate::session::DatabaseSession;
use crate::statement::StatementForm;
use crate::time::{IndexKey, to_db};

/// Approximate size in bytes of the pieces in which rows of records are sent.
const PIECE_BYTES: usize = 128 << 10;

/// The columns of a row that differ between the layouts.
pub(crate) trait RowFormat: Send {
    /// The statement that inserts records.
    const COPY_RECORDS: StatementForm;
    /// The statement that inserts tags; `None` if tags have no rows.
    const COPY_TAGS: Option<StatementForm>;

    /// Begins the row of a record, up to the column `seq`.
    fn begin_record(rows: &mut CopyRows, key: &IndexKey, place: &[u8]);

    /// Adds the row of a tag.
    fn tag(rows: &mut CopyRows, tag: &TagRow<'_>);
}

/// A row of a tag. `place` is the author of the record, or its id if it has no author.
pub(crate) struct TagRow<'a> {
    pub(crate) term: i64,
    pub(crate) kind: i32,
    pub(crate) key: &'a IndexKey,
    pub(crate) place: &'a [u8],
}

/// Encodes the rows of records, of their tags and of the table `forbid`.
pub(crate) struct RowEncoder<'a, F> {
    shelf: &'a ShelfProperties,
    kept: std::slice::Iter<'a, (i64, &'a PreparedPut<'a>)>,
    records: CopyRows,
    tags: Vec<TagRow<'a>>,
    forbidding: ForbidColumns<'a>,
    values: ValueTally,
    ended: bool,
    /// Number of bytes encoded so far.
    bytes: usize,
    format: PhantomData<F>,
}

/// The columns of the table `forbid`.
#[derive(Default)]
pub(crate) struct ForbidColumns<'a> {
    pub(crate) keys: Vec<i64>,
    pub(crate) times: Vec<i64>,
    pub(crate) ids: Vec<&'a [u8]>,
    /// The place of each record.
    pub(crate) places: Vec<&'a [u8]>,
}

impl<'a, F: RowFormat> RowEncoder<'a, F> {
    pub(crate) fn new(shelf: &'a ShelfProperties, kept: &'a [(i64, &'a PreparedPut<'a>)]) -> Self {
        Self {
            shelf,
            kept: kept.iter(),
            records: CopyRows::new(PIECE_BYTES),
            tags: Vec::with_capacity(kept.len() * 4),
            forbidding: ForbidColumns::default(),
            values: ValueTally::default(),
            ended: false,
            bytes: 0,
            format: PhantomData,
        }
    }

    /// Inserts the rows of records and of their tags. The tag rows are encoded while the database
    /// is still inserting records.
    pub(crate) fn copy(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        let mut tags = None;
        let records = std::iter::from_fn(|| {
            let piece = self.piece();
            if piece.is_none() {
                tags = self.tag_rows();
            }
            piece
        });
        session.copy(F::COPY_RECORDS, records)?;
        if let (Some(tags), Some(copy_tags)) = (tags, F::COPY_TAGS) {
            session.copy(copy_tags, std::iter::once(tags))?;
        }
        Ok(())
    }

    /// For each listed value of a label, adds the number of this batch's records with this value to
    /// the stored number. Returns the columns of the table `forbid`, and the number of encoded
    /// bytes.
    pub(crate) fn write_values(
        mut self,
        session: &mut DatabaseSession,
    ) -> Result<(ForbidColumns<'a>, u64), StatementError> {
        self.values.write(session)?;
        Ok((self.forbidding, self.bytes as u64))
    }

    /// Returns the next rows of records; `None` after the last.
    fn piece(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        while self.records.len() < PIECE_BYTES && !self.ended {
            if let Some((seq, put)) = self.kept.next() {
                self.record(*seq, put);
            } else {
                self.records.end();
                self.ended = true;
            }
        }
        let piece = self.records.take(if self.ended { 0 } else { PIECE_BYTES });
        self.bytes += piece.len();
        Some(piece)
    }

    fn record(&mut self, seq: i64, put: &'a PreparedPut<'a>) {
        let (PreparedPut { record, key, .. }, rows) = (put, &mut self.records);
        let terms = self.shelf.terms.of(record);
        let kind = record.kind().cast_signed();
        let place = place(put);
        F::begin_record(rows, key, place);
        rows.bigint(seq);
        rows.bigint(key.time);
        match record.expires() {
            Some(at) => rows.bigint(to_db(at)),
            None => rows.null(),
        }
        rows.int(kind);
        rows.bytes(&key.id);
        match record.author() {
            Some(author) => rows.bytes(author),
            None => rows.null(),
        }
        rows.bigints(&terms);
        rows.bytes(record.bytes());
        self.values.add(record, self.shelf.listed_labels, &self.shelf.terms);
        if F::COPY_TAGS.is_some() {
            self.tags.extend(terms.into_iter().map(|term| TagRow { term, kind, key, place }));
        }
        if self.shelf.rules.forbids(record.kind()) {
            for forbidding in self.shelf.terms.forbids(record) {
                self.forbidding.keys.push(forbidding);
                self.forbidding.times.push(key.time);
                self.forbidding.ids.push(&key.id[..]);
                self.forbidding.places.push(place);
            }
        }
    }

    /// Returns the tag rows of all records in the order of the index, so that the database visits
    /// each index page once.
    fn tag_rows(&mut self) -> Option<Bytes> {
        if self.tags.is_empty() {
            return None;
        }
        self.tags.sort_unstable_by_key(|tag| (tag.term, tag.kind));
        let mut rows = CopyRows::new(self.tags.len() * 74);
        for tag in &self.tags {
            F::tag(&mut rows, tag);
        }
        rows.end();
        let rows = rows.take(0);
        self.bytes += rows.len();
        Some(rows)
    }
}

/// Returns a record's author, or its id if it has no author.
pub(crate) fn place<'a>(put: &'a PreparedPut<'a>) -> &'a [u8] {
    put.record.author().map_or(&put.key.id[..], |author| &author[..])
}
