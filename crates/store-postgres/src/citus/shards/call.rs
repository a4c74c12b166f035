//! A statement for the shards of a node, with its values.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::map::TableShard;
use super::set::ShardSet;
use crate::citus::CitusStatement;
use crate::citus::statement::{ShardForm, WindowForm};
use crate::statement::StatementForm;

/// A value of a statement.
pub(in crate::citus) type ShardValue<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// A statement for shards of one node, with its values.
pub(in crate::citus) struct ShardCall<'a> {
    /// Citus' number of the node's group.
    pub(super) group: i32,
    statement: CitusStatement,
    values: Vec<ShardValue<'a>>,
}

impl<'a> ShardCall<'a> {
    pub(in crate::citus) fn new(
        shard: TableShard,
        form: ShardForm,
        values: Vec<ShardValue<'a>>,
    ) -> Self {
        Self { group: shard.group, statement: CitusStatement::OnShard(form, shard.id), values }
    }

    /// Makes a statement for several shards of one node.
    pub(in crate::citus) fn several(
        shards: &[TableShard],
        form: WindowForm,
        values: Vec<ShardValue<'a>>,
    ) -> Option<Self> {
        let ids: Vec<i64> = shards.iter().map(|shard| shard.id).collect();
        let statement = CitusStatement::OnShards(form, ShardSet::of(&ids));
        Some(Self { group: shards.first()?.group, statement, values })
    }

    pub(super) fn statement(&self) -> StatementForm {
        self.statement.into()
    }

    pub(super) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        references(&self.values)
    }
}

/// Returns references to values, in the form that statements need.
pub(in crate::citus) fn references<'a>(
    values: &'a [ShardValue<'_>],
) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| -> &(dyn ToSql + Sync) { &**value }).collect()
}

/// Returns the rows of a statement's result; `None` if the node does not have the shard.
pub(super) fn rows_here(mut rows: Vec<Row>) -> Option<Vec<Row>> {
    let here = rows.first()?.len() - 1;
    if !rows.iter().all(|row| row.get::<_, Option<bool>>(here) == Some(true)) {
        return None;
    }
    // Without rows of the shard, the result has one row without an id. The id is the first column
    // of places, and the second column of all other statements.
    let id = usize::from(here != 2);
    rows.retain(|row| row.get::<_, Option<&[u8]>>(id).is_some());
    Some(rows)
}
