//! The statements of the layout for a Citus cluster. [`sql`](super::sql) has their texts.

use hark_archive::Order;

/// The number of values of a condition. With one value, an index has the rows in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ValueCount {
    /// No condition.
    None,
    /// One value.
    One,
    /// A list with this number of values. Each value has its own index range of one shard.
    Arms(usize),
    /// A list of values.
    Many,
}

impl ValueCount {
    /// Returns the count of a condition's values. `None` means no condition.
    pub(crate) fn of<T>(values: Option<&[T]>) -> Self {
        match values {
            None => Self::None,
            Some([_]) => Self::One,
            Some(_) => Self::Many,
        }
    }
}

/// The table and condition by which a window is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WindowTable {
    /// Keys and places by terms.
    Tag,
    /// Records by authors.
    Author,
    /// Records by kinds, or all.
    Record,
}

/// A statement for a window of time of distributed tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowForm {
    pub(crate) order: Order,
    pub(crate) table: WindowTable,
    /// The number of terms or authors.
    pub(crate) values: ValueCount,
    pub(crate) kinds: ValueCount,
    pub(crate) has_not_kinds: bool,
}

/// A statement that only the layout for a Citus cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CitusStatement {
    /// Locks the shelf and returns its state.
    Lock,
    /// The given keys that are stored.
    Known,
    /// The newest forbidding record of each key.
    Forbids,
    /// Keys of authors' records of a kind.
    Slots,
    /// Keys of records with a term and a kind.
    TermSlots,
    /// Deletes records and their tags.
    Delete,
    /// Inserts records.
    CopyRecords,
    /// Inserts tags.
    CopyTags,
    /// Inserts the `forbid` rows of records.
    AddForbids,
    /// Updates the shelf's state, and notifies other nodes.
    Advance,
    /// The shelf's timeline and number, and records by number.
    News,
    /// The next rows of a window of time.
    Window(WindowForm),
    /// Some keys and places of a window, in no order.
    Few(WindowForm),
    /// The places of ids.
    Places(ValueCount),
    /// Records by place and id, in no order.
    PlacedBodies(ValueCount),
    /// The times of the newest records.
    NewestTimes,
    /// The time of the oldest record.
    OldestTime,
    /// Inserts the places of ids.
    CopyPlaces,
    /// Deletes tags by key.
    DeleteTags,
    /// Deletes the places of ids.
    DeletePlaces,
    /// Waits until no other process commits, and excludes other commits.
    Enter,
    /// Lets other processes commit.
    Leave,
    /// Publishes the newest number if this is not done yet, and lets other processes commit.
    LeavePublished,
    /// Publishes the number of a commit, lets other processes commit, and notifies other nodes.
    LeaveTelling,
    /// The shelf's timeline and the published number.
    Newest,
    /// The shelf's timeline and the number of the put up to which all workers have committed.
    WholeState,
}

impl CitusStatement {
    /// Returns the statement's name in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Known => "known",
            Self::Forbids => "forbids",
            Self::Slots => "slots",
            Self::TermSlots => "term_slots",
            Self::Delete => "delete",
            Self::CopyRecords => "copy_records",
            Self::CopyTags => "copy_tags",
            Self::AddForbids => "add_forbids",
            Self::Advance => "advance",
            Self::News => "news",
            Self::Window(WindowForm { table: WindowTable::Tag, .. }) => "term_window",
            Self::Window(WindowForm { table: WindowTable::Author, .. }) => "author_window",
            Self::Window(WindowForm { table: WindowTable::Record, .. }) => "record_window",
            Self::Few(_) => "few",
            Self::Places(_) => "places",
            Self::PlacedBodies(_) => "placed_bodies",
            Self::NewestTimes => "newest_times",
            Self::OldestTime => "oldest_time",
            Self::CopyPlaces => "copy_places",
            Self::DeleteTags => "delete_tags",
            Self::DeletePlaces => "delete_places",
            Self::Enter => "enter",
            Self::Leave => "leave",
            Self::LeavePublished => "leave_published",
            Self::LeaveTelling => "leave_telling",
            Self::Newest => "newest",
            Self::WholeState => "whole_state",
        }
    }
}
