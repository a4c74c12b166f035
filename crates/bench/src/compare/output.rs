//! The result as text and as JSON.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::args::CompareArgs;
use super::page;
use super::result::{CompareResult, ComparedEntry, NOT_MEASURED};
use super::table::{CompareTable, ComparedRow, RoundsFigure};
use crate::words::figure;

impl CompareResult<'_> {
    /// Prints the result as text or JSON, and writes the HTML page if the command line names a file
    /// for the page.
    pub(super) fn publish(&self, args: &CompareArgs) -> anyhow::Result<()> {
        if let Some(path) = &args.html {
            std::fs::write(path, page::page(self))
                .with_context(|| format!("{} could not be written", path.display()))?;
        }
        let text = if args.json { format!("{:#}\n", self.to_json()) } else { self.to_text() };
        Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
    }

    /// Renders the result as JSON. Later versions add keys, but never remove keys.
    fn to_json(&self) -> Value {
        let settings: Map<String, Value> =
            self.settings.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let tables: Map<String, Value> = self
            .tables
            .iter()
            .map(|table| (table.key.to_owned(), table_json(table, self.first())))
            .collect();
        let relays: Vec<Value> = self.relays.iter().map(relay_json).collect();
        let marks = self.tables.iter().flat_map(|table| &table.rows);
        let marks = marks.filter(|row| !row.marks.is_empty()).map(mark_line);
        json!({
            "bench": "compare",
            "hark": hark::VERSION,
            "at_s": self.at_s,
            "settings": settings,
            "relays": relays,
            "tables": tables,
            "notes": self.notes,
            "faults": marks.collect::<Vec<_>>(),
            "not_measured": NOT_MEASURED,
        })
    }

    /// Renders the result as text: medians, with the spread of the rounds and the ratio to the
    /// first relay.
    fn to_text(&self) -> String {
        let mut out = String::new();
        for relay in &self.relays {
            let _ = writeln!(out, "{}", relay_line(relay));
        }
        for table in &self.tables {
            let _ = write!(out, "\n{}\n\n{}", table.title, table_text(table, self.first()));
            for row in table.rows.iter().filter(|row| !row.marks.is_empty()) {
                let _ = writeln!(out, "MARKED: {}", mark_line(row));
            }
        }
        out.push('\n');
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        let _ = writeln!(out, "{NOT_MEASURED}");
        out
    }
}

/// The relay, the case and the marks of a row.
fn mark_line(row: &ComparedRow) -> String {
    let case = if row.case.is_empty() { String::new() } else { format!(", {}", row.case) };
    format!("{}{case}: {}", row.relay, row.mark_text())
}

fn relay_line(relay: &ComparedEntry) -> String {
    let version = relay.facts.version.as_deref().or(relay.facts.software.as_deref());
    let durable = match &*relay.planned.durable {
        "" => "nothing is said about durability",
        durable => durable,
    };
    format!("{}: {}; {durable}", relay.planned.name, version.unwrap_or("version unknown"))
}

fn relay_json(relay: &ComparedEntry) -> Value {
    let ComparedEntry { planned, facts } = relay;
    json!({
        "name": planned.name,
        "version": facts.version,
        "software": facts.software,
        "durable": planned.durable,
        "file_system": facts.file_system,
        "note": planned.note,
        "command": planned.command,
        "env": planned.env,
        "files": planned.files,
    })
}

fn table_json(table: &CompareTable, first: &str) -> Value {
    let row = |row: &ComparedRow| {
        let mut object = Map::new();
        object.insert("relay".into(), json!(row.relay));
        object.insert("case".into(), json!(row.case));
        for (at, column) in table.columns.iter().enumerate() {
            let figure = row.figure(at);
            object.insert(column.key.into(), json!(figure.map(|figure| figure.median)));
            object.insert(format!("{}_rounds", column.key), json!(row.values(at)));
            if column.compared {
                object.insert(format!("{}_ratio", column.key), json!(table.ratio(row, at, first)));
            }
        }
        object.insert("marks".into(), json!(row.marks));
        Value::from(object)
    };
    let rows: Vec<Value> = table.rows.iter().map(row).collect();
    json!({ "title": table.title, "about": table.about, "rows": rows })
}

/// Formats a figure with the spread of its rounds, and the ratio to the first relay.
fn cell(figure_of: Option<RoundsFigure>, ratio: Option<f64>) -> String {
    let Some(of) = figure_of else { return "-".into() };
    let mut text = figure(of.median);
    if of.most > of.least {
        let _ = write!(text, " ({}–{})", figure(of.least), figure(of.most));
    }
    if let Some(ratio) = ratio {
        let _ = write!(text, " {ratio:.2}x");
    }
    text
}

fn table_text(table: &CompareTable, first: &str) -> String {
    let has_cases = table.rows.iter().any(|row| !row.case.is_empty());
    let names = |row: &ComparedRow| {
        let case = has_cases.then(|| row.case.clone());
        case.into_iter().chain([row.relay.clone()]).collect::<Vec<String>>()
    };
    let skipped = usize::from(has_cases) + 1;
    let head = |unit: bool| {
        let columns = table.columns.iter();
        let texts = columns.map(move |column| if unit { column.unit } else { column.head });
        vec![String::new(); skipped].into_iter().chain(texts.map(str::to_owned)).collect()
    };
    let mut lines: Vec<Vec<String>> = vec![head(false), head(true)];
    for row in table.rows.iter().filter(|_| !table.columns.is_empty()) {
        let cells =
            (0..table.columns.len()).map(|at| cell(row.figure(at), table.ratio(row, at, first)));
        lines.push(names(row).into_iter().chain(cells).collect());
    }
    let count = lines.first().map_or(0, Vec::len);
    let width =
        |at: usize| lines.iter().filter_map(|line| Some(line.get(at)?.chars().count())).max();
    let widths: Vec<usize> = (0..count).map(|at| width(at).unwrap_or(0)).collect();
    let mut out = String::new();
    for line in lines.iter().filter(|line| line.iter().any(|cell| !cell.is_empty())) {
        let mut text = String::new();
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = if at < skipped {
                write!(text, "{cell:<width$}  ")
            } else {
                write!(text, "{cell:>width$}  ")
            };
        }
        let _ = writeln!(out, "{}", text.trim_end());
    }
    out
}
