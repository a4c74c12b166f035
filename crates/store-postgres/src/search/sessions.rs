//! The sessions on which a search runs.

use crate::deadline::Deadline;
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

    /// Calls `work` without a session, within the time of the question. Fails with
    /// [`StatementError::NoSession`] if the caller wants all statements on its session.
    fn aside<T>(
        &mut self,
        work: impl FnOnce(Option<Deadline>) -> Result<T, StatementError>,
    ) -> Result<T, StatementError>;
}

impl Sessions for DatabaseSession {
    fn with<T>(
        &mut self,
        mut work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        work(self)
    }

    fn aside<T>(
        &mut self,
        _: impl FnOnce(Option<Deadline>) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        Err(StatementError::NoSession)
    }
}
