//! The state of the database's index of words.

use hark_archive::Query;
use tokio_postgres::Row;

use crate::error::StatementError;
use crate::plain::PlainStatement;
use crate::session::DatabaseSession;

/// The progress of indexing words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordProgress {
    /// The words of all puts up to this number are indexed.
    pub indexed: u64,
    /// The number of the newest put.
    pub newest: u64,
}

/// The state of the index of words, from the table `state`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordState {
    pub(crate) texts: Option<i64>,
    pub(crate) words_seq: i64,
    pub(crate) seq: i64,
}

impl WordState {
    pub(crate) fn read(session: &mut DatabaseSession) -> Result<Self, StatementError> {
        Self::of(&session.query(PlainStatement::WordState, &[])?)
    }

    /// Whether the words of a query's texts are indexed for all puts up to number `seq`.
    pub(crate) fn has(&self, query: &Query, seq: i64) -> bool {
        let texts = query.words.as_ref().map(|words| words.texts().fingerprint());
        texts.is_some_and(|texts| self.texts == Some(texts.cast_signed()))
            && self.words_seq >= seq.min(self.seq)
    }

    /// Reads the result of [`PlainStatement::WordState`].
    pub(crate) fn of(rows: &[Row]) -> Result<Self, StatementError> {
        let Some(row) = rows.first() else {
            return Err(StatementError::Refused("its table `state` is not whole".into()));
        };
        Ok(Self { texts: row.get(0), words_seq: row.get(1), seq: row.get(2) })
    }

    pub(crate) fn progress(&self) -> WordProgress {
        let number = |seq: i64| seq.max(0).cast_unsigned();
        WordProgress { indexed: number(self.words_seq), newest: number(self.seq) }
    }
}
