//! The steps of a commit on one server.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::label_storage::LabelStorage;
use super::statement::PlainStatement;
use crate::commit::PreparedPut;
use crate::commit::fetch::{
    FetchedState, LOOKUPS_MAX, NamedRecord, RuleKeys, RuleLookups, id, sized, slot_columns,
};
use crate::commit::rows::{RowEncoder, RowFormat, TagRow};
use crate::copy::CopyRows;
use crate::error::StatementError;
use crate::layout::SharedStatement;
use crate::properties::ShelfProperties;
use crate::session::{DatabaseSession, StatementCall};
use crate::statement::StatementForm;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;
use crate::words::mark::mark;

/// Maximum number of a commit's queries that need a search. A request to vanish has this many such
/// queries.
const SEARCHES_MAX: usize = 2;

/// The look-ups and searches that answer the queries of rules.
pub(super) const LOOKUPS: RuleLookups =
    RuleLookups { slots_max: LOOKUPS_MAX, by_id: true, searches_max: SEARCHES_MAX };

/// Begins the transaction, locks the shelf, and fetches the stored records that the rules may need.
pub(super) fn fetch(
    session: &mut DatabaseSession,
    puts: &[Option<PreparedPut<'_>>],
    terms: &DatabaseTermHasher,
) -> Result<FetchedState, StatementError> {
    let keys = RuleKeys::of(puts, LOOKUPS, terms);
    let (authors, kinds, _) = slot_columns(&keys.plain);
    let (term_authors, term_kinds, slot_terms) = slot_columns(&keys.termed);
    let by_id = &keys.named;

    let known: [&(dyn ToSql + Sync); 2] = [&keys.times, &keys.ids];
    let forbids: [&(dyn ToSql + Sync); 1] = [&keys.forbidding];
    let slots: [&(dyn ToSql + Sync); 2] = [&authors, &kinds];
    let term_slots: [&(dyn ToSql + Sync); 3] = [&slot_terms, &term_kinds, &term_authors];
    let named: [&(dyn ToSql + Sync); 3] = [&by_id.ids, &by_id.kinds, &by_id.terms];
    let mut calls: Vec<StatementCall<'_>> = vec![
        (SharedStatement::Begin.into(), &[]),
        (PlainStatement::Lock.into(), &[]),
        (PlainStatement::Known.into(), &known),
        (PlainStatement::Forbids.into(), &forbids),
    ];
    if !keys.plain.is_empty() {
        calls.push((PlainStatement::Slots.into(), &slots));
    }
    if !keys.termed.is_empty() {
        calls.push((PlainStatement::TermSlots.into(), &term_slots));
    }
    if !by_id.ids.is_empty() {
        calls.push((PlainStatement::NamedRecords.into(), &named));
    }
    let mut answers = session.pipeline(&calls)?.into_iter().skip(1);
    let mut next = || answers.next().unwrap_or_default();
    let mut fetched = FetchedState::read(session, &next(), &next(), &keys.ids)?;
    fetched.slots = keys.empty_slots();
    fetched.forbids = next().iter().map(|row| (row.get(0), row.get(1))).collect();
    for slots in [&keys.plain, &keys.termed].into_iter().filter(|slots| !slots.is_empty()) {
        for row in next() {
            let slot = &slots[row.get::<_, i64>(0) as usize - 1];
            fetched.slots.entry(*slot).or_default().push(sized(&row, 1));
        }
    }
    fetched.named = by_id.ids.iter().map(|named| (id(named), None)).collect();
    if !by_id.ids.is_empty() {
        let records = next();
        let records = records.iter().map(named_record);
        fetched.named.extend(records.map(|record| (record.found.key.id, Some(record))));
    }
    Ok(fetched)
}

fn named_record(row: &Row) -> NamedRecord {
    NamedRecord {
        found: sized(row, 0),
        author: row.get::<_, Option<&[u8]>>(3).map(id),
        kind: row.get::<_, i32>(4).cast_unsigned(),
        terms: row.get(5),
    }
}

/// Deletes records, their tags and their words. Returns the number of deleted records.
pub(super) fn delete(
    session: &mut DatabaseSession,
    shelf: &ShelfProperties,
    deleted: &[IndexKey],
) -> Result<i64, StatementError> {
    let times: Vec<i64> = deleted.iter().map(|key| key.time).collect();
    let ids: Vec<&[u8]> = deleted.iter().map(|key| &key.id[..]).collect();
    let lists = !shelf.listed_labels.is_empty();
    let delete = if lists { PlainStatement::DeleteListed } else { PlainStatement::Delete };
    let marks: Vec<i64> = deleted.iter().map(|key| mark(&key.id)).collect();
    let answers = session.pipeline(&[
        (delete.into(), &[&times, &ids, &marks]),
        (SharedStatement::DeleteForbids.into(), &[&ids]),
    ])?;
    Ok(answers[0].first().map_or(0, |row| row.get(0)))
}

/// The rows of the layout for one server.
struct PlainRows;

impl RowFormat for PlainRows {
    const COPY_RECORDS: StatementForm = StatementForm::Plain(PlainStatement::CopyRecords);
    const COPY_TAGS: Option<StatementForm> = Some(StatementForm::Plain(PlainStatement::CopyTags));

    fn begin_record(rows: &mut CopyRows, _: &IndexKey, _: &[u8]) {
        rows.row(8);
    }

    fn tag(rows: &mut CopyRows, tag: &TagRow<'_>) {
        rows.row(4);
        rows.bigint(tag.term);
        rows.bigint(tag.key.time);
        rows.int(tag.kind);
        rows.bytes(&tag.key.id);
    }
}

/// The rows of slim tables.
struct SlimRows;

impl RowFormat for SlimRows {
    const COPY_RECORDS: StatementForm = PlainRows::COPY_RECORDS;
    const COPY_TAGS: Option<StatementForm> = None;

    fn begin_record(rows: &mut CopyRows, key: &IndexKey, place: &[u8]) {
        PlainRows::begin_record(rows, key, place);
    }

    fn tag(_: &mut CopyRows, _: &TagRow<'_>) {}
}

/// Inserts records, and their tags unless the tables are slim. Returns the inserted bytes.
pub(super) fn insert(
    session: &mut DatabaseSession,
    shelf: &ShelfProperties,
    kept: &[(i64, &PreparedPut<'_>)],
    labels: LabelStorage,
) -> Result<u64, StatementError> {
    match labels {
        LabelStorage::Rows => insert_rows::<PlainRows>(session, shelf, kept),
        LabelStorage::Records => insert_rows::<SlimRows>(session, shelf, kept),
    }
}

fn insert_rows<F: RowFormat>(
    session: &mut DatabaseSession,
    shelf: &ShelfProperties,
    kept: &[(i64, &PreparedPut<'_>)],
) -> Result<u64, StatementError> {
    let mut rows = RowEncoder::<F>::new(shelf, kept);
    rows.copy(session)?;
    let (forbids, bytes) = rows.write_values(session)?;
    if !forbids.keys.is_empty() {
        let values: [&(dyn ToSql + Sync); 3] = [&forbids.keys, &forbids.times, &forbids.ids];
        session.query(PlainStatement::AddForbids, &values)?;
    }
    Ok(bytes)
}
