//! The performance goals of Hark's codec. Notes below the report's table list which goals are met
//! or missed.

use super::operation::COMPARE;
use crate::report::BenchReport;

/// The goals: each names a row and a column of the table, and an upper bound of the figure there.
const GOALS: [(&str, &str, f64); 9] = [
    ("small note: parse", "serde_json_ratio", 0.3),
    ("small note: parse", "nostr_ratio", 0.25),
    ("small note: JSON write", "nostr_ratio", 0.25),
    ("small note: canonical", "nostr_ratio", 0.25),
    ("small note: binary encode", "ns", 100.0),
    ("small note: binary fields", "ns", 20.0),
    ("500-tag follow list: parse", "ns", 12_000.0),
    ("4 KB event, 20 tags: JSON write", "ns", 1_500.0),
    ("4 KB event, 20 tags: JSON write, respelled", "ns", 1_500.0),
];

/// Adds a note for each goal: met or missed.
pub(super) fn judge(report: &mut BenchReport) {
    let column = |key| report.columns().iter().position(|column| column.key == key);
    let figure = |row: &str, key| {
        let row = report.rows().iter().find(|found| found.name == row)?;
        row.figures[column(key)?]
    };
    let mut notes = Vec::new();
    for (row, key, most) in GOALS {
        // Goals for libraries and messages that are not part of this run are skipped.
        if let Some(figure) = figure(row, key) {
            let verdict = if figure <= most { "met" } else { "MISSED" };
            notes.push(format!("{verdict}: {row}: {key} {figure:.3} <= {most}"));
        }
    }
    if let Some(column) = column("allocations") {
        // A comparison makes its sets anew each time, so it may allocate.
        let reusing = report.rows().iter().filter(|row| !row.name.ends_with(COMPARE));
        let allocating = reusing.filter(|row| row.figures[column] > Some(0.0));
        let names: Vec<&str> = allocating.map(|row| &*row.name).collect();
        notes.push(if names.is_empty() {
            "met: no allocations".to_owned()
        } else {
            format!("MISSED: no allocations, but for {}", names.join("; "))
        });
    }
    for note in notes {
        report.note(note);
    }
}
