//! Places of records. The place of a record determines its shard: the place is the author, or the
//! id if the record has no author.

use std::collections::{HashMap, HashSet};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::statement::{CitusStatement, ValueCount};
use crate::error::StatementError;
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// Maximum number of places that a statement names. A statement that names places is sent only to
/// their shards.
const PLACES_MAX: usize = 16;

/// The place of a record: its author, or its id if it has no author.
pub(crate) type Place = [u8; 32];

/// A record's key and bytes.
pub(crate) type PlacedBody = (IndexKey, Box<[u8]>);

/// Returns the places of the stored ids among `ids`.
pub(super) fn places<'a>(
    session: &mut DatabaseSession,
    ids: impl Iterator<Item = &'a [u8]>,
) -> Result<HashMap<[u8; 32], Place>, StatementError> {
    let ids: Vec<&[u8]> = ids.collect();
    let count = ValueCount::of(Some(&ids));
    let id: &(dyn ToSql + Sync) = if let [one] = &ids[..] { one } else { &ids };
    Ok(of_rows(session.query(CitusStatement::Places(count), &[id])?.iter()))
}

/// Does the same as [`places`], and also finds records whose rows of ids are lost because a lagging
/// standby has replaced a worker.
pub(super) fn all_places<'a>(
    session: &mut DatabaseSession,
    ids: impl Iterator<Item = &'a [u8]>,
) -> Result<HashMap<[u8; 32], Place>, StatementError> {
    let ids: Vec<&[u8]> = ids.collect();
    let mut found = places(session, ids.iter().copied())?;
    let ids = ids.iter().filter_map(|id| <[u8; 32]>::try_from(*id).ok());
    let missing: HashSet<[u8; 32]> = ids.filter(|id| !found.contains_key(id)).collect();
    if !missing.is_empty() {
        let heads: Vec<i64> = missing.iter().map(id_head).collect();
        let rows = of_rows(session.query(CitusStatement::RecordPlaces, &[&heads])?.iter());
        found.extend(rows.into_iter().filter(|(id, _)| missing.contains(id)));
    }
    Ok(found)
}

/// Reads the rows of ids and their places.
pub(super) fn of_rows<'a>(rows: impl Iterator<Item = &'a Row>) -> HashMap<[u8; 32], Place> {
    let bytes = |row: &Row, at| row.get::<_, &[u8]>(at).try_into().unwrap_or_default();
    rows.map(|row| (bytes(row, 0), bytes(row, 1))).collect()
}

/// Fetches records by their ids and places, in no order. The times of `keys` are ignored.
pub(super) fn bodies(
    session: &mut DatabaseSession,
    keys: &[(IndexKey, Place)],
    seq: i64,
    cut: Option<&Vec<i64>>,
) -> Result<Vec<PlacedBody>, StatementError> {
    Ok(bodies_within(usize::MAX, session, keys, seq, cut)?.unwrap_or_default())
}

/// Fetches records like [`bodies`]. Returns `None` if they have more than about `bytes_max` bytes.
pub(super) fn bodies_within(
    bytes_max: usize,
    session: &mut DatabaseSession,
    keys: &[(IndexKey, Place)],
    seq: i64,
    cut: Option<&Vec<i64>>,
) -> Result<Option<Vec<PlacedBody>>, StatementError> {
    if keys.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let heads: Vec<i64> = keys.iter().map(|(key, _)| id_head(&key.id)).collect();
    let mut places: Vec<&[u8]> = keys.iter().map(|(_, place)| &place[..]).collect();
    places.sort_unstable();
    places.dedup();
    let (rows, is_cut) = match (&places[..], &heads[..]) {
        ([place], [head]) => {
            let form = CitusStatement::PlacedBodies(ValueCount::One);
            session.query_first(form, &[head, &seq, &cut, place], bytes_max)?
        }
        // A query that names places goes only to the shards of these places.
        _ if places.len() <= PLACES_MAX => {
            let form = CitusStatement::PlacedBodies(ValueCount::Many);
            session.query_first(form, &[&heads, &seq, &cut, &places], bytes_max)?
        }
        _ => {
            let form = CitusStatement::PlacedBodies(ValueCount::None);
            session.query_first(form, &[&heads, &seq, &cut], bytes_max)?
        }
    };
    Ok((!is_cut).then(|| bodies_of_rows(keys, rows.iter())))
}

/// Returns the times of the stored ids among `ids`, without records that have numbers above `seq`.
pub(super) fn times(
    session: &mut DatabaseSession,
    ids: &[&[u8; 32]],
    seq: i64,
) -> Result<Vec<IndexKey>, StatementError> {
    let heads: Vec<i64> = ids.iter().map(|id| id_head(id)).collect();
    let wanted: HashSet<&[u8; 32]> = ids.iter().copied().collect();
    let rows = session.query(CitusStatement::RecordTimes, &[&heads, &seq])?;
    let keys = rows.iter().map(|row| IndexKey::read(row, 0));
    Ok(keys.filter(|key| wanted.contains(&key.id)).collect())
}

/// Reads the rows of records that were found by the first 8 bytes of these ids.
pub(super) fn bodies_of_rows<'a>(
    keys: &[(IndexKey, Place)],
    rows: impl Iterator<Item = &'a Row>,
) -> Vec<PlacedBody> {
    // Different ids may have the same first 8 bytes.
    let ids: HashSet<&[u8]> = keys.iter().map(|(key, _)| &key.id[..]).collect();
    let wanted = rows.filter(|row| ids.contains(row.get::<_, &[u8]>(1)));
    wanted.map(|row| (IndexKey::read(row, 0), row.get::<_, &[u8]>(2).into())).collect()
}

/// Returns the first 8 bytes of an id: the value of the indexed column `id_head`.
pub(crate) fn id_head(id: &[u8; 32]) -> i64 {
    id.first_chunk().map_or(0, |head| i64::from_be_bytes(*head))
}

/// Reads a key and its place.
pub(super) fn placed_key(row: &Row) -> (IndexKey, Place) {
    let place: &[u8] = row.get(2);
    (IndexKey::read(row, 0), place.try_into().unwrap_or_default())
}
