//! The tables of a shelf's records, and their SQL. The rest of the crate uses forms of statements
//! and parts of a shelf, and gets their SQL from the layout.

pub(crate) use citus::CitusLayout;
pub(crate) use form::{StatementForm, ValueCount, WindowForm, WindowTable};
pub(crate) use plain::PlainLayout;

mod citus;
mod form;
mod plain;
mod words;

/// A migration: its number, its name and its text. A released migration is never changed.
pub(crate) type MigrationText = (i32, &'static str, &'static str);

/// How long a statement may wait for the lock of tables that queries read. Queries wait behind such
/// a statement.
pub(crate) const LOCK_TIMEOUT_MS: u32 = 50;

/// A layout. Names of tables are found through the session's search path.
pub(crate) trait Layout: Send + Sync {
    /// Returns the text of a statement, which a session prepares once.
    fn text(&self, form: StatementForm) -> String;

    /// Settings of every session, by name.
    fn settings(&self) -> &'static [(&'static str, &'static str)];

    /// The migrations that create the tables, in order.
    fn migrations(&self) -> &'static [MigrationText];

    /// Whether tables are divided into shards. If so, searches read windows of time instead of many
    /// index ranges, and a commit needs the places of records.
    fn is_distributed(&self) -> bool {
        false
    }

    /// Statements that make the tables of a part with times from `start` up to, but not including,
    /// `stop`. A commit executes them in this order.
    fn make_part(&self, number: u64, start: i64, stop: i64) -> Vec<String>;

    /// The statements of [`Layout::make_part`] for those tables of words that do not exist.
    fn make_word_tables(&self, number: u64, start: i64, stop: i64) -> Vec<String>;

    /// Counts the records of a part that have the kinds in $1, up to $2 records. Also counts their
    /// rows, including those of their labels and words.
    fn count_spared(&self, number: i64) -> String;

    /// Counts at most $2 records with numbers above $1, in a part or a retired part. Also returns
    /// the number of the last record.
    fn count_part(&self, number: i64, retired: bool) -> String;

    /// Detaches a part of `records` records, and keeps its `moved` records of `spared` kinds.
    fn retire_part(&self, number: i64, spared: &[i32], records: i64, moved: i64) -> String;

    /// Drops the tables of a detached part, and ends the transaction. `counted` records were
    /// subtracted for the part, which had `records`.
    fn drop_part(&self, number: i64, counted: i64, records: i64) -> String;

    /// Adds the spared records to the numbers of their labels' values, in the transaction of
    /// [`Layout::retire_part`]. The numbers include the whole part until it is dropped.
    fn keep_spared_values(&self) -> &'static str;

    /// Counts at most $2 records with numbers above $1 of a retired part, by listed value. Also
    /// returns the number of the last record, or NULL without records.
    fn count_values(&self, number: i64) -> String;

    /// Lowers the numbers of records of the values in $1 by those in $2.
    fn lower_values(&self) -> String;

    /// Sizes of the schema $1: records, bytes, bytes of indices, dead rows, oldest and newest time,
    /// and the number of the newest put.
    fn sizes(&self) -> &'static str;
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use hark_archive::Order;

    use super::*;

    /// Every text of a layout, with its name.
    fn texts(layout: &dyn Layout) -> String {
        let mut out = String::new();
        let mut add = |name: String, text: &str| {
            let _ = writeln!(out, "-- {name}\n{text}");
        };
        for form in forms(layout.is_distributed()) {
            add(format!("{form:?}"), &layout.text(form));
        }
        for (at, text) in layout.make_part(19_000, -7, 7).iter().enumerate() {
            add(format!("make_part {at}"), text);
        }
        add("count_spared".into(), &layout.count_spared(19_000));
        add("count_part".into(), &layout.count_part(19_000, false));
        add("count_part retired".into(), &layout.count_part(19_000, true));
        add("retire_part".into(), &layout.retire_part(19_000, &[5, 62], 100, 3));
        add("drop_part".into(), &layout.drop_part(19_000, 100, 98));
        add("keep_spared_values".into(), layout.keep_spared_values());
        add("count_values".into(), &layout.count_values(19_000));
        add("lower_values".into(), &layout.lower_values());
        add("sizes".into(), layout.sizes());
        for (name, value) in layout.settings() {
            add(format!("setting {name}"), value);
        }
        for (number, name, text) in layout.migrations() {
            add(format!("migration {number} {name}"), text);
        }
        out
    }

    fn forms(is_distributed: bool) -> Vec<StatementForm> {
        let mut forms = Vec::new();
        if is_distributed {
            return distributed_forms();
        }
        for order in [Order::NewestFirst, Order::OldestFirst] {
            forms.extend([
                StatementForm::TermKeys(order),
                StatementForm::AuthorKeys(order),
                StatementForm::KindKeys(order),
                StatementForm::TimeKeys(order),
                StatementForm::TimeKeysBut(order),
                StatementForm::TimePage(order, None),
                StatementForm::TimePage(order, Some(7)),
                StatementForm::TimePageBut(order, None),
                StatementForm::WordKeys(order),
                StatementForm::TermTimePage(order, None),
                StatementForm::TermTimePage(order, Some(7)),
            ]);
            for ranges in [1, 3] {
                forms.extend([
                    StatementForm::TermPage(order, ranges, None),
                    StatementForm::TermPage(order, ranges, Some(7)),
                    StatementForm::AuthorPage(order, ranges, None),
                    StatementForm::AuthorPage(order, ranges, Some(7)),
                    StatementForm::KindPage(order, ranges, None),
                ]);
            }
        }
        forms.extend([
            StatementForm::Ids { whole: false },
            StatementForm::Ids { whole: true },
            StatementForm::TermFew,
            StatementForm::AuthorFew,
            StatementForm::TermFewBut,
            StatementForm::AuthorFewBut,
            StatementForm::ListedSize,
            StatementForm::TermKinds,
            StatementForm::AuthorKinds,
            StatementForm::TermSize,
            StatementForm::AuthorSize,
            StatementForm::TermSizeBut,
            StatementForm::AuthorSizeBut,
            StatementForm::Bodies(None),
            StatementForm::Bodies(Some(7)),
            StatementForm::Begin,
            StatementForm::Lock,
            StatementForm::Known,
            StatementForm::Forbids,
            StatementForm::Slots,
            StatementForm::TermSlots,
            StatementForm::NamedRecords,
            StatementForm::Delete,
            StatementForm::DeleteListed,
            StatementForm::DeleteForbids,
            StatementForm::CopyRecords,
            StatementForm::CopyTags,
            StatementForm::AddForbids,
            StatementForm::AddValues,
            StatementForm::Values,
            StatementForm::Advance,
            StatementForm::News,
            StatementForm::Newest,
            StatementForm::Expired,
            StatementForm::Parts,
            StatementForm::WordState,
            StatementForm::WordsFrom,
            StatementForm::WordSize,
            StatementForm::WordBodies(None),
            StatementForm::WordBodies(Some(7)),
            StatementForm::WordedBodies(None),
            StatementForm::WordedBodies(Some(7)),
            StatementForm::CopyWords,
            StatementForm::CopyWorded,
            StatementForm::AdvanceWords,
            StatementForm::StillThere,
        ]);
        forms
    }

    /// The forms whose texts differ from the layout for one server.
    fn distributed_forms() -> Vec<StatementForm> {
        let (none, one, many) = (ValueCount::None, ValueCount::One, ValueCount::Many);
        let window = |table, values, kinds, has_not_kinds| {
            let order = Order::NewestFirst;
            StatementForm::Window(WindowForm { order, table, values, kinds, has_not_kinds })
        };
        vec![
            window(WindowTable::Tag, one, one, false),
            window(WindowTable::Tag, one, ValueCount::Arms(2), false),
            window(WindowTable::Tag, many, none, true),
            window(WindowTable::Author, one, one, false),
            window(WindowTable::Author, many, many, false),
            window(WindowTable::Record, none, one, false),
            window(WindowTable::Record, none, none, true),
            StatementForm::Window(WindowForm {
                order: Order::OldestFirst,
                table: WindowTable::Tag,
                values: many,
                kinds: many,
                has_not_kinds: false,
            }),
            StatementForm::Few(WindowForm {
                order: Order::NewestFirst,
                table: WindowTable::Author,
                values: many,
                kinds: many,
                has_not_kinds: false,
            }),
            StatementForm::Places(one),
            StatementForm::Places(many),
            StatementForm::PlacedBodies(one),
            StatementForm::PlacedBodies(many),
            StatementForm::PlacedBodies(none),
            StatementForm::NewestTimes,
            StatementForm::OldestTime,
            StatementForm::Enter,
            StatementForm::Lock,
            StatementForm::Known,
            StatementForm::Forbids,
            StatementForm::Slots,
            StatementForm::TermSlots,
            StatementForm::DeleteListed,
            StatementForm::DeleteTags,
            StatementForm::DeletePlaces,
            StatementForm::CopyRecords,
            StatementForm::CopyTags,
            StatementForm::CopyPlaces,
            StatementForm::AddForbids,
            StatementForm::Advance,
            StatementForm::Leave,
            StatementForm::LeaveTelling,
            StatementForm::WholeState,
            StatementForm::News,
        ]
    }

    fn compare(layout: &dyn Layout, name: &str, looked_at: &str) {
        let texts = texts(layout);
        if texts != looked_at {
            let now = std::env::temp_dir().join(name);
            std::fs::write(&now, texts).unwrap();
            panic!("texts differ from src/layout/{name}; those of now are in {}", now.display());
        }
    }

    /// Changing a statement changes the plans of all databases with this layout. To accept it,
    /// copy this test's output over the snapshot.
    #[test]
    fn no_text_has_changed_since_it_was_last_looked_at() {
        compare(&PlainLayout, "plain.snapshot.sql", include_str!("plain.snapshot.sql"));
        compare(&CitusLayout, "citus.snapshot.sql", include_str!("citus.snapshot.sql"));
    }
}
