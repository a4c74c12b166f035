//! The sessions on which a search runs.

use crate::error::StatementError;
use crate::session::DatabaseSession;

/// The sessions on which a search runs its statements.
pub(crate) trait Sessions {
    /// Calls `work` with a session. If this session is lost, calls `work` again with another
    /// session.
    fn with<T>(
        &mut self,
        work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError>;
}

impl Sessions for DatabaseSession {
    fn with<T>(
        &mut self,
        mut work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        work(self)
    }
}
