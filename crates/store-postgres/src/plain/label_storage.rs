//! The two forms of the tables for one server: with and without a table of labels.

use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Where the tables for one server have the labels of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelStorage {
    /// The table `tag` has a row for each label.
    Rows,
    /// Only the records have their labels. The tables are slim.
    Records,
}

/// Reads where the tables have the labels of records.
pub(super) fn label_storage(session: &mut DatabaseSession) -> Result<LabelStorage, StatementError> {
    let text = "SELECT FROM pg_class WHERE oid = to_regclass('tag') AND relkind = 'v'";
    let is_slim = !session.query_once(text, &[])?.is_empty();
    Ok(if is_slim { LabelStorage::Records } else { LabelStorage::Rows })
}
