//! The steps of a commit of distributed tables.

use std::collections::{HashMap, HashSet};

use hark_archive::Record;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::places::{PlacedBody, all_places, bodies, id_head};
use super::statement::CitusStatement;
use crate::commit::fetch::{
    FetchedState, RuleKeys, RuleLookups, SizedKey, SlotQuery, id, slot_columns,
};
use crate::commit::rows::{RowEncoder, RowFormat, TagRow, place};
use crate::commit::{CommittedBatch, PreparedPut};
use crate::copy::CopyRows;
use crate::error::StatementError;
use crate::layout::{SharedStatement, lower_values};
use crate::properties::ShelfProperties;
use crate::session::{DatabaseSession, StatementCall};
use crate::statement::StatementForm;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// Maximum number of tags that one statement deletes. Each shard searches for all of these tags.
const TAGS_MAX: usize = 2_000;
/// Maximum number of a commit's queries that need a search. Queries for ids are included.
const SEARCHES_MAX: usize = 16;

/// The look-ups and searches that answer the queries of rules. Queries for ids need a search.
pub(super) const LOOKUPS: RuleLookups =
    RuleLookups { slots_max: 1, by_id: false, searches_max: SEARCHES_MAX };

/// Prepares a session for commits. If the user has the privilege, first resolves the prepared
/// transactions that an earlier coordinator left on the workers. Otherwise the cluster itself
/// resolves these transactions a little later.
pub(super) fn prepare(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let allowed =
        "SELECT has_function_privilege('pg_catalog.recover_prepared_transactions()', 'execute')";
    if session.query_once(allowed, &[])?.first().is_some_and(|row| row.get(0)) {
        session.batch("SELECT pg_catalog.recover_prepared_transactions()")?;
    }
    Ok(())
}

/// Publishes the number of a durable batch for the questions of other processes, and notifies these
/// processes. Returns the hash of the nodes' addresses; see [`NODES`](super::sql::NODES).
///
/// The coordinator makes the batch's number visible before the workers have committed. So the
/// number is published after the transaction has ended on all workers. If publishing fails, the
/// batch must not be acknowledged: another process could answer a later query without the batch's
/// records.
pub(super) fn publish(
    session: &mut DatabaseSession,
    batch: &CommittedBatch,
) -> Result<Option<i64>, StatementError> {
    let has_deleted = !batch.deleted.is_empty();
    let rows = if batch.kept.is_empty() && !has_deleted {
        // Even a batch that changes nothing publishes its number: the process that stored these
        // records before may have ended without publishing the number.
        session.query(CitusStatement::Publish, &[&batch.seq])?
    } else {
        let values: [&(dyn ToSql + Sync); 2] = [&batch.seq, &i32::from(has_deleted)];
        session.query(CitusStatement::PublishTelling, &values)?
    };
    Ok(rows.first().map(|row| row.get(0)))
}

/// Begins the transaction, locks the shelf, and fetches the stored records that the rules may need.
pub(super) fn fetch(
    session: &mut DatabaseSession,
    puts: &[Option<PreparedPut<'_>>],
    terms: &DatabaseTermHasher,
) -> Result<FetchedState, StatementError> {
    let keys = RuleKeys::of(puts, LOOKUPS, terms);
    let (authors, kinds, _) = slot_columns(&keys.plain);
    // The authors of slots with a label are compared later, in `find_placed`.
    let (_, term_kinds, slot_terms) = slot_columns(&keys.termed);

    let known: [&(dyn ToSql + Sync); 1] = [&keys.ids];
    let forbids: [&(dyn ToSql + Sync); 1] = [&keys.forbidding];
    let slots: [&(dyn ToSql + Sync); 2] = [&authors, &kinds];
    let term_slots: [&(dyn ToSql + Sync); 2] = [&slot_terms, &term_kinds];
    let mut calls: Vec<StatementCall<'_>> = vec![
        (SharedStatement::Begin.into(), &[]),
        (CitusStatement::Enter.into(), &[]),
        (CitusStatement::Lock.into(), &[]),
        (CitusStatement::Known.into(), &known),
        (CitusStatement::Forbids.into(), &forbids),
    ];
    if !keys.plain.is_empty() {
        calls.push((CitusStatement::Slots.into(), &slots));
    }
    if !keys.termed.is_empty() {
        calls.push((CitusStatement::TermSlots.into(), &term_slots));
    }
    let mut answers = session.pipeline(&calls)?.into_iter().skip(2);
    let mut next = || answers.next().unwrap_or_default();
    let mut fetched = FetchedState::read(session, &next(), &next(), &keys.ids)?;
    forget_lost(&mut fetched, session, puts)?;
    fetched.slots = keys.empty_slots();
    let (forbids, slots) = (next(), if keys.plain.is_empty() { Vec::new() } else { next() });
    find_placed(&mut fetched, terms, session, (&forbids, &slots, &next()))?;
    Ok(fetched)
}

/// Removes from the known ids those without a stored record. If a lagging standby replaces a
/// worker, a record may be lost while other workers still have rows of this record.
fn forget_lost(
    fetched: &mut FetchedState,
    session: &mut DatabaseSession,
    puts: &[Option<PreparedPut<'_>>],
) -> Result<(), StatementError> {
    let known: Vec<_> =
        puts.iter().flatten().filter(|put| fetched.known.contains(&put.key.id)).collect();
    if known.is_empty() {
        return Ok(());
    }
    let places: Vec<&[u8]> = known.iter().map(|put| place(put)).collect();
    let heads: Vec<i64> = known.iter().map(|put| id_head(&put.key.id)).collect();
    let rows = session.query(CitusStatement::KnownRecords, &[&places, &heads])?;
    let stored: HashSet<[u8; 32]> = rows.iter().map(|row| id(row.get(0))).collect();
    fetched.has_leftovers = known.iter().any(|put| !stored.contains(&put.key.id));
    fetched.known.retain(|id| stored.contains(id));
    Ok(())
}

/// Adds the records that the statements for distributed tables have found. For slots without a
/// label, the rules need no other rows. Two sorts of records are still to be fetched by place: the
/// newest records that forbid others, and the records in slots with a label.
fn find_placed(
    fetched: &mut FetchedState,
    terms: &DatabaseTermHasher,
    session: &mut DatabaseSession,
    (forbids, slots, term_slots): (&[Row], &[Row], &[Row]),
) -> Result<(), StatementError> {
    for row in slots {
        let slot = SlotQuery { author: id(row.get(0)), kind: row.get(1), term: None };
        // The statement has returned records of all combinations of these authors and kinds.
        if let Some(held) = fetched.slots.get_mut(&slot) {
            held.push(SizedKey { key: IndexKey::read(row, 2), bytes: 0 });
        }
    }
    let placed = |row: &Row, at| (IndexKey { time: 0, id: id(row.get(at)) }, id(row.get(at + 1)));
    let forbidding = forbids.iter().map(|row| placed(row, 1));
    let mut keys: Vec<_> = forbidding.chain(term_slots.iter().map(|row| placed(row, 2))).collect();
    keys.sort_unstable_by_key(|(key, _)| key.id);
    keys.dedup();
    let bodies: HashMap<[u8; 32], PlacedBody> = bodies(session, &keys, i64::MAX, None)?
        .into_iter()
        .map(|(key, body)| (key.id, (key, body)))
        .collect();
    for row in forbids {
        // If the record is lost, an earlier record may forbid the put.
        let body = bodies.get(&id(row.get(1))).map_or_else(Vec::new, |(_, body)| body.to_vec());
        fetched.forbids.insert(row.get(0), body);
    }
    for row in term_slots {
        let term: i64 = row.get(0);
        let Some((key, body)) = bodies.get(&id(row.get(2))) else { continue };
        let Ok(record) = Record::new(body) else { continue };
        // Another label, or a label of another author, may have the same term.
        let is_theirs = terms.of(&record).binary_search(&term).is_ok();
        let Some(author) = record.author().filter(|_| is_theirs) else { continue };
        let slot = SlotQuery { author: *author, kind: row.get(1), term: Some(term) };
        if let Some(held) = fetched.slots.get_mut(&slot) {
            held.push(SizedKey { key: *key, bytes: body.len() });
        }
    }
    Ok(())
}

/// Deletes records, their tags and their places. Returns the number of deleted records.
pub(super) fn delete(
    session: &mut DatabaseSession,
    shelf: &ShelfProperties,
    deleted: &[IndexKey],
) -> Result<i64, StatementError> {
    let ids: Vec<&[u8]> = deleted.iter().map(|key| &key.id[..]).collect();
    let found = all_places(session, ids.iter().copied())?;
    delete_placed(session, shelf, deleted, found.values().map(|place| &place[..]).collect())
}

/// Deletes records that have these places, their tags and the places. Returns the number of deleted
/// records.
fn delete_placed(
    session: &mut DatabaseSession,
    shelf: &ShelfProperties,
    deleted: &[IndexKey],
    mut places: Vec<&[u8]>,
) -> Result<i64, StatementError> {
    let ids: Vec<&[u8]> = deleted.iter().map(|key| &key.id[..]).collect();
    places.sort_unstable();
    places.dedup();
    let heads: Vec<i64> = deleted.iter().map(|key| id_head(&key.id)).collect();
    let gone = session.query(CitusStatement::Delete, &[&places, &ids, &heads])?;
    let mut tags = TagColumns::default();
    for row in &gone {
        tags.add(row.get::<_, Vec<i64>>(3), row.get(2), row.get(0), row.get(1));
    }
    tags.delete(session)?;
    if !shelf.listed_labels.is_empty() {
        let mut lost: HashMap<i64, i64> = HashMap::new();
        for term in tags.terms {
            *lost.entry(term).or_default() += 1;
        }
        let (terms, records): (Vec<i64>, Vec<i64>) = lost.into_iter().unzip();
        session.query_once(&lower_values(), &[&terms, &records])?;
    }
    session.query(CitusStatement::DeletePlaces, &[&ids])?;
    session.query(SharedStatement::DeleteForbids, &[&ids])?;
    Ok(i64::try_from(gone.len()).unwrap_or(i64::MAX))
}

/// Deletes the remaining rows of records that lost commits have left incomplete. Returns the number
/// of deleted records.
pub(super) fn sweep(
    session: &mut DatabaseSession,
    shelf: &ShelfProperties,
    kept: &[(i64, &PreparedPut<'_>)],
) -> Result<i64, StatementError> {
    let keys: Vec<IndexKey> = kept.iter().map(|(_, put)| put.key).collect();
    let places = kept.iter().map(|(_, put)| place(put)).collect();
    let gone = delete_placed(session, shelf, &keys, places)?;
    // Tags may be left without their record.
    let mut tags = TagColumns::default();
    for (_, put) in kept {
        let (terms, kind) = (shelf.terms.of(&put.record), put.record.kind().cast_signed());
        tags.add(terms, kind, put.key.time, &put.key.id);
    }
    tags.delete(session)?;
    Ok(gone)
}

/// The columns of tags.
#[derive(Default)]
struct TagColumns<'a> {
    terms: Vec<i64>,
    kinds: Vec<i32>,
    times: Vec<i64>,
    ids: Vec<&'a [u8]>,
}

impl<'a> TagColumns<'a> {
    /// Adds the tags of a record.
    fn add(&mut self, terms: Vec<i64>, kind: i32, time: i64, id: &'a [u8]) {
        let count = self.terms.len() + terms.len();
        self.terms.extend(terms);
        self.kinds.resize(count, kind);
        self.times.resize(count, time);
        self.ids.resize(count, id);
    }

    /// Deletes these tags.
    fn delete(&self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        for first in (0..self.terms.len()).step_by(TAGS_MAX) {
            let some = first..self.terms.len().min(first + TAGS_MAX);
            let (terms, kinds) = (&self.terms[some.clone()], &self.kinds[some.clone()]);
            let (times, ids) = (&self.times[some.clone()], &self.ids[some]);
            session.query(CitusStatement::DeleteTags, &[&terms, &kinds, &times, &ids])?;
        }
        Ok(())
    }
}

/// The rows of the layout for a Citus cluster. They include the places of the records.
struct CitusRows;

impl RowFormat for CitusRows {
    const COPY_RECORDS: StatementForm = StatementForm::Citus(CitusStatement::CopyRecords);
    const COPY_TAGS: Option<StatementForm> = Some(StatementForm::Citus(CitusStatement::CopyTags));

    fn begin_record(rows: &mut CopyRows, key: &IndexKey, place: &[u8]) {
        rows.row(10);
        rows.bytes(place);
        rows.bigint(id_head(&key.id));
    }

    fn tag(rows: &mut CopyRows, tag: &TagRow<'_>) {
        rows.row(5);
        rows.bigint(tag.term);
        rows.bigint(tag.key.time);
        rows.int(tag.kind);
        rows.bytes(&tag.key.id);
        rows.bytes(tag.place);
    }
}

/// Inserts records, their tags and their places. Returns the inserted bytes.
pub(super) fn insert(
    session: &mut DatabaseSession,
    shelf: &ShelfProperties,
    kept: &[(i64, &PreparedPut<'_>)],
) -> Result<u64, StatementError> {
    let mut rows = RowEncoder::<CitusRows>::new(shelf, kept);
    rows.copy(session)?;
    let mut places = CopyRows::new(kept.len() * 74);
    for (_, put) in kept {
        places.row(2);
        places.bytes(&put.key.id);
        places.bytes(place(put));
    }
    places.end();
    let places = places.take(0);
    let place_bytes = places.len() as u64;
    session.copy(CitusStatement::CopyPlaces, std::iter::once(places))?;
    let (forbids, bytes) = rows.write_values(session)?;
    if !forbids.keys.is_empty() {
        let values: [&(dyn ToSql + Sync); 4] =
            [&forbids.keys, &forbids.times, &forbids.ids, &forbids.places];
        session.query(CitusStatement::AddForbids, &values)?;
    }
    Ok(bytes + place_bytes)
}
