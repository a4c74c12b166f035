//! The common parts of all work on a cluster. Work reports its checks and steps, does no step in a
//! dry run, and can be stopped between two steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::ClusterError;
use super::events::{CheckVerdict, ClusterCheck, ClusterEvent, ClusterStep};

/// The options and the reporting of work on a cluster.
pub struct ClusterWork<'a> {
    /// Whether steps are only reported and not done.
    pub dry_run: bool,
    /// The caller sets this flag to stop the work after the current step.
    pub stop: &'a AtomicBool,
    /// Receives all events in order.
    pub report: &'a mut dyn FnMut(&ClusterEvent),
}

impl ClusterWork<'_> {
    pub(crate) fn report(&mut self, event: &ClusterEvent) {
        (self.report)(event);
    }

    pub(crate) fn note(&mut self, words: impl Into<String>) {
        self.report(&ClusterEvent::Note(words.into()));
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Fails if the caller asked to stop.
    pub(crate) fn check_stop(&self) -> Result<(), ClusterError> {
        if self.is_stopped() { Err(ClusterError::Interrupted) } else { Ok(()) }
    }

    /// Carries out a step, and reports the step. In a dry run, only reports the step and returns
    /// `None`.
    pub(crate) fn step<T>(
        &mut self,
        name: &'static str,
        words: impl Into<String>,
        take: impl FnOnce() -> Result<T, ClusterError>,
    ) -> Result<Option<T>, ClusterError> {
        self.check_stop()?;
        let started = Instant::now();
        let taken = if self.dry_run { None } else { Some(take()?) };
        self.report(&ClusterEvent::Step(ClusterStep {
            name,
            words: words.into(),
            taken: taken.is_some(),
            seconds: started.elapsed().as_secs_f64(),
        }));
        Ok(taken)
    }

    /// Reports requirements, and fails if any of them is not met.
    pub(crate) fn require(&mut self, checks: Vec<ClusterCheck>) -> Result<(), ClusterError> {
        // A node that was not asked because of the stop does not count as failed.
        self.check_stop()?;
        let failed = checks.iter().filter(|one| one.verdict == CheckVerdict::Failed).count();
        for check in checks {
            self.report(&ClusterEvent::Check(check));
        }
        if failed > 0 { Err(ClusterError::Requirements(failed)) } else { self.check_stop() }
    }
}
