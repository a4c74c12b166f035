//! Lets the writer wait until full heads are sealed.

use std::time::Duration;

use hark_archive::CommitError;

use super::run::maintain_all;
use super::signal::JobFailure;
use crate::engine::heads::must_seal_first;
use crate::engine::shelf::OpenShelf;

/// After a new head has begun, wakes maintenance, and waits while too many heads wait for sealing.
/// If sealing fails for a temporary reason, such as a full disk, the writer does not wait and fills
/// the new head.
pub(crate) fn after_rotation(shelf: &OpenShelf) -> Result<(), CommitError> {
    wait_for_sealing(shelf).or_else(|error| match error {
        CommitError::Unavailable(_) => Ok(()),
        error => Err(error),
    })
}

/// Waits while too many heads wait for sealing. Returns an error if they cannot be sealed. The
/// error is temporary if only disk space, file descriptors or memory are missing. Maintenance then
/// tries again after a pause.
pub(crate) fn wait_for_sealing(shelf: &OpenShelf) -> Result<(), CommitError> {
    let (jobs, options) = (&shelf.jobs, shelf.files.options());
    if !options.background {
        // After a failure the head stays in memory and its log on disk. Sealing is tried again for
        // each new head, while there is memory for more heads.
        let result = maintain_all(shelf);
        jobs.signal().note_result(result.err().as_ref());
    }
    let mut signal = jobs.signal();
    signal.work = true;
    jobs.notify();
    // While maintenance is paused, nothing is sealed. The pause is for another process that takes
    // over after the present batch, so only one head more than usual waits.
    while must_seal_first(options, &shelf.view.load()) && !signal.is_paused() {
        if let Some(JobFailure { why, is_passing, .. }) = &signal.unsealed {
            let error = format!("full heads cannot be sealed into segments: {why}");
            return Err(if *is_passing {
                CommitError::Unavailable(error)
            } else {
                CommitError::Stopped(error)
            });
        }
        if !options.background {
            break;
        }
        jobs.wait_for(&mut signal, Duration::from_millis(50));
    }
    Ok(())
}
