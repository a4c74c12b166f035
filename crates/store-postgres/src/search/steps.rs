//! The steps of a search in which layouts differ.

use super::found::FinderState;
use super::sessions::StepSession;
use super::state::SearchState;
use crate::error::StatementError;

/// How a layout finds the keys of the records that a query wants, and how it fetches these records.
///
/// If the connection is lost, the step is repeated on another session. So a step that fails must
/// leave the state unchanged. A step may be tried without a session first. It fails with
/// [`StatementError::NoSession`] if it needs a session.
pub(crate) trait SearchSteps: Send {
    /// Finds the next keys or records. Called when no keys are left. Sets [`FinderState::is_over`]
    /// once all keys are found.
    fn find(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        session: StepSession<'_>,
    ) -> Result<(), StatementError>;

    /// Fetches the records of the next keys.
    fn fetch(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        session: StepSession<'_>,
    ) -> Result<(), StatementError>;
}
