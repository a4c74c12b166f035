//! The texts of both layouts are compared with stored snapshots.

use std::fmt::{Debug, Write as _};

use hark_archive::Order;

use super::{Layout, SharedStatement, lower_values};
use crate::citus::{
    CitusLayout, CitusStatement, ShardForm, ShardSet, ValueCount, WindowForm, WindowTable,
};
use crate::plain::{IndexPage, LabelStorage, PlainLayout, PlainStatement, WindowRows, part_sql};
use crate::statement::StatementForm;

/// The SQL of a layout that the snapshot lists with names: its statements, and SQL texts that are
/// not statements of their own.
struct LayoutTexts {
    statements: Vec<(String, StatementForm)>,
    others: Vec<(String, String)>,
}

/// Returns every text of a layout, with its name.
fn texts(layout: &dyn Layout, texts: LayoutTexts) -> String {
    let mut out = String::new();
    let mut add = |name: &str, text: &str| {
        let _ = writeln!(out, "-- {name}\n{text}");
    };
    for (name, form) in texts.statements {
        add(&name, &form.text());
    }
    for (name, text) in texts.others {
        add(&name, &text);
    }
    add("sizes", layout.sizes());
    for (name, value) in layout.settings() {
        add(&format!("setting {name}"), value);
    }
    for (number, name, text) in layout.migrations() {
        add(&format!("migration {number} {name}"), text);
    }
    out
}

fn named<T: Debug + Into<StatementForm>>(statement: T) -> (String, StatementForm) {
    (format!("{statement:?}"), statement.into())
}

fn plain_statements() -> Vec<(String, StatementForm)> {
    let mut forms = Vec::new();
    for order in [Order::NewestFirst, Order::OldestFirst] {
        forms.extend([
            named(PlainStatement::TermKeys(order)),
            named(PlainStatement::AuthorKeys(order)),
            named(PlainStatement::KindKeys(order)),
            named(PlainStatement::TimeKeys(order)),
            named(PlainStatement::TimeKeysBut(order)),
            named(PlainStatement::TimePage(order, IndexPage::All)),
            named(PlainStatement::TimePage(order, IndexPage::Behind(7))),
            named(PlainStatement::TimePageBut(order, IndexPage::All)),
            named(PlainStatement::WordKeys(order)),
            named(PlainStatement::TermTimePage(order, IndexPage::All)),
            named(PlainStatement::TermTimePage(order, IndexPage::Behind(7))),
            named(PlainStatement::SlimWindow(order, None, WindowRows::All)),
            named(PlainStatement::SlimWindow(order, None, WindowRows::First)),
            named(PlainStatement::SlimWindow(order, Some(7), WindowRows::Behind)),
        ]);
        for ranges in [1, 3] {
            forms.extend([
                named(PlainStatement::TermPage(order, ranges, IndexPage::All)),
                named(PlainStatement::TermPage(order, ranges, IndexPage::First(7))),
                named(PlainStatement::AuthorPage(order, ranges, IndexPage::All)),
                named(PlainStatement::AuthorPage(order, ranges, IndexPage::Behind(7))),
                named(PlainStatement::KindPage(order, ranges, IndexPage::All)),
            ]);
        }
    }
    forms.extend([
        named(PlainStatement::Ids { whole: false }),
        named(PlainStatement::Ids { whole: true }),
        named(PlainStatement::TermFew),
        named(PlainStatement::AuthorFew),
        named(PlainStatement::TermFewBut),
        named(PlainStatement::AuthorFewBut),
        named(PlainStatement::ListedSize),
        named(PlainStatement::TermKinds),
        named(PlainStatement::AuthorKinds),
        named(PlainStatement::TermSize),
        named(PlainStatement::AuthorSize),
        named(PlainStatement::TermSizeBut),
        named(PlainStatement::AuthorSizeBut),
        named(PlainStatement::Bodies(None)),
        named(PlainStatement::Bodies(Some(7))),
        named(SharedStatement::Begin),
        named(PlainStatement::Lock),
        named(PlainStatement::Known),
        named(PlainStatement::Forbids),
        named(PlainStatement::Slots),
        named(PlainStatement::TermSlots),
        named(PlainStatement::NamedRecords),
        named(PlainStatement::Delete),
        named(PlainStatement::DeleteListed),
        named(SharedStatement::DeleteForbids),
        named(PlainStatement::CopyRecords),
        named(PlainStatement::CopyTags),
        named(PlainStatement::AddForbids),
        named(SharedStatement::AddValues),
        named(SharedStatement::Values),
        named(PlainStatement::Advance),
        named(PlainStatement::News),
        named(PlainStatement::Newest),
        named(SharedStatement::Expired),
        named(SharedStatement::Parts),
        named(PlainStatement::WordState),
        named(PlainStatement::WordsFrom),
        named(PlainStatement::WordSize),
        named(PlainStatement::WordBodies(None)),
        named(PlainStatement::WordBodies(Some(7))),
        named(PlainStatement::WordedBodies(None)),
        named(PlainStatement::WordedBodies(Some(7))),
        named(PlainStatement::CopyWords),
        named(PlainStatement::CopyWorded),
        named(PlainStatement::AdvanceWords),
        named(PlainStatement::StillThere),
        named(PlainStatement::LabelCounts),
        named(PlainStatement::WordLists),
        named(PlainStatement::WordCounts),
        named(PlainStatement::RepairColumns),
    ]);
    forms
}

fn citus_statements() -> Vec<(String, StatementForm)> {
    let (none, one, many) = (ValueCount::None, ValueCount::One, ValueCount::Many);
    let window = |table, values, kinds, has_not_kinds| {
        let order = Order::NewestFirst;
        named(CitusStatement::Window(WindowForm { order, table, values, kinds, has_not_kinds }))
    };
    let one_term = WindowForm {
        order: Order::NewestFirst,
        table: WindowTable::Tag,
        values: one,
        kinds: one,
        has_not_kinds: false,
    };
    let two_kinds = WindowForm {
        table: WindowTable::Record,
        values: none,
        kinds: ValueCount::Arms(2),
        ..one_term
    };
    let each_author =
        WindowForm { table: WindowTable::Author, values: ValueCount::Each, ..one_term };
    vec![
        window(WindowTable::Tag, one, one, false),
        window(WindowTable::Tag, one, ValueCount::Arms(2), false),
        window(WindowTable::Tag, many, none, true),
        window(WindowTable::Author, one, one, false),
        window(WindowTable::Author, many, many, false),
        window(WindowTable::Record, none, one, false),
        window(WindowTable::Record, none, none, true),
        named(CitusStatement::Window(WindowForm {
            order: Order::OldestFirst,
            table: WindowTable::Tag,
            values: many,
            kinds: many,
            has_not_kinds: false,
        })),
        named(CitusStatement::Few(WindowForm {
            order: Order::NewestFirst,
            table: WindowTable::Author,
            values: many,
            kinds: many,
            has_not_kinds: false,
        })),
        named(CitusStatement::Places(one)),
        named(CitusStatement::Places(many)),
        named(CitusStatement::PlacedBodies(one)),
        named(CitusStatement::PlacedBodies(many)),
        named(CitusStatement::PlacedBodies(none)),
        named(CitusStatement::OnShard(ShardForm::Places, 102_008)),
        named(CitusStatement::OnShard(ShardForm::Bodies, 102_009)),
        named(CitusStatement::OnShard(ShardForm::Window(one_term), 102_010)),
        named(CitusStatement::OnShard(ShardForm::Few(one_term), 102_010)),
        named(CitusStatement::OnShard(ShardForm::Window(each_author), 102_012)),
        named(CitusStatement::OnShard(ShardForm::Few(each_author), 102_012)),
        named(CitusStatement::OnShards(two_kinds, ShardSet::of(&[102_008, 102_011]))),
        named(CitusStatement::NewestTimes),
        named(CitusStatement::OldestTime),
        named(CitusStatement::Enter),
        named(CitusStatement::Lock),
        named(CitusStatement::Known),
        named(CitusStatement::KnownRecords),
        named(CitusStatement::RecordPlaces),
        named(CitusStatement::RecordTimes),
        named(CitusStatement::Forbids),
        named(CitusStatement::Slots),
        named(CitusStatement::TermSlots),
        named(CitusStatement::Delete),
        named(CitusStatement::DeleteTags),
        named(CitusStatement::DeletePlaces),
        named(CitusStatement::CopyRecords),
        named(CitusStatement::CopyTags),
        named(CitusStatement::CopyPlaces),
        named(CitusStatement::AddForbids),
        named(CitusStatement::Advance),
        named(CitusStatement::Publish),
        named(CitusStatement::PublishTelling),
        named(CitusStatement::Newest),
        named(CitusStatement::WholeState),
        named(CitusStatement::News),
    ]
}

/// The texts of parts.
fn part_texts() -> Vec<(String, String)> {
    let parts = part_sql::make_part(19_000, -7, 7, LabelStorage::Rows).into_iter().enumerate();
    let retire = |labels| part_sql::retire_part(19_000, (&[5, 62], 100, 3), labels);
    let mut texts: Vec<(String, String)> =
        parts.map(|(at, text)| (format!("make_part {at}"), text)).collect();
    texts.extend(
        [
            ("count_spared", part_sql::count_spared(19_000)),
            ("count_part", part_sql::count_part(19_000, false)),
            ("count_part retired", part_sql::count_part(19_000, true)),
            ("retire_part", retire(LabelStorage::Rows)),
            ("retire_part slim", retire(LabelStorage::Records)),
            ("make_label_view", part_sql::make_label_view(19_000)),
            ("drop_part", part_sql::drop_part(19_000, 100, 98)),
            ("keep_spared_values", part_sql::KEEP_SPARED_VALUES.into()),
            ("count_values", part_sql::count_values(19_000)),
            ("lower_values", lower_values()),
        ]
        .map(|(name, text)| (name.to_owned(), text)),
    );
    texts
}

fn compare(name: &str, texts: &str, looked_at: &str) {
    if texts != looked_at {
        let now = std::env::temp_dir().join(name);
        std::fs::write(&now, texts).unwrap();
        panic!("texts differ from src/layout/{name}; those of now are in {}", now.display());
    }
}

/// A changed statement changes the plans in all databases with this layout. To accept the change,
/// copy the output of this test over the snapshot.
#[test]
fn no_text_has_changed_since_it_was_last_looked_at() {
    let plain = LayoutTexts { statements: plain_statements(), others: part_texts() };
    let plain = texts(&PlainLayout::LABELLED, plain);
    compare("plain.snapshot.sql", &plain, include_str!("plain.snapshot.sql"));
    let others = vec![("lower_values".to_owned(), lower_values())];
    let citus = LayoutTexts { statements: citus_statements(), others };
    let citus = texts(&CitusLayout, citus);
    compare("citus.snapshot.sql", &citus, include_str!("citus.snapshot.sql"));
}
