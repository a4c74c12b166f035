//! The statements and texts that both layouts share. They use only the small tables, which are the
//! same in both layouts.

/// A migration: its number, its name and its text. A released migration is never changed.
pub(crate) type MigrationText = (i32, &'static str, &'static str);

/// Maximum time in milliseconds that a statement waits for the lock of a table that queries read.
/// During this time, new queries of the table wait for the statement.
pub(crate) const LOCK_TIMEOUT_MS: u32 = 50;

/// For each value in `lost`, lowers the number of records. A value without records is deleted.
pub(crate) const LOWER_VALUES: &str = "ended AS (DELETE FROM label_value v USING lost l \
    WHERE v.term = l.term AND v.records <= l.records), \
    lowered AS (UPDATE label_value v SET records = v.records - l.records FROM lost l \
    WHERE v.term = l.term AND v.records > l.records)";

/// Returns a statement that lowers the number of records of each value in $1 by the number in $2.
pub(crate) fn lower_values() -> String {
    format!(
        "WITH lost AS (SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS l(term, records)), \
         {LOWER_VALUES} SELECT count(*) FROM lost"
    )
}

/// A statement that both layouts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SharedStatement {
    /// Begins a transaction.
    Begin,
    /// Deletes the `forbid` rows of records.
    DeleteForbids,
    /// For each value of a label, raises the number of records.
    AddValues,
    /// Reads the values of a label with their numbers of records, ordered by term.
    Values,
    /// Finds records that have expired.
    Expired,
    /// Reads the list of parts.
    Parts,
}

impl SharedStatement {
    /// Returns the statement's name in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::DeleteForbids => "delete_forbids",
            Self::AddValues => "add_values",
            Self::Values => "values",
            Self::Expired => "expired",
            Self::Parts => "parts",
        }
    }

    /// Returns the statement's text.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Begin => "BEGIN",
            Self::DeleteForbids => "DELETE FROM forbid WHERE id = ANY($1::bytea[])",
            Self::AddValues => {
                "INSERT INTO label_value SELECT * FROM \
                unnest($1::bigint[], $2::smallint[], $3::bytea[], $4::bigint[]) \
                ON CONFLICT (term) DO UPDATE SET records = label_value.records + excluded.records"
            }
            Self::Values => {
                "SELECT term, value, records FROM label_value \
                WHERE name = $1 AND term > $2 ORDER BY term LIMIT $3"
            }
            Self::Expired => "SELECT id FROM record WHERE expires <= $1 LIMIT $2",
            Self::Parts => "SELECT start, stop, number FROM part ORDER BY start",
        }
    }
}
