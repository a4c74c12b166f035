//! Events of the work on a cluster: checks, steps and moves.

use std::time::Instant;

use super::nodes::NodeAddress;
use super::plan::ShardMove;

/// An event of the work on a cluster.
#[derive(Clone, Debug)]
pub enum ClusterEvent {
    /// A requirement was checked.
    Check(ClusterCheck),
    /// A step was done, or would be done in a real run.
    Step(ClusterStep),
    /// A shard is being moved, was moved, or would be moved in a real run.
    Move(MoveProgress),
    /// Information while the work waits.
    Note(String),
}

/// A step of the work.
#[derive(Clone, Debug)]
pub struct ClusterStep {
    /// A short name for other programs.
    pub name: &'static str,
    /// A description for people.
    pub words: String,
    /// Whether the step was done; false in a dry run.
    pub taken: bool,
    /// Duration of the step, in seconds.
    pub seconds: f64,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    /// The requirement is met.
    Passed,
    /// The requirement could not be checked, or is not met in full. The change is still made.
    Warning,
    /// The requirement is not met, so nothing is changed.
    Failed,
}

/// The result of checking one requirement.
#[derive(Clone, Debug)]
pub struct ClusterCheck {
    /// The node that was checked; `None` for the whole cluster.
    pub node: Option<NodeAddress>,
    /// The subject of the check: the name of a setting, or a word that programs can read.
    pub subject: &'static str,
    /// Whether the requirement is met.
    pub verdict: CheckVerdict,
    /// The finding, followed by the remedy if the requirement is not met.
    pub found: String,
}

impl ClusterCheck {
    /// Makes a check whose requirement is met.
    pub(crate) fn passed(
        node: Option<&NodeAddress>,
        subject: &'static str,
        found: impl Into<String>,
    ) -> Self {
        let found = found.into();
        Self { node: node.cloned(), subject, verdict: CheckVerdict::Passed, found }
    }

    /// Makes a check that has passed if `met` is true. Otherwise the check has failed, and `remedy`
    /// follows `found`.
    pub(crate) fn of(
        node: Option<&NodeAddress>,
        subject: &'static str,
        met: bool,
        found: impl Into<String>,
        remedy: impl AsRef<str>,
    ) -> Self {
        let mut check = Self::passed(node, subject, found);
        if !met {
            check.verdict = CheckVerdict::Failed;
            check.found = format!("{}; {}", check.found, remedy.as_ref());
        }
        check
    }

    /// Returns the result of a check that could not be made, or whose requirement is not met in
    /// full.
    pub(crate) fn warning(
        node: Option<&NodeAddress>,
        subject: &'static str,
        found: impl Into<String>,
    ) -> Self {
        Self { verdict: CheckVerdict::Warning, ..Self::passed(node, subject, found) }
    }
}

/// The state of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// A real run would make this move.
    Planned,
    /// The move begins.
    Started,
    /// The move is under way.
    Running,
    /// The move is done and committed.
    Done,
}

/// The progress of one move, and of all moves together.
#[derive(Clone, Debug)]
pub struct MoveProgress {
    /// The state of this move.
    pub state: MoveState,
    /// The number of this move; the first move has number 1.
    pub number: usize,
    /// The number of moves that are needed, as far as known.
    pub of: usize,
    /// The shard that represents the moving group.
    pub shard: i64,
    /// The tables of the group.
    pub tables: Vec<String>,
    /// The node from which the shards move.
    pub from: NodeAddress,
    /// The node to which the shards move.
    pub to: NodeAddress,
    /// Size of this group in bytes.
    pub bytes: u64,
    /// Number of bytes of this group that have arrived at the new node.
    pub bytes_arrived: u64,
    /// Number of bytes that all moves copy.
    pub total_bytes: u64,
    /// Number of bytes that have arrived at the new nodes, over all moves.
    pub total_arrived: u64,
    /// The phase that Citus reports for the move: `Copying Data`, `Catching Up`, …
    pub phase: String,
    /// Time since this move began, in seconds.
    pub seconds: f64,
    /// Expected time until all moves are done, in seconds. `None` until bytes have arrived or a
    /// move is done.
    pub left_s: Option<u64>,
}

impl MoveProgress {
    /// Makes the progress of a move that begins: move number `at + 1` of `of`.
    pub(crate) fn of(
        one: &ShardMove,
        at: usize,
        of: usize,
        total_bytes: u64,
        total_arrived: u64,
    ) -> Self {
        Self {
            state: MoveState::Started,
            number: at + 1,
            of,
            shard: one.shard,
            tables: one.tables.clone(),
            from: one.from.clone(),
            to: one.to.clone(),
            bytes: one.bytes,
            bytes_arrived: 0,
            total_bytes,
            total_arrived,
            phase: String::new(),
            seconds: 0.0,
            left_s: None,
        }
    }

    /// Estimates the remaining time in two ways: by bytes, and by the number of moves, because even
    /// the move of an empty shard takes some time. The larger of the two is used, so that the
    /// estimate rarely grows later.
    pub(crate) fn expect(&mut self, started: Instant) {
        let spent = started.elapsed().as_secs_f64();
        let done = if self.state == MoveState::Done { self.number } else { self.number - 1 };
        if done == 0 && self.total_arrived == 0 {
            return;
        }
        let by_moves = if done == 0 { 0.0 } else { spent * (self.of - done) as f64 / done as f64 };
        let left = self.total_bytes.saturating_sub(self.total_arrived);
        let by_bytes = if self.total_arrived == 0 {
            0.0
        } else {
            spent * left as f64 / self.total_arrived as f64
        };
        self.left_s = Some(by_moves.max(by_bytes).ceil() as u64);
    }
}
