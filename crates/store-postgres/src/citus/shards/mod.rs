//! Reads shards from the nodes that have them, without the coordinator. The coordinator would plan
//! each statement anew, send each shard the whole list of values, and read all rows itself.
//!
//! `map` knows which node has which shard, and `hash` which shard has a value. `reads` sends
//! statements to the shards' own tables, several nodes at the same time. `worker` has the sessions
//! with a node. `detour` decides which questions may go through the coordinator if a node cannot be
//! reached. `merge` puts the rows of several shards in order.
//!
//! Two faults must not make an answer incomplete:
//!
//! - **A shard moves.** Each statement returns whether the node has the shard; see `on_shard` in
//!   [`sql`](super::sql).
//! - **A node is replaced, and the old node still answers.** So every number up to which a question
//!   must see all puts comes with a hash of the nodes' addresses; see [`NODES`](super::sql::NODES).

pub(super) use call::{ShardCall, ShardValue, references};
pub(super) use map::{ShardMap, TableShard};
pub(super) use merge::{ShardPage, merge};
pub(crate) use reads::ShardReads;
pub(crate) use set::ShardSet;

mod call;
mod detour;
mod hash;
mod map;
mod merge;
mod reads;
mod set;
mod worker;
