//! What work on a cluster reports: requirements, steps and moves.

use std::time::Instant;

use super::nodes::NodeAddress;
use super::plan::ShardMove;

/// What is reported.
#[derive(Clone, Debug)]
pub enum ClusterEvent {
    /// A requirement was looked at.
    Check(ClusterCheck),
    /// A step was taken, or would be taken.
    Step(ClusterStep),
    /// A shard is moved, was moved, or would be moved.
    Move(MoveProgress),
    /// Something to know while waiting.
    Note(String),
}

/// A step of some work.
#[derive(Clone, Debug)]
pub struct ClusterStep {
    /// A short name, for programs.
    pub name: &'static str,
    /// What is done, for people.
    pub words: String,
    /// Whether it was done. Unset in a dry run.
    pub taken: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// How a requirement is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    /// It is met.
    Passed,
    /// It could not be looked at, or is met with a restriction.
    Warning,
    /// It is not met, so nothing is changed.
    Failed,
}

/// A requirement that was looked at.
#[derive(Clone, Debug)]
pub struct ClusterCheck {
    /// The node that it is about. `None` for the whole cluster.
    pub node: Option<NodeAddress>,
    /// What was looked at: a setting's name, or a word for programs.
    pub subject: &'static str,
    /// Whether it is met.
    pub verdict: CheckVerdict,
    /// What was found, and how to mend it.
    pub found: String,
}

impl ClusterCheck {
    /// A requirement that is met.
    pub(crate) fn passed(
        node: Option<&NodeAddress>,
        subject: &'static str,
        found: impl Into<String>,
    ) -> Self {
        let found = found.into();
        Self { node: node.cloned(), subject, verdict: CheckVerdict::Passed, found }
    }

    /// A requirement that is met if `met`, else fails with these words.
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

    /// A requirement that could not be looked at, or is met with a restriction.
    pub(crate) fn warning(
        node: Option<&NodeAddress>,
        subject: &'static str,
        found: impl Into<String>,
    ) -> Self {
        Self { verdict: CheckVerdict::Warning, ..Self::passed(node, subject, found) }
    }
}

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// It would be made.
    Planned,
    /// It begins.
    Started,
    /// It is under way.
    Running,
    /// It is done and committed.
    Done,
}

/// A move, and how far all moves are.
#[derive(Clone, Debug)]
pub struct MoveProgress {
    /// How far this move is.
    pub state: MoveState,
    /// Number of this move, from 1, and of all moves that are known to be needed.
    pub number: usize,
    /// Moves that are needed in all.
    pub of: usize,
    /// The shard that stands for the group that moves.
    pub shard: i64,
    /// The tables of the group.
    pub tables: Vec<String>,
    /// Where the shards were.
    pub from: NodeAddress,
    /// Where they go.
    pub to: NodeAddress,
    /// Bytes of the group, and those that are copied.
    pub bytes: u64,
    /// Bytes of this group that have arrived.
    pub bytes_arrived: u64,
    /// Bytes of all moves, and those that have arrived.
    pub total_bytes: u64,
    /// Bytes of all moves that have arrived.
    pub total_arrived: u64,
    /// What Citus says about the move: `Copying Data`, `Catching Up`, …
    pub phase: String,
    /// Time since this move began, in seconds.
    pub seconds: f64,
    /// Expected time until all moves are done, in seconds, once there is something to go by.
    pub left_s: Option<u64>,
}

impl MoveProgress {
    /// Returns a move that begins, the `at`th of `of`.
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

    /// Estimates how long the rest takes: by moves, as small shards take as long as empty ones, and
    /// by bytes. The larger of both is returned, as the estimate should not grow.
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
