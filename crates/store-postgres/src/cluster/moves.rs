//! How shards move: one group of colocated shards at a time, by `citus_move_shard_placement`.
//!
//! A move is one statement of the coordinator's and ends with one commit, so it is done or not done.
//! If this process is killed, the coordinator finishes the move that it is in; whoever comes next
//! waits for that. If the coordinator is killed, it leaves a half copied shard and a replication slot
//! behind, which Citus has noted and `citus_cleanup_orphaned_resources` removes.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::ClusterError;
use super::coordinator::Coordinator;
use super::nodes::NodeAddress;
use super::plan::{PlanGoal, ShardMove, plan};
use super::status::running_moves;
use super::work::{ClusterEvent, ClusterWork};
use crate::session::{DatabaseSession, StatementError};

/// The longest move of one group of shards.
pub(crate) const MOVE_MAX: Duration = Duration::from_hours(7 * 24);
/// How often the progress of a move is read.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How often a move is tried that the database refuses, as when it ends a deadlock by it.
const TRIES: usize = 3;
/// Most plans in a row. A plan has something new only if tables were made during the moves before.
const PLANS_MAX: usize = 10;

/// How shards move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMode {
    /// By logical replication: reads and writes go on, and writes wait for a moment at the end.
    Logical,
    /// By a plain copy: writes to the shard wait until it is done.
    Blocking,
}

impl TransferMode {
    /// Citus' name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Logical => "force_logical",
            Self::Blocking => "block_writes",
        }
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

/// What was moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoveTotals {
    /// Groups of shards.
    pub moves: usize,
    /// Their size before they moved.
    pub bytes: u64,
}

/// Plans moves and makes them, until no more are needed.
pub(crate) fn move_all(
    coordinator: &mut Coordinator,
    goal: PlanGoal<'_>,
    mode: TransferMode,
    work: &mut ClusterWork<'_>,
) -> Result<MoveTotals, ClusterError> {
    let mut totals = MoveTotals::default();
    clean_up(coordinator, work)?;
    for _ in 0..PLANS_MAX {
        let moves = plan(coordinator, goal)?;
        if moves.is_empty() {
            return Ok(totals);
        }
        make(coordinator, &moves, mode, work, &mut totals)?;
    }
    Err(ClusterError::Refused(format!(
        "after {PLANS_MAX} plans there is still something to move, so shards are made faster than \
         they move; run the command again when no tables are being made"
    )))
}

/// Waits for moves of others, and removes what interrupted moves have left behind.
pub(crate) fn clean_up(
    coordinator: &mut Coordinator,
    work: &mut ClusterWork<'_>,
) -> Result<(), ClusterError> {
    let until = Instant::now() + MOVE_MAX;
    let mut noted = None;
    while let Some(running) = running_moves(coordinator)?.into_iter().next() {
        work.go_on()?;
        if noted != Some(running.process) {
            noted = Some(running.process);
            work.note(format!(
                "a move that was begun before is still under way on the coordinator (process {}); \
                 waiting for it",
                running.process
            ));
        }
        if Instant::now() > until {
            return Err(ClusterError::Refused(
                "a move that was begun before does not end; look at pg_stat_activity on the \
                 coordinator"
                    .into(),
            ));
        }
        thread::sleep(PROGRESS_EVERY);
    }
    coordinator.batch("CALL citus_cleanup_orphaned_resources()")
}

/// Reports the moves of a plan, which are not made.
pub(crate) fn report_planned(moves: &[ShardMove], work: &mut ClusterWork<'_>) {
    let total = moves.iter().map(|one| one.bytes).sum();
    for (at, one) in moves.iter().enumerate() {
        let mut progress = MoveProgress::of(one, at, moves.len(), total, 0);
        progress.state = MoveState::Planned;
        work.report(&ClusterEvent::Move(progress));
    }
}

fn make(
    coordinator: &mut Coordinator,
    moves: &[ShardMove],
    mode: TransferMode,
    work: &mut ClusterWork<'_>,
    totals: &mut MoveTotals,
) -> Result<(), ClusterError> {
    let total = moves.iter().map(|one| one.bytes).sum();
    let started = Instant::now();
    let mut arrived = 0;
    let mut mover = coordinator.another(MOVE_MAX)?;
    for (at, one) in moves.iter().enumerate() {
        work.go_on()?;
        let mut progress = MoveProgress::of(one, at, moves.len(), total, arrived);
        progress.expect(started);
        work.report(&ClusterEvent::Move(progress.clone()));
        let began = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            let moved = watch(coordinator, &mut mover, one, mode, work, &progress, started);
            match moved? {
                Ok(()) => break,
                Err(StatementError::Refused(why)) if tries < TRIES && !work.is_stopped() => {
                    work.note(format!("shard {} is moved again, as {why}", one.shard));
                    coordinator.batch("CALL citus_cleanup_orphaned_resources()")?;
                }
                Err(fault) => {
                    return Err(ClusterError::Database(format!(
                        "shard {} could not be moved from {} to {}: {fault}. The moves before are \
                         complete; mend the cause and run the command again to go on",
                        one.shard, one.from, one.to
                    )));
                }
            }
        }
        arrived += one.bytes;
        totals.moves += 1;
        totals.bytes += one.bytes;
        progress.state = MoveState::Done;
        (progress.bytes_arrived, progress.total_arrived) = (one.bytes, arrived);
        progress.seconds = began.elapsed().as_secs_f64();
        progress.expect(started);
        work.report(&ClusterEvent::Move(progress));
    }
    Ok(())
}

/// Makes a move on a thread of its own, and reports its progress meanwhile.
fn watch(
    coordinator: &mut Coordinator,
    mover: &mut DatabaseSession,
    one: &ShardMove,
    mode: TransferMode,
    work: &mut ClusterWork<'_>,
    progress: &MoveProgress,
    started: Instant,
) -> Result<Result<(), StatementError>, ClusterError> {
    let began = Instant::now();
    let mut told = false;
    thread::scope(|scope| {
        let (done, end) = sync_channel(1);
        scope.spawn(move || {
            let moved = mover.query_once(
                "SELECT citus_move_shard_placement($1, $2, $3, $4, $5, \
                        $6::text::citus.shard_transfer_mode)",
                &[
                    &one.shard,
                    &one.from.host,
                    &one.from.port(),
                    &one.to.host,
                    &one.to.port(),
                    &mode.name(),
                ],
            );
            // The receiver is gone if the coordinator could not be asked for progress.
            let _ = done.send(moved.map(drop));
        });
        loop {
            match end.recv_timeout(PROGRESS_EVERY) {
                Ok(moved) => return Ok(moved),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ClusterError::Away("the thread that moves has failed".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if work.is_stopped() && !told {
                told = true;
                work.note("stopping once this shard has moved");
            }
            // Progress is for people: a move goes on without it.
            let Ok(running) = running_moves(coordinator) else { continue };
            let Some(running) = running.first() else { continue };
            let mut progress = progress.clone();
            progress.state = MoveState::Running;
            progress.bytes_arrived = running.bytes_arrived.min(one.bytes);
            progress.total_arrived += progress.bytes_arrived;
            progress.phase.clone_from(&running.phase);
            progress.seconds = began.elapsed().as_secs_f64();
            progress.expect(started);
            work.report(&ClusterEvent::Move(progress));
        }
    })
}

impl MoveProgress {
    fn of(one: &ShardMove, at: usize, of: usize, total_bytes: u64, total_arrived: u64) -> Self {
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
    fn expect(&mut self, started: Instant) {
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
