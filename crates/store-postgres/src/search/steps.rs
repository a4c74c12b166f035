//! The steps of a search that depend on the layout of the tables.

use super::found::FinderState;
use super::state::SearchState;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// The way in which a layout finds the keys of a query's records, and fetches the records.
///
/// A failed step changes nothing that a repeated step would miss: after a lost connection, the step
/// is repeated on another session.
pub(crate) trait SearchSteps: Send {
    /// Finds the next keys or records. Called while no keys are left. Sets
    /// [`FinderState::is_over`] when all keys are found.
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
}
