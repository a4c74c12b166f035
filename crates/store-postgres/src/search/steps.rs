//! The steps of a search in which layouts differ.

use super::found::FinderState;
use super::state::SearchState;
use crate::deadline::Deadline;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// How a layout finds the keys of the records that a query wants, and how it fetches these records.
///
/// If the connection is lost, the step is repeated on another session. So a step that fails must
/// leave the state unchanged.
pub(crate) trait SearchSteps: Send {
    /// Finds the next keys or records. Called when no keys are left. Sets [`FinderState::is_over`]
    /// once all keys are found.
    fn find(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        session: &mut DatabaseSession,
    ) -> Result<(), StatementError>;

    /// Fetches the records of the next keys.
    fn fetch(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        session: &mut DatabaseSession,
    ) -> Result<(), StatementError>;

    /// Does the same as `find`, or as `fetch` if keys are left, without a session with the
    /// database. Fails with [`StatementError::NoSession`] if this is impossible.
    fn aside(
        &mut self,
        _: &mut FinderState,
        _: &SearchState,
        _: Option<Deadline>,
    ) -> Result<(), StatementError> {
        Err(StatementError::NoSession)
    }
}
