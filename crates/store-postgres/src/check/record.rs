//! A stored record: comparing its columns with its bytes, and deriving its other rows.

use std::sync::Arc;

use hark_archive::effects::Effects;
use hark_archive::{Query, Record, TextSource};
use hark_words::{RecordWords, WeighedWords};
use tokio_postgres::Row;

use super::report::{DatabaseFault, FaultSort};
use crate::commit::fetch::{self, SlotQuery};
use crate::properties::ShelfProperties;
use crate::time::{IndexKey, to_db};

/// A stored record, and the rows that it must have in other tables.
pub(crate) struct ExpectedRecord {
    /// The number of the record's put.
    pub(crate) seq: i64,
    pub(crate) key: IndexKey,
    pub(crate) kind: i32,
    pub(crate) expires: Option<i64>,
    pub(crate) author: Option<Vec<u8>>,
    /// The time and the id in the columns of the record's row.
    pub(crate) stored: (i64, Vec<u8>),
    /// Whether columns of the record's row differ from the record's bytes.
    pub(crate) has_wrong_columns: bool,
    /// The author, or the id of a record without an author.
    pub(crate) place: Vec<u8>,
    pub(crate) terms: Vec<i64>,
    /// Whether the record's bytes are undamaged. Otherwise the values above come from the columns
    /// of the record's row, and the values below are empty.
    pub(crate) is_whole: bool,
    /// The terms of those labels whose values are counted in the table `label_value`.
    pub(crate) listed: Vec<i64>,
    /// The keys of the record in the table `forbid`.
    pub(crate) forbids: Vec<i64>,
    pub(crate) slot: Option<SlotQuery>,
    /// Queries for records that forbid this record, each with its key in the table `forbid`.
    pub(crate) prohibitions: Vec<(i64, Query)>,
    /// The words with their classes; `None` if the words are unknown.
    pub(crate) words: Option<Vec<(Vec<u8>, u8)>>,
}

/// Numbers of rows that the records have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRows {
    pub(crate) labels: u64,
    pub(crate) forbids: u64,
}

/// The labels of several records, as columns.
#[derive(Default)]
pub(crate) struct LabelRows {
    pub(crate) terms: Vec<i64>,
    pub(crate) kinds: Vec<i32>,
    pub(crate) times: Vec<i64>,
    pub(crate) ids: Vec<Vec<u8>>,
    /// The places of the records.
    pub(crate) places: Vec<Vec<u8>>,
}

impl LabelRows {
    pub(crate) fn of(records: &[ExpectedRecord]) -> Self {
        let mut all = Self::default();
        for record in records {
            for term in &record.terms {
                all.terms.push(*term);
                all.kinds.push(record.kind);
                all.times.push(record.key.time);
                all.ids.push(record.key.id.to_vec());
                all.places.push(record.place.clone());
            }
        }
        all
    }
}

/// The words of a shelf's records.
#[derive(Clone)]
pub(crate) enum IndexedTexts {
    /// The words of these texts are indexed, for all puts up to this number.
    Known(Arc<dyn TextSource>, i64),
    /// The index has words of texts that are unknown to this process.
    Unknown,
    /// No words are indexed.
    None,
}

/// Reads the rows of records.
pub(crate) struct RecordReader<'a> {
    pub(crate) shelf: &'a ShelfProperties,
    pub(crate) texts: IndexedTexts,
    pub(crate) message: &'a mut dyn FnMut(&Record<'_>) -> Option<String>,
    pub(crate) effects: Effects,
    pub(crate) words: RecordWords,
    pub(crate) found: WeighedWords,
}

impl RecordReader<'_> {
    /// Reads a row with the columns [`COLUMNS`](super::steps::COLUMNS), and adds the faults of the
    /// row.
    pub(crate) fn read(
        &mut self,
        row: &Row,
        body: &[u8],
        faults: &mut Vec<DatabaseFault>,
    ) -> ExpectedRecord {
        let id: &[u8] = row.get(4);
        let record = match Record::new(body).and_then(|record| record.check().map(|()| record)) {
            Ok(record) => record,
            Err(error) => {
                faults.push(DatabaseFault::of(FaultSort::Unreadable, id, error.to_string()));
                return damaged(row);
            }
        };
        if let Some(what) = (self.message)(&record) {
            faults.push(DatabaseFault::of(FaultSort::Message, id, what));
            return damaged(row);
        }
        let key = IndexKey::of(&record);
        let terms = self.shelf.terms.of(&record);
        let columns = [
            ("time", row.get::<_, i64>(1) == key.time),
            ("expires", row.get::<_, Option<i64>>(2) == record.expires().map(to_db)),
            ("kind", row.get::<_, i32>(3) == record.kind().cast_signed()),
            ("id", id == key.id),
            ("author", row.get::<_, Option<&[u8]>>(5) == record.author().map(|author| &author[..])),
            ("terms", row.try_get::<_, Vec<i64>>(6).is_ok_and(|found| found == terms)),
        ];
        let wrong: Vec<&str> =
            columns.iter().filter(|(_, is_same)| !is_same).map(|(name, _)| *name).collect();
        let has_wrong_columns = !wrong.is_empty();
        if has_wrong_columns {
            let what = format!("differs from the record: {}", wrong.join(", "));
            faults.push(DatabaseFault::of(FaultSort::Column, &key.id, what));
        }
        let stored = (row.get(1), id.to_vec());
        let expected = self.derive(&record, row.get(0), (key, terms));
        ExpectedRecord { stored, has_wrong_columns, ..expected }
    }

    /// Derives the rows that an undamaged record must have.
    fn derive(
        &mut self,
        record: &Record<'_>,
        seq: i64,
        (key, terms): (IndexKey, Vec<i64>),
    ) -> ExpectedRecord {
        let hasher = &self.shelf.terms;
        let place = record.author().map_or(&key.id[..], |author| &author[..]).to_vec();
        let listed = record.labels().filter(|(name, _)| self.shelf.listed_labels.contains(name));
        let mut listed: Vec<i64> =
            listed.filter_map(|(name, value)| hasher.label(name, value, None)).collect();
        listed.sort_unstable();
        listed.dedup();
        let forbids = if self.shelf.rules.forbids(record.kind()) {
            hasher.forbids(record)
        } else {
            Vec::new()
        };
        self.effects.clear();
        self.shelf.rules.effects(record, &mut self.effects);
        self.effects.normalise();
        let slot = self.effects.slot.as_ref().and_then(|slot| SlotQuery::all(slot, hasher, 1));
        let prohibition = |there_is: hark_archive::effects::Prohibition<'_>| {
            let mut query = there_is.query();
            query.normalise();
            (hasher.forbidding(&there_is), query)
        };
        let prohibitions = self.effects.forbidding().map(prohibition).collect();
        let words = match self.texts.clone() {
            IndexedTexts::Known(texts, newest) if seq <= newest => {
                Some(self.words_of(record, &*texts))
            }
            IndexedTexts::Known(..) | IndexedTexts::None => Some(Vec::new()),
            IndexedTexts::Unknown => None,
        };
        ExpectedRecord {
            seq,
            key,
            kind: record.kind().cast_signed(),
            expires: record.expires().map(to_db),
            author: record.author().map(|author| author.to_vec()),
            stored: (key.time, key.id.to_vec()),
            has_wrong_columns: false,
            place,
            terms,
            is_whole: true,
            listed,
            forbids,
            slot: slot.and_then(|slots| slots.first().copied()),
            prohibitions,
            words,
        }
    }

    fn words_of(&mut self, record: &Record<'_>, texts: &dyn TextSource) -> Vec<(Vec<u8>, u8)> {
        if !texts.has_texts(record.kind()) {
            return Vec::new();
        }
        let (words, found, terms) = (&mut self.words, &mut self.found, &self.shelf.terms);
        words.clear();
        texts.texts(record, &mut |part, text| words.add(part, text));
        words.weigh(|word| terms.word(word), found);
        found.iter().map(|word| (words.text(word).as_bytes().to_vec(), word.class)).collect()
    }
}

/// Returns a damaged record, with the values of its columns.
fn damaged(row: &Row) -> ExpectedRecord {
    let id: &[u8] = row.get(4);
    let author = row.get::<_, Option<&[u8]>>(5).map(<[u8]>::to_vec);
    let place = author.clone().unwrap_or_else(|| id.to_vec());
    ExpectedRecord {
        seq: row.get(0),
        key: IndexKey { time: row.get(1), id: fetch::id(id) },
        kind: row.get(3),
        expires: row.get(2),
        author,
        stored: (row.get(1), id.to_vec()),
        has_wrong_columns: false,
        place,
        terms: row.try_get(6).unwrap_or_default(),
        is_whole: false,
        listed: Vec::new(),
        forbids: Vec::new(),
        slot: None,
        prohibitions: Vec::new(),
        words: None,
    }
}
