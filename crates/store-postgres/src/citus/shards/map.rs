//! The map of a shelf's shards: which shard has a value, and which node has the shard.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use super::hash;
use crate::citus::sql::NODES;
use crate::citus::statement::ShardedTable;
use crate::cluster::NodeAddress;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// A shard, and the group of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::citus) struct TableShard {
    /// Citus' number of the shard. The name of the shard's own table ends with this number.
    pub(in crate::citus) id: i64,
    /// Citus' number of the group to which the node belongs.
    pub(super) group: i32,
    /// The highest hash of the shard's values.
    last: i32,
}

/// Number of sample values of each type for which the map's shards are compared with the
/// coordinator's.
const PROBES: i64 = 8;

/// Why the shards of a cluster cannot be read without the coordinator.
#[derive(Debug, thiserror::Error)]
pub(super) enum MapFault {
    /// The map could not be read.
    #[error(transparent)]
    Database(#[from] StatementError),
    /// The session belongs to a standby of the coordinator, whose map may be old.
    #[error("a standby of the coordinator was asked for the shards")]
    Standby,
    /// Hark does not know this way of distribution.
    #[error("{0}")]
    Unknown(&'static str),
}

/// The shards of a shelf.
#[derive(Debug)]
pub(in crate::citus) struct ShardMap {
    /// The value of [`NODES`].
    pub(super) nodes: i64,
    /// The shards of each table, in the order of their hashes.
    tables: [Vec<TableShard>; 3],
    /// The address of each group with shards; `None` for the coordinator.
    pub(super) addresses: BTreeMap<i32, Option<NodeAddress>>,
}

impl ShardMap {
    /// Reads the map from the coordinator.
    pub(super) fn read(session: &mut DatabaseSession) -> Result<Self, MapFault> {
        let text = format!(
            "SELECT c.relname::text, s.shardid, s.shardminvalue::int, s.shardmaxvalue::int, p.groupid, \
             n.nodename::text, n.nodeport, {NODES}, pg_is_in_recovery() FROM pg_dist_shard s \
             JOIN pg_class c ON c.oid = s.logicalrelid JOIN pg_namespace o ON o.oid = c.relnamespace \
             LEFT JOIN pg_dist_placement p ON p.shardid = s.shardid \
             LEFT JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary' \
             WHERE o.nspname = current_schema() AND c.relname IN ('record', 'id_place', 'tag') \
             ORDER BY c.relname, s.shardminvalue::int"
        );
        let rows = session.query_once(&text, &[])?;
        if rows.first().is_some_and(|row| row.get(8)) {
            return Err(MapFault::Standby);
        }
        let mut map = Self {
            nodes: rows.first().map_or(0, |row| row.get(7)),
            tables: Default::default(),
            addresses: BTreeMap::new(),
        };
        for row in &rows {
            map.add(row)?;
        }
        if map.tables.iter().any(|table| table.last().is_none_or(|shard| shard.last != i32::MAX)) {
            return Err(MapFault::Unknown("the shards do not cover all hashes"));
        }
        map.must_be_right(session)?;
        Ok(map)
    }

    /// Adds a shard, which must begin where the previous shard ends.
    fn add(&mut self, row: &Row) -> Result<(), MapFault> {
        let name: &str = row.get(0);
        let table = ShardedTable::ALL.into_iter().find(|table| table.name() == name);
        let shards = table.map(|table| &mut self.tables[table as usize]);
        let first: Option<i32> = row.get(2);
        let (Some(shards), Some(first), Some(last)) = (shards, first, row.get(3)) else {
            return Err(MapFault::Unknown("the tables are not distributed by hash"));
        };
        let expected = shards.last().map_or(Some(i32::MIN), |shard| shard.last.checked_add(1));
        if expected != Some(first) {
            return Err(MapFault::Unknown("a shard has several placements, or a gap before it"));
        }
        let (group, host): (Option<i32>, Option<String>) = (row.get(4), row.get(5));
        let (Some(group), Some(host)) = (group, host) else {
            return Err(MapFault::Unknown("a shard has no node"));
        };
        let address = (group != 0).then(|| NodeAddress::of_columns(host, row.get(6)));
        self.addresses.insert(group, address);
        shards.push(TableShard { id: row.get(1), group, last });
        Ok(())
    }

    /// Fails if the coordinator finds other shards for some values.
    fn must_be_right(&self, session: &mut DatabaseSession) -> Result<(), MapFault> {
        let text = "SELECT get_shard_id_for_distribution_column('record', sha256(n::text::bytea)), \
            get_shard_id_for_distribution_column('id_place', sha256(n::text::bytea)), \
            get_shard_id_for_distribution_column('tag', n * 7777777777777), \
            sha256(n::text::bytea), n * 7777777777777 \
            FROM generate_series(-$1::bigint, $1::bigint) AS t(n)";
        for row in session.query_once(text, &[&PROBES])? {
            let (bytes, number): (&[u8], i64) = (row.get(3), row.get(4));
            let found = [
                self.of_bytes(ShardedTable::Record, bytes),
                self.of_bytes(ShardedTable::Place, bytes),
                self.of_term(number),
            ];
            for (at, shard) in found.into_iter().enumerate() {
                if shard.is_none_or(|shard| shard.id != row.get::<_, i64>(at)) {
                    return Err(MapFault::Unknown("values have other hashes than Hark computes"));
                }
            }
        }
        Ok(())
    }

    /// Returns the shards of a table.
    pub(in crate::citus) fn all(&self, table: ShardedTable) -> &[TableShard] {
        &self.tables[table as usize]
    }

    /// Returns the shards of a table by their groups.
    pub(in crate::citus) fn by_group(&self, table: ShardedTable) -> BTreeMap<i32, Vec<TableShard>> {
        let mut groups: BTreeMap<i32, Vec<TableShard>> = BTreeMap::new();
        for shard in self.all(table) {
            groups.entry(shard.group).or_default().push(*shard);
        }
        groups
    }

    fn of_hash(&self, table: ShardedTable, hash: i32) -> Option<TableShard> {
        let shards = self.all(table);
        shards.get(shards.partition_point(|shard| shard.last < hash)).copied()
    }

    /// Returns the shard of a place or an id.
    pub(in crate::citus) fn of_bytes(
        &self,
        table: ShardedTable,
        value: &[u8],
    ) -> Option<TableShard> {
        self.of_hash(table, hash::of_bytes(value))
    }

    /// Returns the shard of a term.
    pub(in crate::citus) fn of_term(&self, term: i64) -> Option<TableShard> {
        self.of_hash(ShardedTable::Tag, hash::of_bigint(term))
    }
}
