//! Finds out which words of a query are indexed, and which of these drive or restrict the search.

use hark_archive::query::plan::Set;
use tokio_postgres::types::ToSql;

use super::statement::PlainStatement;
use super::word_walk::WordWalk;
use crate::error::StatementError;
use crate::search::SqlQuery;
use crate::session::{DatabaseSession, StatementCall};
use crate::words::state::WordState;

/// Maximum number of other words whose classes are looked up for each row.
const CUTS_MAX: usize = 3;
/// Maximum number of words that may complete the beginning of a word. A beginning with more
/// completions does not drive the search.
const COMPLETED_MAX: i64 = 64;
/// If another condition drives the search: maximum number of words that are compared before a
/// record is read.
const PROBES_MAX: usize = 4;

/// The indexed words of a query. Each is stored with its index among the needed words.
#[derive(Debug, Default)]
pub(super) struct IndexedWords {
    /// Words, and beginnings of words with all their completions.
    pub(super) sets: Vec<(usize, Vec<Vec<u8>>)>,
    /// Complete words only, without beginnings.
    whole: Vec<(usize, Vec<u8>)>,
}

impl IndexedWords {
    /// Finds out which words of the query are indexed. Returns `None` if the database does not have
    /// the words of all records.
    pub(super) fn of(
        asked: &SqlQuery,
        session: &mut DatabaseSession,
        visited: &mut u64,
    ) -> Result<Option<Self>, StatementError> {
        let Some(words) = &asked.query.words else { return Ok(None) };
        let beginnings = words.needed().iter().enumerate().filter(|(_, one)| one.is_prefix);
        let beginnings: Vec<(usize, &[u8], Vec<u8>)> = beginnings
            .map(|(at, one)| (at, one.word.as_bytes(), behind_all(one.word.as_bytes())))
            .collect();
        let more = COMPLETED_MAX + 1;
        let given: Vec<[&(dyn ToSql + Sync); 3]> =
            beginnings.iter().map(|(_, first, end)| [first as _, end as _, &more as _]).collect();
        let words_from = given.iter().map(|given| (PlainStatement::WordsFrom.into(), &given[..]));
        // If the index was complete before and after the read, it was not cleared in between, so
        // the read found all words.
        let mut calls: Vec<StatementCall<'_>> = vec![(PlainStatement::WordState.into(), &[])];
        calls.extend(words_from);
        calls.push((PlainStatement::WordState.into(), &[]));
        let mut answers = session.pipeline(&calls)?;
        let after = answers.pop().unwrap_or_default();
        let mut answers = answers.into_iter();
        for state in [answers.next().unwrap_or_default(), after] {
            if !WordState::of(&state)?.has(&asked.query, asked.seq) {
                return Ok(None);
            }
        }
        let mut found = Self::default();
        for (at, one) in words.needed().iter().enumerate().filter(|(_, one)| !one.is_prefix) {
            let word = one.word.as_bytes().to_vec();
            found.whole.push((at, word.clone()));
            found.sets.push((at, vec![word]));
        }
        for ((at, ..), rows) in beginnings.iter().zip(answers) {
            *visited += rows.len() as u64 / 4;
            if rows.len() as u64 <= COMPLETED_MAX.unsigned_abs() {
                found.sets.push((*at, rows.iter().map(|row| row.get(0)).collect()));
            }
        }
        Ok(Some(found))
    }

    /// If no word drives the search, returns the words that are compared before a record is read.
    pub(super) fn probes(&self) -> Vec<Vec<u8>> {
        self.whole.iter().take(PROBES_MAX).map(|(_, word)| word.clone()).collect()
    }

    /// Returns a walk along a word's ranges.
    pub(super) fn walk(&self, at: usize, kinds: &[i32], asked: &SqlQuery) -> Option<WordWalk> {
        let words = self.sets.iter().find(|(set, _)| *set == at).map(|(_, words)| words)?;
        let needed = asked.query.words.as_ref().map_or(&[][..], |words| words.needed());
        let others = self.whole.iter().filter(|(other, _)| *other != at).take(CUTS_MAX);
        let (mut cuts, mut terms) = (Vec::new(), Vec::new());
        for (other, word) in others {
            cuts.push(word.clone());
            terms.push(needed.get(*other).map(|one| one.term));
        }
        // The class of a completion is not the class of a needed word.
        terms.push(needed.get(at).filter(|one| !one.is_prefix).map(|one| one.term));
        Some(WordWalk::new(asked, Set::Word(at), words, kinds, (cuts, terms)))
    }
}

/// Returns the end of the range of all words that have this beginning.
fn behind_all(beginning: &[u8]) -> Vec<u8> {
    let mut end = beginning.to_vec();
    // The sum cannot overflow, because UTF-8 has no byte 255.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
