//! One run of maintenance: all due jobs in one round.

use super::dead::DeadBytes;
use super::due::due_merge;
use super::erase::{begin_erasing, end_erasing};
use super::error::MaintenanceError;
use super::rewrite::RewriteOrder;
use super::round::MaintenanceRound;
use crate::engine::shelf::OpenShelf;
use crate::log::Log;
use crate::space::pressure::{defers_rewrites, lacks_space};
use crate::space::writes::recheck_space;

/// Share of dead bytes above which a log is rewritten even during a series of deletes, because such
/// a rewrite copies few bytes.
const DEAD_SHARE_ENOUGH: f64 = 0.9;

/// Runs all maintenance jobs that are due.
pub(crate) fn maintain_all(shelf: &OpenShelf) -> Result<(), MaintenanceError> {
    let OpenShelf { files, view, jobs, .. } = shelf;
    let options = files.options();
    let _one_at_a_time = jobs.run_alone();
    let stop = || jobs.is_stopped();
    let mut round = MaintenanceRound::new(shelf, &stop);
    let erasing = if stop() { None } else { begin_erasing(shelf) };
    let is_lacking = lacks_space(files, jobs);
    round.seal();
    let active = view.load().active.log.clone();
    let is_erased = erasing.as_ref().is_some_and(|round| round.logs.contains(&active.number));
    // The head of a small log is not sealed early, because many small logs would take more space
    // than rewrites free.
    let gives_back = active.written() >= (options.log_bytes_max / 16).max(1 << 20)
        && active.dead_share() > options.rewrite_dead_share;
    let puts_off = || defers_rewrites(jobs, &view.load());
    if is_erased || (is_lacking && gives_back && !puts_off()) {
        round.seal_head();
    }
    round.merge(due_merge);
    let share_max = if puts_off() {
        DEAD_SHARE_ENOUGH.max(options.rewrite_dead_share)
    } else {
        options.rewrite_dead_share
    };
    round.rewrite(RewriteOrder::Oldest, &|log| log.dead_share() > share_max, &mut |_| {});
    if !puts_off() {
        let spread = || DeadBytes::of(&view.load(), options).spread;
        let spread_too_far = |_: &Log| spread() > files.bounds().dead_bytes_max;
        round.rewrite(RewriteOrder::Worst, &spread_too_far, &mut |_| {});
        let helps = |log: &Log| log.droppable_bytes() > 0 && lacks_space(files, jobs);
        round.rewrite(RewriteOrder::Worst, &helps, &mut |_| {});
    }
    if let Some(mut erasing) = erasing {
        round.erase(&mut erasing.logs);
        end_erasing((files, jobs), erasing, stop());
    }
    let ended = round.end();
    if !stop() {
        recheck_space(files, jobs);
    }
    ended
}
