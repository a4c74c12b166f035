//! Why a statement failed.

use std::time::Duration;

use hark_archive::SearchError;
use tokio_postgres::error::Severity;

use crate::address::{ConnectError, with_cause};

/// Why a statement failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StatementError {
    /// The database cannot be reached, or the connection was lost. If a statement was in progress,
    /// it may or may not have been executed.
    #[error("the database is away: {0}")]
    Away(String),
    /// The database has not answered within this time. The connection is closed. If a statement was
    /// in progress, it may still be executed.
    #[error("the database did not answer within {} s", (.0.as_secs_f64() * 100.0).round() / 100.0)]
    Late(Duration),
    /// The database refused the statement.
    #[error("the database refused: {0}")]
    Refused(String),
    /// The database cancelled the statement, which took too long.
    #[error("the database refused: {0}")]
    Cancelled(String),
    /// The database refused the statement because a table's lock was not free in time.
    #[error("the database refused, as others use what is to be changed: {0}; try again")]
    Busy(String),
    /// The database refused a row because another row has the same key.
    #[error("the database refused: {0}")]
    Exists(String),
    /// A pooler shares the connection with other sessions, which change its settings.
    #[error(
        "a pooler gives this session's statements to connections of other sessions, as PgBouncer does \
         with pool_mode = transaction; Hark needs a connection for as long as a session lasts: set \
         pool_mode = session for its database, or name PostgreSQL itself"
    )]
    Shared,
    /// A worker of the cluster has failed. The coordinator has not failed, and its session can be
    /// used again.
    #[error("{0}")]
    Worker(Box<StatementError>),
    /// The database has committed, but with a warning: a worker of the cluster may not have ended
    /// the commit, or a synchronous standby may not have received the commit.
    #[error("the commit is not safe yet: {0}")]
    NotEnded(String),
    /// The replica lacks records that the query must see.
    #[error("it lacks the newest records")]
    Behind,
    /// The work needs a session with the database, and its caller has none. The work is repeated
    /// with a session.
    #[error("a session with the database is needed")]
    NoSession,
    /// The caller asked to stop. If the statement may still run, the text names its process.
    #[error("it was asked to stop")]
    Stopped(Option<String>),
    /// The database refused the statement because a table does not exist.
    #[error("the database refused: {0}")]
    Missing(String),
}

impl From<ConnectError> for StatementError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Database(error) => Self::new(&error),
            error @ (ConnectError::Certificate(_) | ConnectError::Password(_)) => {
                Self::Away(error.to_string())
            }
        }
    }
}

impl StatementError {
    pub(crate) fn new(error: &tokio_postgres::Error) -> Self {
        let Some(refused) = error.as_db_error() else {
            return Self::Away(with_cause(error));
        };
        let detail = refused.detail().map_or(String::new(), |detail| format!(" ({detail})"));
        let said = format!("{}{detail}", refused.message());
        // The server is shutting down or starting up, or has no free connections.
        let code = refused.code().code();
        if code.starts_with("57P") || code.starts_with("08") || code == "53300" {
            // Such an error of the server itself is fatal and ends the session. If the severity is
            // only ERROR, the coordinator has passed on the error of a worker.
            if refused.parsed_severity() == Some(Severity::Error) {
                Self::Worker(Box::new(Self::Away(said)))
            } else {
                Self::Away(said)
            }
        } else if code == "57014" {
            Self::Cancelled(said)
        } else if code == "42P01" {
            Self::Missing(said)
        } else if code == "55P03" {
            Self::Busy(said)
        } else if code == "23505" {
            Self::Exists(said)
        } else {
            Self::Refused(said)
        }
    }

    /// Whether the session cannot be used any longer.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Late(_) | Self::NotEnded(_))
    }

    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Self::Late(_))
    }
}

impl From<StatementError> for SearchError {
    fn from(fault: StatementError) -> Self {
        let words = fault.to_string();
        let is_late = match &fault {
            StatementError::Worker(fault) => fault.is_late(),
            fault => fault.is_late(),
        };
        if is_late { Self::Late(words) } else { Self::Failed(words) }
    }
}
