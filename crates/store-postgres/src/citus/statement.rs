//! The statements of the layout for a Citus cluster. [`sql`](super::sql) has their texts.

use hark_archive::Order;

use super::shards::ShardSet;

/// The number of values of a condition. With one value, the rows in the index are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ValueCount {
    /// No condition.
    None,
    /// One value.
    One,
    /// A list with this number of values. Each value has its own ordered index range in one shard.
    Arms(usize),
    /// A list of any number of values.
    Many,
    /// A list of any number of values, where each value is looked up separately. Citus refuses such
    /// statements, so they are executed only on a shard's own table.
    Each,
}

impl ValueCount {
    /// Returns the count of a condition's values. `None` stands for no condition.
    pub(crate) fn of<T>(values: Option<&[T]>) -> Self {
        match values {
            None => Self::None,
            Some([_]) => Self::One,
            Some(_) => Self::Many,
        }
    }
}

/// The table from which a window is read, and the column of the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WindowTable {
    /// Keys and places, by terms.
    Tag,
    /// Records, by authors.
    Author,
    /// Records, by kinds; or all records.
    Record,
}

impl WindowTable {
    pub(crate) fn sharded(self) -> ShardedTable {
        match self {
            Self::Tag => ShardedTable::Tag,
            Self::Author | Self::Record => ShardedTable::Record,
        }
    }
}

/// A statement for a window of time of distributed tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowForm {
    pub(crate) order: Order,
    pub(crate) table: WindowTable,
    /// How many terms or authors the condition has.
    pub(crate) values: ValueCount,
    pub(crate) kinds: ValueCount,
    pub(crate) has_not_kinds: bool,
}

/// A distributed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShardedTable {
    /// Records, by place.
    Record,
    /// Places of ids, by id.
    Place,
    /// Keys of records, by term.
    Tag,
}

impl ShardedTable {
    pub(super) const ALL: [Self; 3] = [Self::Record, Self::Place, Self::Tag];

    /// Returns the name of the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Place => "id_place",
            Self::Tag => "tag",
        }
    }
}

/// A statement on the own table of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShardForm {
    /// Reads the next rows of a window of time.
    Window(WindowForm),
    /// Reads some keys and places of a window, in no order.
    Few(WindowForm),
    /// Finds the places of ids.
    Places,
    /// Reads records by id, in no order.
    Bodies,
}

impl ShardForm {
    /// Returns the table to which the shard belongs.
    pub(crate) fn table(self) -> ShardedTable {
        match self {
            Self::Window(form) | Self::Few(form) => form.table.sharded(),
            Self::Places => ShardedTable::Place,
            Self::Bodies => ShardedTable::Record,
        }
    }
}

/// A statement that only the layout for a Citus cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CitusStatement {
    /// Locks the shelf and returns its state.
    Lock,
    /// Finds the ids that are already stored, among the given ids.
    Known,
    /// Finds records by their places and the first 8 bytes of their ids.
    KnownRecords,
    /// Finds the places of records by the first 8 bytes of their ids.
    RecordPlaces,
    /// Finds the times of records by the first 8 bytes of their ids.
    RecordTimes,
    /// Finds the newest forbidding record of each key.
    Forbids,
    /// Finds the keys of records of an author and a kind.
    Slots,
    /// Finds the keys of records with a term and a kind.
    TermSlots,
    /// Deletes records and their tags.
    Delete,
    /// Inserts records.
    CopyRecords,
    /// Inserts tags.
    CopyTags,
    /// Inserts the `forbid` rows of records.
    AddForbids,
    /// Updates the shelf's state.
    Advance,
    /// Reads records by number.
    News,
    /// Reads the next rows of a window of time.
    Window(WindowForm),
    /// Reads some keys and places of a window, in no order.
    Few(WindowForm),
    /// Finds the places of ids.
    Places(ValueCount),
    /// Reads records by place and id, in no order.
    PlacedBodies(ValueCount),
    /// Reads the times of the newest records.
    NewestTimes,
    /// Reads the time of the oldest record.
    OldestTime,
    /// Inserts the places of ids.
    CopyPlaces,
    /// Deletes tags by key.
    DeleteTags,
    /// Deletes the places of ids.
    DeletePlaces,
    /// Waits until no other process commits, and keeps other processes from committing until the
    /// transaction ends.
    Enter,
    /// Publishes the number of a commit.
    Publish,
    /// Publishes the number of a commit, and notifies other nodes.
    PublishTelling,
    /// Reads the shelf's timeline, and the published number.
    Newest,
    /// Reads the shelf's timeline, and the number up to which the workers have committed all puts.
    WholeState,
    /// Reads the own table of the shard with this number. Only the node that has the shard can
    /// execute the statement.
    OnShard(ShardForm, i64),
    /// Reads the next rows of a window of time from all these shards. Only the node that has all of
    /// them can execute the statement.
    OnShards(WindowForm, ShardSet),
}

impl CitusStatement {
    /// Returns the statement's name in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Known => "known",
            Self::KnownRecords => "known_records",
            Self::RecordPlaces => "record_places",
            Self::RecordTimes => "record_times",
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
            Self::Publish => "publish",
            Self::PublishTelling => "publish_telling",
            Self::Newest => "newest",
            Self::WholeState => "whole_state",
            Self::OnShards(..) => "shards_window",
            Self::OnShard(form, _) => match form {
                ShardForm::Window(WindowForm { table: WindowTable::Tag, .. }) => {
                    "shard_term_window"
                }
                ShardForm::Window(WindowForm { table: WindowTable::Author, .. }) => {
                    "shard_author_window"
                }
                ShardForm::Window(WindowForm { table: WindowTable::Record, .. }) => {
                    "shard_record_window"
                }
                ShardForm::Few(_) => "shard_few",
                ShardForm::Places => "shard_places",
                ShardForm::Bodies => "shard_bodies",
            },
        }
    }
}
