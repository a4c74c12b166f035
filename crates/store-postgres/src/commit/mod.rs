//! Commits a batch in one transaction. The whole database commits one batch at a time.
//!
//! 1. One round trip begins the transaction, locks the shelf's row in `state`, and fetches every
//!    stored record that the rules of this batch may affect.
//! 2. The rules are applied here, in order, to the fetched records and the batch's own records
//!    ([`play`]).
//! 3. The resulting deletions and insertions are executed, counted and made durable.
//!
//! So the numbers of puts follow the order of commits without gaps, and rules hold when several
//! nodes write.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hark_archive::effects::Effects;
use hark_archive::store::NumberedRecord;
use hark_archive::{CommitError, CommitResult, Outcome, Record, TextSource, Write};
use tokio_postgres::types::ToSql;

use crate::copy::CopyRows;
use crate::label_values::ValueTally;
use crate::layout::StatementForm;
use crate::line::TimelinePosition;
use crate::parts::Parts;
use crate::pool::Backoff;
use crate::search::windows::id_head;
use crate::session::{DatabaseSession, StatementError};
use crate::state::PostgresState;
use crate::time::{IndexKey, from_db, to_db};
use crate::words::mark::mark;
use crate::words::rows::WordRows;
use crate::{line, listen, others};
use fetch::{FetchedState, RuleLookups};
use play::BatchReplay;

mod fetch;
pub(crate) mod placed;
mod play;

/// Maximum number of other processes' records that are delivered with a batch.
const NEWS_MAX: i64 = 20_000;
/// Approximate size in bytes of the pieces in which rows of records are sent.
const PIECE_BYTES: usize = 128 << 10;

/// A record and the effects that its rules require.
struct PreparedPut<'a> {
    record: Record<'a>,
    key: IndexKey,
    effects: Effects,
}

/// The state of the thread that commits.
#[derive(Default)]
pub(crate) struct CommitterState {
    session: Option<DatabaseSession>,
    backoff: Backoff,
}

/// A durable batch, and the earlier puts of other processes that were delivered with the batch.
pub(crate) struct CommittedBatch {
    pub(crate) committed: CommitResult,
    /// The position before the batch. `seq` is the number of the batch's last put.
    pub(crate) position: TimelinePosition,
    pub(crate) seq: i64,
    /// Keys of the records that the batch stored, with the records' numbers.
    pub(crate) kept: Vec<(IndexKey, i64)>,
    /// Keys of the records that the batch deleted.
    pub(crate) deleted: Vec<IndexKey>,
}

impl CommitterState {
    /// Commits a batch. Reconnects if the connection was lost while idle.
    pub(crate) fn commit(
        &mut self,
        inner: &PostgresState,
        writes: &[Write],
    ) -> Result<CommittedBatch, CommitError> {
        let puts = read(inner, writes)?;
        let mut fresh = false;
        loop {
            if self.session.as_ref().is_none_or(DatabaseSession::is_closed) {
                let opened = self.backoff.open(inner.pool.door());
                let mut session = opened.map_err(|fault| away(&fault))?;
                let rows = session.query_once("SELECT pg_backend_pid()", &[]);
                let rows = rows.map_err(|fault| away(&fault))?;
                let process = rows.first().map_or(0, |row| row.get(0));
                inner.writer_process.store(process, Ordering::Relaxed);
                if session.layout().is_distributed() {
                    placed::begin(&mut session).map_err(|fault| away(&fault))?;
                }
                others::announce(&mut session).map_err(|fault| away(&fault))?;
                line::settle(inner, &mut session).map_err(|fault| away(&fault))?;
                self.session = Some(session);
                fresh = true;
            }
            let Some(session) = self.session.as_mut() else { continue };
            let mut begun = false;
            let attempted = placed::alone(session, |session| {
                attempt(inner, session, writes, &puts, &mut begun)
            });
            match attempted {
                Ok(Some(carried)) => return Ok(carried),
                // A new session determines the database's current timeline.
                Ok(None) if !fresh => self.session = None,
                Ok(None) => {
                    self.session = None;
                    return Err(away(&StatementError::Away(
                        "it is behind what was seen of it".into(),
                    )));
                }
                Err(fault) => {
                    if fault.is_away() {
                        self.session = None;
                    } else if let Err(fault) = session.batch("ROLLBACK") {
                        tracing::debug!(%fault, "a transaction was given up with its connection");
                        self.session = None;
                    }
                    if fault.is_away() && !begun && !fresh {
                        continue;
                    }
                    return Err(away(&fault));
                }
            }
        }
    }
}

fn away(fault: &StatementError) -> CommitError {
    CommitError::Unavailable(fault.to_string())
}

/// Reads the records of puts, and determines the effects that their rules require.
fn read<'a>(
    inner: &PostgresState,
    writes: &'a [Write],
) -> Result<Vec<Option<PreparedPut<'a>>>, CommitError> {
    let put = |(index, write): (usize, &'a Write)| {
        let Write::Put(bytes) = write else { return Ok(None) };
        let record = Record::new(bytes)
            .and_then(|record| record.check().map(|()| record))
            .map_err(|source| CommitError::Record { index, source })?;
        let mut effects = Effects::default();
        inner.rules.effects(&record, &mut effects);
        effects.normalise();
        let key = IndexKey::of(&record);
        Ok(Some(PreparedPut { record, key, effects }))
    };
    writes.iter().enumerate().map(put).collect()
}

fn attempt(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    writes: &[Write],
    puts: &[Option<PreparedPut<'_>>],
    begun: &mut bool,
) -> Result<Option<CommittedBatch>, StatementError> {
    // The other writes are left for the next step, so that the look-ups of this step are bounded.
    let fit = RuleLookups::of(inner).fit(puts, &inner.terms);
    let fetched = FetchedState::get(inner, session, &puts[..fit])?;
    *begun = true;
    let (seq, records) = (fetched.seq, fetched.records);
    if fetched.line != inner.current.now().line {
        line::follow(inner, session)?;
    }
    let position = inner.current.now();
    if fetched.line != position.line || seq < position.seen {
        return Ok(None);
    }
    let mut parts = inner.parts();
    if parts.version != fetched.parts {
        parts = inner.set_parts(Parts::read(session, fetched.parts)?);
    }
    let before = news(inner, position, session, seq)?;
    let (texts, mut words_seq) = (inner.indexes(fetched.texts), fetched.words_seq);
    // Words are indexed in the order of puts. If an earlier put is not indexed yet, this batch is
    // not indexed.
    let texts = texts.filter(|_| words_seq == seq);
    let mut play = BatchReplay::new(inner, session, fetched, position);
    let mut committed = CommitResult {
        outcomes: Vec::with_capacity(writes.len()),
        before,
        ..CommitResult::default()
    };
    for (at, (write, put)) in writes.iter().zip(puts).enumerate() {
        if at == fit {
            // The first write of the next step. It has deleted nothing yet.
            committed.outcomes.push(Outcome::Erased(0));
            committed.unfinished = true;
            break;
        }
        committed.outcomes.push(match (write, put) {
            (Write::Erase(query), _) => Outcome::Erased(play.erase(query)?),
            (_, Some(put)) => play.put(put)?,
            (Write::Put(_), None) => Outcome::Duplicate,
        });
        committed.erased.extend(play.erased().map(|id| (at, id)));
        if play.is_unfinished() {
            committed.unfinished = true;
            break;
        }
    }
    let (kept, deleted, last) = play.end();
    if kept.is_empty() && deleted.is_empty() {
        session.batch("COMMIT")?;
        return Ok(Some(CommittedBatch { committed, position, seq, kept: Vec::new(), deleted }));
    }
    let times = kept.iter().map(|(_, put)| put.record.time());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.as_nanos() / (1_000_000_000 / u128::from(inner.units_per_s.max(1)));
    let missing = parts.missing(times, u64::try_from(now).unwrap_or(u64::MAX), &inner.grid);
    // Without its part, a record is kept with those outside of all parts. A later commit moves the
    // record.
    if !missing.is_empty() && Parts::make(session, &missing, &inner.grid)? {
        inner.set_parts(Parts::read(session, parts.version + 1)?);
    }
    let gone = delete(inner, session, &deleted)?;
    committed.bytes = insert(inner, session, &kept)?;
    if let Some(texts) = texts {
        committed.bytes += insert_words(inner, session, texts, &kept)?;
        words_seq = last;
    }
    let records = records.saturating_add_unsigned(kept.len() as u64) - gone;
    let said = i32::from(!deleted.is_empty());
    let advance: [&(dyn ToSql + Sync); 4] = [&last, &records, &said, &words_seq];
    session.query(StatementForm::Advance, &advance)?;
    session.batch("COMMIT")?;
    let kept = kept.iter().map(|(seq, put)| (put.key, *seq)).collect();
    Ok(Some(CommittedBatch { committed, position, seq: last, kept, deleted }))
}

/// Reads the puts up to number `seq` that this process has not delivered yet.
fn news(
    inner: &PostgresState,
    position: TimelinePosition,
    session: &mut DatabaseSession,
    seq: i64,
) -> Result<Vec<NumberedRecord>, StatementError> {
    let seen = position.seen;
    if seen >= seq {
        return Ok(Vec::new());
    }
    if seq - seen > NEWS_MAX {
        let words = "too much was written by others meanwhile; it is sent to subscribers first";
        return Err(StatementError::Refused(words.into()));
    }
    let news = listen::read(session, seen, seq, NEWS_MAX)?;
    inner.note_news(position, &news.puts);
    Ok(listen::records(news, position).collect())
}

fn delete(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    deleted: &[IndexKey],
) -> Result<i64, StatementError> {
    if deleted.is_empty() {
        return Ok(0);
    }
    if session.layout().is_distributed() {
        return placed::delete(inner, session, deleted);
    }
    let times: Vec<i64> = deleted.iter().map(|key| key.time).collect();
    let ids: Vec<&[u8]> = deleted.iter().map(|key| &key.id[..]).collect();
    let lists = !inner.nature.listed_labels.is_empty();
    let delete = if lists { StatementForm::DeleteListed } else { StatementForm::Delete };
    let marks: Vec<i64> = deleted.iter().map(|key| mark(&key.id)).collect();
    let answers = session
        .pipeline(&[(delete, &[&times, &ids, &marks]), (StatementForm::DeleteForbids, &[&ids])])?;
    Ok(answers[0].first().map_or(0, |row| row.get(0)))
}

fn insert(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    kept: &[(i64, &PreparedPut<'_>)],
) -> Result<u64, StatementError> {
    if kept.is_empty() {
        return Ok(0);
    }
    let is_distributed = session.layout().is_distributed();
    let mut making = RowEncoder::new(inner, kept, is_distributed);
    let mut tags = None;
    let records = std::iter::from_fn(|| {
        let piece = making.piece();
        if piece.is_none() {
            // The tag rows are encoded while the database is still inserting records.
            tags = making.tag_rows();
        }
        piece
    });
    session.copy(StatementForm::CopyRecords, records)?;
    if let Some(tags) = tags {
        session.copy(StatementForm::CopyTags, std::iter::once(tags))?;
    }
    if is_distributed {
        let places = making.place_rows();
        session.copy(StatementForm::CopyPlaces, std::iter::once(places))?;
    }
    making.values.write(session)?;
    let ForbidColumns { keys, times, ids, places } = &making.forbidding;
    let mut columns: Vec<&(dyn ToSql + Sync)> = vec![keys, times, ids];
    if is_distributed {
        columns.push(places);
    }
    if !keys.is_empty() {
        session.query(StatementForm::AddForbids, &columns)?;
    }
    Ok(making.bytes as u64)
}

/// Inserts the rows of records' words, and returns their bytes.
fn insert_words(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    texts: &Arc<dyn TextSource>,
    kept: &[(i64, &PreparedPut<'_>)],
) -> Result<u64, StatementError> {
    let mut rows = WordRows::new(texts, &inner.terms);
    for (_, put) in kept {
        rows.add(&put.record, &put.key);
        if rows.are_many() {
            rows.write(session)?;
        }
    }
    rows.write(session)?;
    Ok(rows.bytes())
}

/// Encodes the rows of records, of their tags, and of the table `forbid`.
struct RowEncoder<'a> {
    inner: &'a PostgresState,
    kept: std::slice::Iter<'a, (i64, &'a PreparedPut<'a>)>,
    records: CopyRows,
    /// Whether rows also have the places of their records (distributed tables).
    is_distributed: bool,
    /// The id and the place of each record.
    places: Vec<(&'a [u8], &'a [u8])>,
    tags: Vec<(i64, i32, &'a IndexKey, &'a [u8])>,
    forbidding: ForbidColumns<'a>,
    values: ValueTally,
    ended: bool,
    /// Bytes encoded so far.
    bytes: usize,
}

/// The columns of the table `forbid`.
#[derive(Default)]
struct ForbidColumns<'a> {
    keys: Vec<i64>,
    times: Vec<i64>,
    ids: Vec<&'a [u8]>,
    places: Vec<&'a [u8]>,
}

impl<'a> RowEncoder<'a> {
    fn new(
        inner: &'a PostgresState,
        kept: &'a [(i64, &'a PreparedPut<'a>)],
        is_distributed: bool,
    ) -> Self {
        Self {
            is_distributed,
            places: Vec::new(),
            inner,
            kept: kept.iter(),
            records: CopyRows::new(PIECE_BYTES),
            tags: Vec::with_capacity(kept.len() * 4),
            forbidding: ForbidColumns::default(),
            values: ValueTally::default(),
            ended: false,
            bytes: 0,
        }
    }

    /// Returns the next rows of records. `None` if no rows are left.
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
        let terms = self.inner.terms.of(record);
        let kind = record.kind().cast_signed();
        let place = record.author().map_or(&key.id[..], |author| &author[..]);
        if self.is_distributed {
            self.places.push((&key.id, place));
            rows.row(10);
            rows.bytes(place);
            rows.bigint(id_head(&key.id));
        } else {
            rows.row(8);
        }
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
        self.values.add(record, self.inner.nature.listed_labels, &self.inner.terms);
        self.tags.extend(terms.into_iter().map(|term| (term, kind, key, place)));
        if self.inner.rules.forbids(record.kind()) {
            for forbidding in self.inner.terms.forbids(record) {
                self.forbidding.keys.push(forbidding);
                self.forbidding.times.push(key.time);
                self.forbidding.ids.push(&key.id[..]);
                self.forbidding.places.push(place);
            }
        }
    }

    /// Returns the tag rows of all records in index order, so that each index page is visited once.
    fn tag_rows(&mut self) -> Option<Bytes> {
        if self.tags.is_empty() {
            return None;
        }
        self.tags.sort_unstable_by_key(|(term, kind, ..)| (*term, *kind));
        let mut rows = CopyRows::new(self.tags.len() * 74);
        for (term, kind, key, place) in &self.tags {
            rows.row(if self.is_distributed { 5 } else { 4 });
            rows.bigint(*term);
            rows.bigint(key.time);
            rows.int(*kind);
            rows.bytes(&key.id);
            if self.is_distributed {
                rows.bytes(place);
            }
        }
        rows.end();
        let rows = rows.take(0);
        self.bytes += rows.len();
        Some(rows)
    }

    /// Returns the rows of the places of all ids.
    fn place_rows(&mut self) -> Bytes {
        let mut rows = CopyRows::new(self.places.len() * 74);
        for (id, place) in &self.places {
            rows.row(2);
            rows.bytes(id);
            rows.bytes(place);
        }
        rows.end();
        let rows = rows.take(0);
        self.bytes += rows.len();
        rows
    }
}

/// Returns a key's time in the network's units.
fn time(key: &IndexKey) -> u64 {
    from_db(key.time)
}
