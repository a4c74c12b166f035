//! Compares the rows of words with the records.

use std::collections::HashMap;

use crate::check::{DatabaseFault, ExpectedRecord, FaultSort};
use crate::copy::CopyRows;
use crate::error::StatementError;
use crate::plain::statement::PlainStatement;
use crate::plain::word_sql::DELETE_WORDS;
use crate::session::DatabaseSession;
use crate::words::mark::mark;

/// Maximum number of words that one statement looks up.
const PROBES_MAX: usize = 5_000;
/// The class of a word whose class is unknown.
const NO_CLASS: i64 = -1;

/// The lists of words that records have, by the indices of the records.
type RowWords = HashMap<usize, Vec<Vec<Vec<u8>>>>;

/// The check of the rows of words.
#[derive(Default)]
pub(super) struct WordCheck {
    word: u64,
    worded: u64,
}

/// A row of a word that must exist.
struct WordProbe {
    /// The index of the record.
    at: usize,
    word: Vec<u8>,
    class: i64,
}

impl WordCheck {
    /// The numbers of rows that the records have in the tables `word` and `worded`.
    pub(super) fn rows(&self) -> (u64, u64) {
        (self.word, self.worded)
    }

    /// Returns the faults of the rows of these records, each with the index of its record.
    pub(super) fn compare(
        &mut self,
        session: &mut DatabaseSession,
        records: &[ExpectedRecord],
    ) -> Result<Vec<(usize, DatabaseFault)>, StatementError> {
        let (mut faults, mut probes) = (Vec::new(), Vec::new());
        let mut lists = self.lists(session, records)?;
        for (at, record) in records.iter().enumerate() {
            let lists = lists.remove(&at).unwrap_or_default();
            if let Some(what) = list_fault(record, &lists) {
                let sort = if lists.len() > 1 || record.words.as_ref().is_some_and(Vec::is_empty) {
                    FaultSort::WordOrphan
                } else {
                    FaultSort::WordMissing
                };
                faults.push((at, DatabaseFault::of(sort, &record.key.id, what)));
            }
            match &record.words {
                Some(words) => probes.extend(words.iter().map(|(word, class)| WordProbe {
                    at,
                    word: word.clone(),
                    class: i64::from(*class),
                })),
                None => probes.extend(lists.into_iter().flatten().map(|word| WordProbe {
                    at,
                    word,
                    class: NO_CLASS,
                })),
            }
        }
        for probes in probes.chunks(PROBES_MAX) {
            self.probe(session, records, probes, &mut faults)?;
        }
        Ok(faults)
    }

    /// Reads the lists of words of records, by the indices of the records.
    fn lists(
        &mut self,
        session: &mut DatabaseSession,
        records: &[ExpectedRecord],
    ) -> Result<RowWords, StatementError> {
        let times: Vec<i64> = records.iter().map(|record| record.key.time).collect();
        let marks: Vec<i64> = records.iter().map(|record| mark(&record.key.id)).collect();
        let kinds: Vec<i32> = records.iter().map(|record| record.kind).collect();
        let rows = session.query(PlainStatement::WordLists, &[&times, &marks, &kinds])?;
        self.worded += rows.len() as u64;
        let mut lists = RowWords::new();
        for row in &rows {
            lists.entry(row.get::<_, i64>(0) as usize - 1).or_default().push(row.get(1));
        }
        Ok(lists)
    }

    fn probe(
        &mut self,
        session: &mut DatabaseSession,
        records: &[ExpectedRecord],
        probes: &[WordProbe],
        faults: &mut Vec<(usize, DatabaseFault)>,
    ) -> Result<(), StatementError> {
        let of = |probe: &WordProbe| &records[probe.at];
        let words: Vec<&[u8]> = probes.iter().map(|probe| &probe.word[..]).collect();
        let kinds: Vec<i32> = probes.iter().map(|probe| of(probe).kind).collect();
        let times: Vec<i64> = probes.iter().map(|probe| of(probe).key.time).collect();
        let marks: Vec<i64> = probes.iter().map(|probe| mark(&of(probe).key.id)).collect();
        let classes: Vec<i64> = probes.iter().map(|probe| probe.class).collect();
        let rows = session
            .query(PlainStatement::WordCounts, &[&words, &kinds, &times, &marks, &classes])?;
        self.word += (probes.len() - rows.len()) as u64;
        for row in &rows {
            let probe = &probes[row.get::<_, i64>(0) as usize - 1];
            let (count, word) = (row.get::<_, i64>(1), String::from_utf8_lossy(&probe.word));
            self.word += count.max(0).cast_unsigned();
            let (sort, what) = match count {
                0 => (FaultSort::WordMissing, format!("the row of the word `{word}` is missing")),
                1 => (
                    FaultSort::WordMissing,
                    format!("the row of the word `{word}` has another class"),
                ),
                _ => {
                    (FaultSort::WordOrphan, format!("there are {count} rows of the word `{word}`"))
                }
            };
            faults.push((probe.at, DatabaseFault::of(sort, &of(probe).key.id, what)));
        }
        Ok(())
    }
}

/// Rewrites the rows of words of these records. If the words of a record are unknown, its rows
/// stay.
pub(super) fn repair(
    session: &mut DatabaseSession,
    records: &[&ExpectedRecord],
) -> Result<(), StatementError> {
    let known: Vec<&ExpectedRecord> =
        records.iter().copied().filter(|record| record.words.is_some()).collect();
    if known.is_empty() {
        return Ok(());
    }
    let times: Vec<i64> = known.iter().map(|record| record.key.time).collect();
    let marks: Vec<i64> = known.iter().map(|record| mark(&record.key.id)).collect();
    let kinds: Vec<i32> = known.iter().map(|record| record.kind).collect();
    delete_of(session, &times, &marks, &kinds)?;
    let (mut rows, mut lists) = (CopyRows::new(0), CopyRows::new(0));
    let (mut words, mut word_kinds, mut word_times, mut word_marks) =
        (vec![], vec![], vec![], vec![]);
    for record in known {
        let Some(found) = record.words.as_deref().filter(|found| !found.is_empty()) else {
            continue;
        };
        let (time, mark, kind) = (record.key.time, mark(&record.key.id), record.kind);
        lists.row(4);
        lists.bigint(time);
        lists.bigint(mark);
        lists.int(kind);
        lists.byte_strings(found.iter().map(|(word, _)| &word[..]));
        for (word, class) in found {
            rows.row(4);
            rows.bigint(time);
            rows.bigint(mark | i64::from(*class));
            rows.int(kind);
            rows.bytes(word);
            words.push(&word[..]);
            word_kinds.push(kind);
            word_times.push(time);
            word_marks.push(mark);
        }
    }
    // Rows of these words that are in no list are deleted, too.
    let text = "DELETE FROM word w USING \
        unnest($1::bytea[], $2::int[], $3::bigint[], $4::bigint[]) AS v(word, kind, time, mark) \
        WHERE w.word = v.word AND w.kind = v.kind AND w.time = v.time AND w.mark >= v.mark \
        AND w.mark <= v.mark + 3";
    session.query_once(text, &[&words, &word_kinds, &word_times, &word_marks])?;
    lists.end();
    rows.end();
    session.copy(PlainStatement::CopyWorded, std::iter::once(lists.take(0)))?;
    session.copy(PlainStatement::CopyWords, std::iter::once(rows.take(0))).map(drop)
}

/// Deletes the lists of words with these times, marks and kinds, and the rows of these words.
pub(super) fn delete_of(
    session: &mut DatabaseSession,
    times: &[i64],
    marks: &[i64],
    kinds: &[i32],
) -> Result<(), StatementError> {
    let text = format!(
        "WITH gone AS (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[]) \
         AS v(time, mark, kind)), {DELETE_WORDS} SELECT 1"
    );
    session.query_once(&text, &[&times, &marks, &kinds]).map(drop)
}

/// Returns the fault of the lists of words that a record has; `None` if there is none.
fn list_fault(record: &ExpectedRecord, lists: &[Vec<Vec<u8>>]) -> Option<&'static str> {
    if lists.len() > 1 {
        return Some("there are several lists of the record's words");
    }
    let expected = record.words.as_ref()?;
    let Some(list) = lists.first() else {
        return (!expected.is_empty()).then_some("the list of the record's words is missing");
    };
    if expected.is_empty() {
        return Some("there is a list of words, and no words of the record are indexed");
    }
    let mut expected: Vec<&[u8]> = expected.iter().map(|(word, _)| &word[..]).collect();
    let mut found: Vec<&[u8]> = list.iter().map(|word| &word[..]).collect();
    expected.sort_unstable();
    found.sort_unstable();
    (expected != found).then_some("the list of the record's words differs from the record")
}
