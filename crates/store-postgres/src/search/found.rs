//! The query of a search, and the keys and records that the search has found.

use std::collections::VecDeque;

use hark_archive::Record;
use hark_archive::query::LazyWords;
use hark_archive::query::plan::Set;

use super::asked::SqlQuery;
use crate::error::StatementError;
use crate::time::IndexKey;

/// Maximum number of records that are fetched at a time.
pub(crate) const FETCH_MAX: usize = 500;
/// Minimum of [`FinderState::fetch_max`], however long records are.
pub(crate) const FETCH_MIN: usize = 16;
/// Maximum number of parts whose own tables a fetch reads. Records in more parts are fetched from
/// the parent table.
pub(crate) const FETCH_PARTS_MAX: usize = 4;
/// Maximum number of bytes of a page's records. A single record may be longer.
pub(crate) const PAGE_BYTES_MAX: usize = 2 << 20;
/// Maximum number of bytes of the records that a question by ids reads at once.
pub(crate) const IDS_BYTES_MAX: usize = 4 << 20;
/// Maximum number of records whose words are read at a time. In a ranked search, the maximum is
/// between this number and [`FETCH_MAX`].
const WORDS_READ_MAX: usize = 64;
/// Expected size of a record in bytes, before the search has found records.
const RECORD_BYTES: usize = 512;
/// Minimum number of records that are read ahead for a caller that wants few more bytes.
const BYTES_READ_MIN: usize = 8;

/// The query of a search, and the keys and records that the search has found.
pub(crate) struct FinderState {
    pub(crate) asked: SqlQuery,
    /// The next keys, in order, whose records are not fetched yet.
    pub(crate) keys: VecDeque<IndexKey>,
    /// Fetched records, in order. They come before the records of `keys`.
    pub(crate) bodies: VecDeque<Box<[u8]>>,
    /// Whether all keys are found.
    pub(crate) is_over: bool,
    /// Maximum number of records that are fetched at a time. It is lowered if records turn out to
    /// be long.
    pub(crate) fetch_max: usize,
    /// Maximum number of records of a page, that is, of records that a slice delivers. It is
    /// lowered if records turn out to be long.
    pub(crate) page_max: usize,
    pub(crate) delivered: usize,
    /// Number of keys whose records were fetched, and number of these records that match the query.
    pub(crate) fetched: usize,
    pub(crate) matched: usize,
    /// Total size of the matching records, in bytes.
    matched_bytes: usize,
    pub(crate) visited: u64,
    pub(crate) driver: Option<Set>,
}

impl FinderState {
    pub(crate) fn new(asked: SqlQuery) -> Self {
        Self {
            asked,
            keys: VecDeque::new(),
            bodies: VecDeque::new(),
            is_over: false,
            fetch_max: FETCH_MAX,
            page_max: usize::MAX,
            delivered: 0,
            fetched: 0,
            matched: 0,
            matched_bytes: 0,
            visited: 0,
            driver: None,
        }
    }

    /// Returns how many records are still wanted, plus one, which shows whether there are more.
    pub(crate) fn wanted(&self) -> usize {
        (self.asked.query.limit - self.delivered)
            .saturating_add(1)
            .saturating_sub(self.bodies.len())
            .min(self.fitting())
    }

    /// Returns the expected number of records that the caller uses until it has enough bytes. The
    /// number is a fourth too high, so that one read mostly suffices.
    fn fitting(&self) -> usize {
        if self.asked.query.bytes == usize::MAX {
            return usize::MAX;
        }
        let left = self.asked.query.bytes.saturating_sub(self.matched_bytes);
        let each = self.matched_bytes.checked_div(self.matched).unwrap_or(RECORD_BYTES).max(1);
        // The caller may count fewer bytes for each record than are stored.
        (left / each).saturating_mul(5) / 4 + BYTES_READ_MIN.max(self.matched / 8)
    }

    /// Returns how many keys are needed for the wanted number of records, if the share of matches
    /// stays the same.
    pub(crate) fn reach(&self) -> usize {
        let reach = self.wanted().saturating_mul(self.fetched + 1) / (self.matched + 1);
        if self.asked.rank.is_some() {
            // A ranked search has no limit. It ends when no later record can be better than the
            // best records so far.
            let best = self.asked.best.saturating_add(self.fetched);
            reach.min(best.clamp(WORDS_READ_MAX, FETCH_MAX))
        } else if self.asked.query.words.is_some() {
            reach.min(WORDS_READ_MAX)
        } else {
            reach
        }
    }

    /// Removes the first `count` keys, and adds those of their records that match.
    pub(crate) fn add_fetched(&mut self, count: usize, matching: Vec<Box<[u8]>>) {
        self.fetched += count;
        self.add_matching(matching);
        self.keys.drain(..count);
    }

    /// Adds the matching records of a page, or ends the search if no page is left.
    pub(crate) fn add_page(&mut self, matching: Option<Vec<Box<[u8]>>>) {
        let Some(matching) = matching else {
            self.is_over = true;
            return;
        };
        self.add_matching(matching);
    }

    fn add_matching(&mut self, matching: Vec<Box<[u8]>>) {
        self.matched += matching.len();
        self.matched_bytes += matching.iter().map(|body| body.len()).sum::<usize>();
        self.bodies.extend(matching);
    }

    /// Returns how many of the next records fit into `bytes_max`, and their bytes.
    pub(crate) fn first(&self, bytes_max: usize) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for body in &self.bodies {
            if bytes + body.len() > bytes_max {
                break;
            }
            (count, bytes) = (count + 1, bytes + body.len());
        }
        (count, bytes)
    }
}

/// Reads the records of `count` rows, or of fewer rows if these records are too long to be read at
/// once. `read` receives a number of rows and the maximum number of bytes, which does not apply to
/// a single row. `read` returns `None` if the records are longer. Returns the number of rows that
/// were read.
pub(crate) fn read_fitting<T>(
    mut count: usize,
    mut read: impl FnMut(usize, usize) -> Result<Option<T>, StatementError>,
) -> Result<(usize, T), StatementError> {
    loop {
        let bytes_max = if count <= 1 { usize::MAX } else { PAGE_BYTES_MAX };
        if let Some(records) = read(count, bytes_max)? {
            return Ok((count, records));
        }
        count = (count / 4).max(1);
    }
}

/// Returns the records that match the query. For a ranked search, the words are not compared. Adds
/// the cost of comparing words to `visited`, as a number of rows.
pub(crate) fn matching<'a>(
    asked: &SqlQuery,
    bodies: impl Iterator<Item = &'a [u8]>,
    visited: &mut u64,
) -> Result<Vec<Box<[u8]>>, StatementError> {
    let mut found = Vec::new();
    for body in bodies {
        let record = Record::new(body)
            .map_err(|error| StatementError::Refused(format!("a record is damaged: {error}")))?;
        if !asked.plain.matches(&record) {
            continue;
        }
        if let Some(words) = asked.query.words.as_ref().filter(|_| asked.rank.is_none()) {
            *visited += words.cost(&record);
            if !words.matches(&record, &LazyWords::default()) {
                continue;
            }
        }
        found.push(body.into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_rows_are_read_until_their_records_fit_and_one_row_always_fits() {
        for (count, fit, tried) in [
            (500, 500, &[500][..]),
            (500, 499, &[500, 125]),
            (500, 8, &[500, 125, 31, 7]),
            (3, 0, &[3, 1]),
            (1, 0, &[1]),
            (0, 0, &[0]),
        ] {
            let mut counts = Vec::new();
            let read = read_fitting(count, |count, bytes_max| {
                counts.push(count);
                Ok((count <= fit || bytes_max == usize::MAX).then_some("records"))
            });
            assert_eq!(read.expect("is read"), (*tried.last().expect("one"), "records"));
            assert_eq!(counts, tried);
        }
        let failed = read_fitting::<()>(9, |_, _| Err(StatementError::Shared));
        assert!(matches!(failed, Err(StatementError::Shared)));
    }
}
