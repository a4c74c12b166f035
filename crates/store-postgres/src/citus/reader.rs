//! The reads of a search of distributed tables: from the shards themselves, or through the
//! coordinator.

use std::collections::{BTreeMap, HashMap};

use super::places::{self, Place, PlacedBody, id_head};
use super::shards::{ShardCall, ShardMap, ShardPage, ShardReads, ShardValue, TableShard};
use super::statement::{ShardForm, ShardedTable};
use crate::error::StatementError;
use crate::search::{SearchState, SqlQuery, StepSession};
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// Reads distributed tables for a search.
pub(super) struct ShelfReader<'a> {
    coordinator: StepSession<'a>,
    /// `None` if all reads go through the coordinator.
    shards: Option<&'a ShardReads>,
}

impl<'a> ShelfReader<'a> {
    pub(super) fn new(
        asked: &SqlQuery,
        shared: &'a SearchState,
        coordinator: StepSession<'a>,
    ) -> Self {
        Self { coordinator, shards: shared.shards.as_ref().filter(|_| asked.on_shards) }
    }

    /// Returns the session with the coordinator, or fails if there is none.
    pub(super) fn session(&mut self) -> Result<&mut DatabaseSession, StatementError> {
        self.coordinator.required()
    }

    /// Whether shards may be read without the coordinator.
    pub(super) fn has_shards(&self) -> bool {
        self.shards.is_some()
    }

    /// Executes the statements that `plan` makes. Returns `None` if the read must go through the
    /// coordinator.
    pub(super) fn on_shards<'v>(
        &mut self,
        bytes_max: usize,
        plan: impl Fn(&ShardMap) -> Option<Vec<ShardCall<'v>>>,
    ) -> Result<Option<Vec<ShardPage>>, StatementError> {
        match self.shards {
            Some(shards) => shards.read(&mut self.coordinator, bytes_max, plan),
            None => Ok(None),
        }
    }

    /// Returns the places of the stored ids among `ids`.
    pub(super) fn places(
        &mut self,
        ids: &[&[u8]],
    ) -> Result<HashMap<[u8; 32], Place>, StatementError> {
        match self.on_shards(usize::MAX, |map| place_calls(map, ids))? {
            Some(pages) => Ok(places::of_rows(pages.iter().flat_map(|page| &page.rows))),
            None => places::places(self.session()?, ids.iter().copied()),
        }
    }

    /// Fetches records by their ids and places, in no order. The times of `keys` are ignored.
    /// Returns `None` if the records have more than about `bytes_max` bytes.
    pub(super) fn bodies_within(
        &mut self,
        bytes_max: usize,
        keys: &[(IndexKey, Place)],
        seq: i64,
        cut: Option<&Vec<i64>>,
    ) -> Result<Option<Vec<PlacedBody>>, StatementError> {
        if keys.is_empty() {
            return Ok(Some(Vec::new()));
        }
        match self.on_shards(bytes_max, |map| body_calls(map, keys, seq, cut))? {
            Some(pages) if pages.iter().any(|page| page.is_cut) => Ok(None),
            Some(pages) => {
                let rows = pages.iter().flat_map(|page| &page.rows);
                Ok(Some(places::bodies_of_rows(keys, rows)))
            }
            None => places::bodies_within(bytes_max, self.session()?, keys, seq, cut),
        }
    }
}

/// Returns a statement for each shard with places of these ids.
fn place_calls<'v>(map: &ShardMap, ids: &[&'v [u8]]) -> Option<Vec<ShardCall<'v>>> {
    let split = split(ids, |id| map.of_bytes(ShardedTable::Place, id))?.into_iter();
    let call = |(shard, ids): (TableShard, Vec<&'v [u8]>)| {
        ShardCall::new(shard, ShardForm::Places, vec![Box::new(ids)])
    };
    Some(split.map(call).collect())
}

/// Returns a statement for each shard with these records.
fn body_calls<'v>(
    map: &ShardMap,
    keys: &[(IndexKey, Place)],
    seq: i64,
    cut: Option<&'v Vec<i64>>,
) -> Option<Vec<ShardCall<'v>>> {
    let split = split(keys, |(_, place)| map.of_bytes(ShardedTable::Record, place))?.into_iter();
    let call = |(shard, keys): (TableShard, Vec<(IndexKey, Place)>)| {
        let heads: Vec<i64> = keys.iter().map(|(key, _)| id_head(&key.id)).collect();
        let values: Vec<ShardValue<'v>> = vec![Box::new(heads), Box::new(seq), Box::new(cut)];
        ShardCall::new(shard, ShardForm::Bodies, values)
    };
    Some(split.map(call).collect())
}

/// Divides values by their shards. Returns `None` if the map lacks a shard.
pub(super) fn split<T: Copy>(
    values: &[T],
    shard_of: impl Fn(&T) -> Option<TableShard>,
) -> Option<Vec<(TableShard, Vec<T>)>> {
    let mut split: BTreeMap<i64, (TableShard, Vec<T>)> = BTreeMap::new();
    for value in values {
        let shard = shard_of(value)?;
        split.entry(shard.id).or_insert_with(|| (shard, Vec::new())).1.push(*value);
    }
    Some(split.into_values().collect())
}
