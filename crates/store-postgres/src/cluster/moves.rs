//! Moves shards with `citus_move_shard_placement`: one group of colocated shards at a time.
//!
//! A move is one statement on the coordinator and ends with one commit. So a move is done
//! completely or not at all. If this process is killed, the coordinator finishes the current move,
//! and the next process waits until the move has ended. If the coordinator is killed, a partly
//! copied shard and a replication slot remain. Citus records both in its tables, and
//! `citus_cleanup_orphaned_resources` removes both.

use std::thread;
use std::time::{Duration, Instant};

use super::ClusterError;
use super::coordinator::Coordinator;
use super::events::{ClusterEvent, MoveProgress, MoveState};
use super::plan::{PlanGoal, ShardMove, TransferMode, plan};
use super::status::running_moves;
use super::watched::NodeSession;
use super::work::ClusterWork;
use crate::error::StatementError;

/// Time limit for moving one group of shards.
pub(crate) const MOVE_MAX: Duration = Duration::from_hours(7 * 24);
/// Interval at which the progress of a move is read.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How long a move may take to end after the caller asked to stop.
const STOP_WAIT: Duration = Duration::from_secs(3);
/// How many times a move is tried if the database refuses it, for example to end a deadlock.
const TRIES: usize = 3;
/// Maximum number of successive plans. A later plan has moves only if tables were created during
/// the moves of the earlier plans.
const PLANS_MAX: usize = 10;

/// How many groups of shards were moved, and their size.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoveTotals {
    /// Number of groups of shards.
    pub moves: usize,
    /// The size of these groups before they were moved.
    pub bytes: u64,
}

/// Plans moves and makes them, until a plan has no moves.
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

/// Waits until the moves of other processes have ended, and removes the remains of interrupted
/// moves.
pub(crate) fn clean_up(
    coordinator: &mut Coordinator,
    work: &mut ClusterWork<'_>,
) -> Result<(), ClusterError> {
    let until = Instant::now() + MOVE_MAX;
    let mut noted = None;
    while let Some(running) = running_moves(coordinator)?.into_iter().next() {
        work.check_stop()?;
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

/// Reports the moves of a plan in a dry run.
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
        work.check_stop()?;
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
                Err(StatementError::Refused(why) | StatementError::Cancelled(why))
                    if tries < TRIES && !work.is_stopped() =>
                {
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

/// Makes a move, and reports its progress. If the caller asks to stop, and the move does not end
/// soon, leaves the move to the coordinator.
fn watch(
    coordinator: &mut Coordinator,
    mover: &mut NodeSession,
    one: &ShardMove,
    mode: TransferMode,
    work: &mut ClusterWork<'_>,
    progress: &MoveProgress,
    started: Instant,
) -> Result<Result<(), StatementError>, ClusterError> {
    let began = Instant::now();
    let mut stopped: Option<Instant> = None;
    let mut seen = (0, String::new());
    let moved = mover.query_with(
        "SELECT citus_move_shard_placement($1, $2, $3, $4, $5, $6::text::citus.shard_transfer_mode)",
        &[
            &one.shard,
            &one.from.host,
            &one.from.port(),
            &one.to.host,
            &one.to.port(),
            &mode.name(),
        ],
        PROGRESS_EVERY,
        |wait| {
            let looked = Instant::now();
            // The progress is only for information: if it cannot be read, the move goes on.
            let running = running_moves(coordinator).unwrap_or_default();
            if let Some(running) = running.into_iter().next() {
                let mut progress = progress.clone();
                progress.state = MoveState::Running;
                progress.bytes_arrived = running.bytes_arrived.min(one.bytes);
                progress.total_arrived += progress.bytes_arrived;
                progress.phase.clone_from(&running.phase);
                progress.seconds = began.elapsed().as_secs_f64();
                progress.expect(started);
                work.report(&ClusterEvent::Move(progress));
                let now = (running.bytes_arrived, running.phase);
                if now != seen {
                    seen = now;
                    wait.is_moving();
                }
            }
            if !work.is_stopped() {
                wait.note_if_due();
                return true;
            }
            if stopped.is_none() {
                work.note("stopping; this move gets a moment to end");
            }
            stopped.get_or_insert(looked).elapsed() < STOP_WAIT
        },
    );
    match moved {
        Err(StatementError::Stopped(_)) => Err(ClusterError::Stopped(format!(
            "the coordinator finishes the move of shard {} from {} to {} by itself, and `hark cluster \
             status` shows this move until then",
            one.shard, one.from, one.to
        ))),
        moved => Ok(moved.map(drop)),
    }
}
