//! The sessions on which a search runs.

use crate::deadline::Deadline;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// The session on which a step of a search runs, if any.
pub(crate) struct StepSession<'a> {
    pub(crate) session: Option<&'a mut DatabaseSession>,
    /// The deadline of the question.
    pub(crate) deadline: Option<Deadline>,
}

impl<'a> StepSession<'a> {
    pub(crate) fn with(session: &'a mut DatabaseSession) -> Self {
        let deadline = session.deadline;
        Self { session: Some(session), deadline }
    }

    /// Returns the session, or fails if there is none.
    pub(crate) fn required(&mut self) -> Result<&mut DatabaseSession, StatementError> {
        self.session.as_deref_mut().ok_or(StatementError::NoSession)
    }
}

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
