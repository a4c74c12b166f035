//! A statement of any layout: its name and its text.

use crate::citus::{CitusStatement, sql as citus_sql};
use crate::layout::SharedStatement;
use crate::plain::{PlainStatement, sql as plain_sql};

/// A statement that is prepared once per session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StatementForm {
    /// A statement of both layouts.
    Shared(SharedStatement),
    /// A statement of the layout for one server.
    Plain(PlainStatement),
    /// A statement of the layout for a Citus cluster.
    Citus(CitusStatement),
}

impl StatementForm {
    /// Returns the statement's name in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shared(statement) => statement.name(),
            Self::Plain(statement) => statement.name(),
            Self::Citus(statement) => statement.name(),
        }
    }

    /// Returns the statement's text.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Shared(statement) => statement.text().into(),
            Self::Plain(statement) => plain_sql::text(statement),
            Self::Citus(statement) => citus_sql::text(statement),
        }
    }
}

impl From<SharedStatement> for StatementForm {
    fn from(statement: SharedStatement) -> Self {
        Self::Shared(statement)
    }
}

impl From<PlainStatement> for StatementForm {
    fn from(statement: PlainStatement) -> Self {
        Self::Plain(statement)
    }
}

impl From<CitusStatement> for StatementForm {
    fn from(statement: CitusStatement) -> Self {
        Self::Citus(statement)
    }
}
