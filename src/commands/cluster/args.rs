//! The command line of `hark cluster`.

use clap::{Args, Subcommand};
use hark_store_postgres::cluster::{NodeAddress, TransferMode};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  hark cluster status --store postgres://hark@db0/hark
  hark cluster add db3:5432        and spread the shards over it
  hark cluster drain db1           move its shards to other nodes, and remove it
  hark cluster replace db2 --with db2-standby

--store (or archive.store in the configuration) names the coordinator. Hark connects to all nodes
with the user, password and database of this address. Every command may be interrupted, even with
kill -9, and run again: it checks the state of the cluster, and does the missing steps. --dry-run
only prints the steps.")]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(super) action: ClusterAction,
}

#[derive(Debug, Subcommand)]
pub(super) enum ClusterAction {
    /// Show the nodes, running moves and problems
    Status(ClusterStatusArgs),
    /// Add a node and move a share of the shards to the new node
    Add(ClusterAddArgs),
    /// Move every shard off a node without stopping reads or writes, and remove the node
    Drain(ClusterDrainArgs),
    /// Spread the shards evenly over the nodes
    Rebalance(ClusterRebalanceArgs),
    /// Replace a lost worker with its standby
    Replace(ClusterReplaceArgs),
    /// Show whether the workers have standbys that could take their places
    Standby(ClusterStandbyArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 1 if a node does not answer.

`behind` is the amount of data that a standby has not made durable yet, and that would be lost if
its node were lost. A transaction that has been prepared for a long time waits until the coordinator
ends it, which the coordinator does every citus.recover_2pc_interval.")]
pub(super) struct ClusterStatusArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// The flags of all commands that change a cluster.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ClusterWorkArgs {
    /// Check everything and print the steps, but change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Print one JSON object a line, for each check, step and move, and for the result
    #[arg(long)]
    pub(super) json: bool,
}

/// The flag for the way in which shards move.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ClusterMoveArgs {
    /// Let writes to a shard wait while it moves; needs no logical replication, and is faster
    #[arg(long)]
    pub(super) blocking: bool,
}

impl ClusterMoveArgs {
    pub(super) fn mode(self) -> TransferMode {
        if self.blocking { TransferMode::Blocking } else { TransferMode::Logical }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark cluster add db3 --dry-run
  hark cluster add db3:5432
  hark cluster add db3 --no-rebalance      shards come with the next `hark cluster rebalance`

First, the command checks versions and settings, and whether the nodes reach each other. The
database and the extension are created on the node if they are missing and the user may create them.
A node that is already in the cluster is not added again, but gets its share of the shards. If a
drain of the node has begun, the command undoes the drain.")]
pub(super) struct ClusterAddArgs {
    /// The new node, by the address at which the other nodes reach it [default port: 5432]
    #[arg(value_name = "HOST[:PORT]")]
    pub(super) node: NodeAddress,
    /// Do not move shards to the new node yet
    #[arg(long)]
    pub(super) no_rebalance: bool,
    #[command(flatten)]
    pub(super) moves: ClusterMoveArgs,
    #[command(flatten)]
    pub(super) work: ClusterWorkArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark cluster drain db1 --dry-run
  hark cluster drain db1:5432
  hark cluster drain db1 --blocking        if wal_level is not logical

The shards of all colocated tables for one range of hashes form a group. The groups move one after
the other, by citus_move_shard_placement. Ctrl-C stops after the current move. If this move does not
end within 3 s, the coordinator finishes the move by itself. Run the command again to continue, or
run `hark cluster add` to undo the drain.")]
pub(super) struct ClusterDrainArgs {
    /// The node to empty [default port: 5432]
    #[arg(value_name = "HOST[:PORT]")]
    pub(super) node: NodeAddress,
    #[command(flatten)]
    pub(super) moves: ClusterMoveArgs,
    #[command(flatten)]
    pub(super) work: ClusterWorkArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark cluster rebalance --dry-run
  hark cluster rebalance

Makes the moves that Citus' rebalancer plans by its default strategy, which weighs sizes. Ctrl-C
stops after the current move; run the command again to continue.")]
pub(super) struct ClusterRebalanceArgs {
    #[command(flatten)]
    pub(super) moves: ClusterMoveArgs,
    #[command(flatten)]
    pub(super) work: ClusterWorkArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark cluster replace db2 --with db2-standby:5432

The command refuses to work while DEAD accepts connections: if two nodes accept writes for the same
shards, some writes are lost. A frozen machine accepts connections, too, and may resume at any
moment: stop this machine first. Make sure that DEAD cannot come back by itself. Later DEAD may
become the standby of the new worker (pg_rewind). STANDBY must be a copy of DEAD with all of its
shards. The command promotes STANDBY if necessary, gives it the number of DEAD in the cluster, and
ends transactions in doubt.")]
pub(super) struct ClusterReplaceArgs {
    /// The lost worker [default port: 5432]
    #[arg(value_name = "DEAD")]
    pub(super) dead: NodeAddress,
    /// Its standby [default port: 5432]
    #[arg(long = "with", value_name = "STANDBY")]
    pub(super) standby: NodeAddress,
    /// Replace the worker although it still answers
    #[arg(long)]
    pub(super) force: bool,
    /// Replace the worker although it accepts connections and may only be frozen
    #[arg(long)]
    pub(super) unfenced: bool,
    /// Empty the standby's synchronous_standby_names if writes would wait for a standby that does
    /// not exist
    #[arg(long)]
    pub(super) alone: bool,
    #[command(flatten)]
    pub(super) work: ClusterWorkArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 1 if a worker has no streaming standby. Each problem is printed with the statements
that solve it.")]
pub(super) struct ClusterStandbyArgs {
    /// The node; without it, all nodes [default port: 5432]
    #[arg(value_name = "HOST[:PORT]")]
    pub(super) node: Option<NodeAddress>,
    /// Print one JSON object a line, one for each node
    #[arg(long)]
    pub(super) json: bool,
}
