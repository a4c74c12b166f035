//! The requests to maintenance, and the last failures of maintenance.

use std::time::Duration;

use super::error::MaintenanceError;

/// Pause of maintenance after a failure, and between two checks of the disk while too little space
/// is free.
pub(super) const REST: Duration = Duration::from_secs(5);

/// A pause of maintenance, because another process writes to the shelf or may soon begin to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MaintenancePause {
    /// Maintenance does not pause.
    #[default]
    Off,
    /// Maintenance pauses once the present job has ended.
    Requested,
    /// Maintenance pauses, and no job runs.
    On,
}

/// Requests to the maintenance thread, and its last failures.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceSignal {
    /// Whether the threads of the shelf must end.
    pub stop: bool,
    /// Whether there may be work.
    pub work: bool,
    pub(super) pause: MaintenancePause,
    /// The first log that must not be rewritten, because another process reads this log and later
    /// ones.
    pub(super) followed_from: Option<u32>,
    /// Size of the archive in bytes at the start of a series of deletes; `None` outside a series.
    pub(super) deletes_from_bytes: Option<u64>,
    /// Why the last round failed.
    pub(super) failed: Option<JobFailure>,
    /// Why the oldest full head could not be sealed; `None` once sealing succeeds.
    pub(super) unsealed: Option<JobFailure>,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobFailure {
    pub(super) why: String,
    /// Whether the disk had too little space.
    pub(super) wants_room: bool,
    /// Whether a later attempt may succeed, because something was lacking, such as disk space.
    pub(super) is_passing: bool,
    /// Number of free bytes that the job requires; 0 if the disk had enough space.
    pub(super) wanted_bytes: u64,
}

impl JobFailure {
    pub(super) fn new(error: &MaintenanceError) -> Self {
        Self {
            why: error.to_string(),
            wants_room: error.wants_room(),
            is_passing: error.is_passing(),
            wanted_bytes: error.wanted_bytes(),
        }
    }

    /// Whether this is the same failure as `before`. Two failures for lack of disk space count as
    /// the same failure, although their texts name different amounts of free space.
    fn is_like(&self, before: Option<&Self>) -> bool {
        before.is_some_and(|before| before == self || (before.wants_room && self.wants_room))
    }
}

impl MaintenanceSignal {
    /// Whether maintenance pauses, and no job runs.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause == MaintenancePause::On
    }

    /// Notes the result of a round. Logs the result unless the same failure was already logged.
    pub(super) fn note_result(&mut self, error: Option<&MaintenanceError>) {
        let rest_s = REST.as_secs();
        let failed = error.map(JobFailure::new);
        match &failed {
            Some(now) if now.is_like(self.failed.as_ref()) => {
                tracing::debug!(error = now.why, rest_s, "maintenance still fails");
            }
            Some(now) => {
                let error = &now.why;
                tracing::error!(
                    error,
                    rest_s,
                    "maintenance failed; it is tried again after a pause"
                );
            }
            None if self.failed.is_some() => tracing::info!("maintenance continues"),
            None => {}
        }
        self.failed = failed;
    }
}
