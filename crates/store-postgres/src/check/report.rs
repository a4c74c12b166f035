//! The result of a check.

use std::collections::BTreeMap;
use std::fmt;

use hark_codec::hex::encode_into;

/// Maximum number of faults of one sort that are listed. Further faults are only counted.
const LISTED_MAX: usize = 20;

/// The sorts of faults in a shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultSort {
    /// A record's bytes cannot be read.
    Unreadable,
    /// A record's message is damaged, or does not match the record's id.
    Message,
    /// A column of a record differs from its bytes.
    Column,
    /// A record has the sequence number of another record, or a number above the newest.
    Number,
    /// A record is in the table of another part.
    Part,
    /// The list of parts differs from the tables.
    PartTable,
    /// A record has a newer version.
    OldVersion,
    /// A stored deletion forbids a record.
    Forbidden,
    /// The row of a label is missing.
    LabelMissing,
    /// There is more than one row for a label of a record.
    LabelDouble,
    /// The row of a label belongs to no record.
    LabelOrphan,
    /// A row that forbids other records is missing.
    ForbidMissing,
    /// A row that forbids other records belongs to no record.
    ForbidOrphan,
    /// A row of a record's words is missing.
    WordMissing,
    /// A row of words belongs to no record.
    WordOrphan,
    /// The row that leads from an id to its record is missing or wrong (on a cluster).
    PlaceMissing,
    /// The row that leads from an id to its record has no record (on a cluster).
    PlaceOrphan,
    /// A row is in another shard than the shard of its key (on a cluster).
    Shard,
    /// A counter that commits maintain is wrong.
    Counter,
    /// A transaction over several nodes was never ended (on a cluster).
    Prepared,
}

/// The way to repair a sort of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Remedy {
    /// Damaged records must come from a backup or from another archive.
    Restore,
    /// The records are undamaged. A rebuild, or a copy of the archive, recreates all other rows
    /// from the records.
    Rebuild,
    /// A transaction must be ended on its node.
    EndTransaction,
}

impl FaultSort {
    /// Returns the short name of the sort, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Message => "message",
            Self::Column => "column",
            Self::Number => "number",
            Self::Part => "part",
            Self::PartTable => "part_table",
            Self::OldVersion => "old_version",
            Self::Forbidden => "forbidden",
            Self::LabelMissing => "label_missing",
            Self::LabelDouble => "label_double",
            Self::LabelOrphan => "label_orphan",
            Self::ForbidMissing => "forbid_missing",
            Self::ForbidOrphan => "forbid_orphan",
            Self::WordMissing => "word_missing",
            Self::WordOrphan => "word_orphan",
            Self::PlaceMissing => "place_missing",
            Self::PlaceOrphan => "place_orphan",
            Self::Shard => "shard",
            Self::Counter => "counter",
            Self::Prepared => "prepared",
        }
    }

    /// Returns the title of the sort in a table of faults.
    pub fn title(self) -> &'static str {
        match self {
            Self::Unreadable => "records that cannot be read",
            Self::Message => "damaged messages",
            Self::Column => "columns that differ from the record",
            Self::Number => "wrong numbers of records",
            Self::Part => "records in the table of another part",
            Self::PartTable => "parts that differ from their tables",
            Self::OldVersion => "records with a newer version",
            Self::Forbidden => "records that a deletion forbids",
            Self::LabelMissing => "missing rows of labels",
            Self::LabelDouble => "double rows of labels",
            Self::LabelOrphan => "rows of labels without a record",
            Self::ForbidMissing => "missing rows of deletions",
            Self::ForbidOrphan => "rows of deletions without a record",
            Self::WordMissing => "missing rows of words",
            Self::WordOrphan => "rows of words without a record",
            Self::PlaceMissing => "missing rows of ids",
            Self::PlaceOrphan => "rows of ids without a record",
            Self::Shard => "shards with rows of other shards",
            Self::Counter => "wrong counters",
            Self::Prepared => "transactions that were not ended",
        }
    }

    /// Returns the way to repair faults of this sort.
    pub fn remedy(self) -> Remedy {
        match self {
            Self::Unreadable | Self::Message => Remedy::Restore,
            Self::Prepared => Remedy::EndTransaction,
            _ => Remedy::Rebuild,
        }
    }
}

/// A fault in a shelf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseFault {
    /// The sort of the fault.
    pub sort: FaultSort,
    /// The id of the record, in hex digits; `None` if the fault belongs to no record.
    pub id: Option<String>,
    /// The details of the fault.
    pub what: String,
}

impl DatabaseFault {
    pub(crate) fn of(sort: FaultSort, id: &[u8], what: impl Into<String>) -> Self {
        Self { sort, id: Some(hex(id)), what: what.into() }
    }

    pub(crate) fn general(sort: FaultSort, what: impl Into<String>) -> Self {
        Self { sort, id: None, what: what.into() }
    }
}

impl fmt::Display for DatabaseFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => write!(f, "{id}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseCheck {
    /// Number of records.
    pub records: u64,
    /// Number of rows of labels that the records have.
    pub labels: u64,
    /// Number of rows of words that the records have.
    pub words: u64,
    /// Number of parts.
    pub parts: u64,
    /// For each sort, its number of faults; empty if there are no faults.
    pub counts: BTreeMap<FaultSort, u64>,
    /// The first faults of each sort.
    pub faults: Vec<DatabaseFault>,
    /// Comparisons that were left out, with the reason.
    pub notes: Vec<String>,
}

impl DatabaseCheck {
    /// Returns the number of all faults, listed or not.
    pub fn fault_count(&self) -> u64 {
        self.counts.values().sum()
    }

    pub(crate) fn add(&mut self, fault: DatabaseFault) {
        self.add_counted(fault.sort, 1, std::iter::once(fault));
    }

    /// Adds `number` faults of a sort, of which some are known.
    pub(crate) fn add_counted(
        &mut self,
        sort: FaultSort,
        number: u64,
        known: impl Iterator<Item = DatabaseFault>,
    ) {
        let count = self.counts.entry(sort).or_default();
        let free = (LISTED_MAX as u64).saturating_sub(*count).min(number);
        *count += number;
        self.faults.extend(known.take(free as usize));
    }
}

/// Returns bytes as hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut digits = Vec::new();
    encode_into(bytes, &mut digits);
    String::from_utf8_lossy(&digits).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_faults_are_counted_and_the_first_of_each_sort_are_listed() {
        let mut report = DatabaseCheck::default();
        for number in 0..30_u8 {
            report.add(DatabaseFault::of(FaultSort::Column, &[number], "time"));
        }
        report.add(DatabaseFault::general(FaultSort::Counter, "one"));
        assert_eq!((report.fault_count(), report.faults.len()), (31, LISTED_MAX + 1));
        assert_eq!(report.faults[1].to_string(), "01: time");
        assert_eq!(report.faults[LISTED_MAX].to_string(), "one");
    }
}
