//! The results of a measurement: rows of figures, printed as a table, as JSON or as an HTML page,
//! and compared with the figures of another run.

use std::fmt::Write as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::parts::{BarChart, Curve};
use crate::words::figure;

/// A column of a report: one kind of figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The column's name in JSON, the unit last: `p50_ms`.
    pub key: &'static str,
    /// The column's name for people: `p50`.
    pub head: &'static str,
    /// The column's unit for people: `ms`.
    pub unit: &'static str,
    /// Whether another run's figure and the ratio of the two get a column each.
    pub compared: bool,
}

impl Column {
    /// Creates a column whose figures are not compared with other runs.
    pub const fn plain(key: &'static str, head: &'static str, unit: &'static str) -> Self {
        Self { key, head, unit, compared: false }
    }

    /// Creates a column whose figures are compared with other runs.
    pub const fn compared(key: &'static str, head: &'static str, unit: &'static str) -> Self {
        Self { key, head, unit, compared: true }
    }
}

/// The figures of one case, one for each column. `None` if a figure was not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportRow {
    /// Name of the measured case.
    pub name: String,
    /// The figures, in the order of the columns.
    pub figures: Vec<Option<f64>>,
}

/// Another run's figures for the same rows and columns.
#[derive(Clone, Debug)]
struct Baseline {
    name: String,
    rows: Vec<ReportRow>,
}

/// A further table below a report's main table, with different columns.
#[derive(Clone, Debug)]
pub struct ReportSection {
    /// The section's name in JSON.
    pub key: &'static str,
    /// The section's title for people.
    pub title: &'static str,
    /// The section's rows and notes. Settings, faults and charts belong to the main report.
    pub report: BenchReport,
}

/// The complete results of a run.
#[derive(Clone, Debug)]
pub struct BenchReport {
    bench: &'static str,
    columns: Vec<Column>,
    rows: Vec<ReportRow>,
    settings: Vec<(&'static str, Value)>,
    /// The latency distributions of rows, for the HTML page.
    curves: Vec<Curve>,
    charts: Vec<BarChart>,
    notes: Vec<String>,
    faults: Vec<String>,
    baseline: Option<Baseline>,
    sections: Vec<ReportSection>,
}

impl BenchReport {
    /// Creates a report of `hark bench <bench>` without rows.
    pub fn new(bench: &'static str, columns: &[Column]) -> Self {
        Self {
            bench,
            columns: columns.to_vec(),
            rows: Vec::new(),
            settings: Vec::new(),
            curves: Vec::new(),
            charts: Vec::new(),
            notes: Vec::new(),
            faults: Vec::new(),
            baseline: None,
            sections: Vec::new(),
        }
    }

    /// Adds a row. `figures` are in the order of the columns.
    pub fn row(&mut self, name: impl Into<String>, figures: &[Option<f64>]) {
        assert_eq!(figures.len(), self.columns.len(), "a figure for each column");
        self.rows.push(ReportRow { name: name.into(), figures: figures.to_vec() });
    }

    /// Removes all figures of the last row.
    pub(crate) fn clear_last_row(&mut self) {
        if let Some(row) = self.rows.last_mut() {
            row.figures.fill(None);
        }
    }

    /// Adds a setting under which the figures were measured.
    pub fn setting(&mut self, key: &'static str, value: impl Into<Value>) {
        self.settings.push((key, value.into()));
    }

    /// Adds a line below the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds a reason why the figures are doubtful, such as refusals. Faults are shown first, marked
    /// in capitals, and make the exit code a failure.
    pub fn fault(&mut self, text: impl Into<String>) {
        self.faults.push(text.into());
    }

    /// Whether there are faults.
    pub fn is_faulty(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Adds the latency distribution of a row.
    pub fn curve(&mut self, curve: Curve) {
        self.curves.push(curve);
    }

    /// Adds a chart. A report with charts gets no automatic bars for the columns.
    pub(crate) fn chart(&mut self, chart: BarChart) {
        self.charts.push(chart);
    }

    /// Adds a table below the report's own, unless it is empty.
    pub(crate) fn section(&mut self, section: ReportSection) {
        if !section.report.rows.is_empty() {
            self.sections.push(section);
        }
    }

    pub(crate) fn sections(&self) -> &[ReportSection] {
        &self.sections
    }

    pub(crate) fn bench(&self) -> &str {
        self.bench
    }

    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub(crate) fn rows(&self) -> &[ReportRow] {
        &self.rows
    }

    pub(crate) fn curves(&self) -> &[Curve] {
        &self.curves
    }

    pub(crate) fn charts(&self) -> &[BarChart] {
        &self.charts
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }

    pub(crate) fn baseline_name(&self) -> Option<&str> {
        self.baseline.as_ref().map(|baseline| &*baseline.name)
    }

    /// Returns the other run's figure for a row and a column.
    pub(crate) fn other(&self, row: &ReportRow, column: usize) -> Option<f64> {
        let rows = &self.baseline.as_ref()?.rows;
        *rows.iter().find(|other| other.name == row.name)?.figures.get(column)?
    }

    /// Returns the settings, with their values as text.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&str, String)> {
        self.settings.iter().map(|(key, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (*key, text)
        })
    }

    /// Returns the median of several runs of the same bench, figure by figure. Settings and notes
    /// are those of the last run, and faults are those of all runs. `None` if there are no runs.
    pub fn median(mut runs: Vec<Self>) -> Option<Self> {
        let mut last = runs.pop()?;
        for at in 0..last.rows.len() {
            let name = last.rows[at].name.clone();
            for column in 0..last.columns.len() {
                let found = runs.iter().filter_map(|run| {
                    run.rows.iter().find(|row| row.name == name)?.figures[column]
                });
                let mut all: Vec<f64> = found.chain(last.rows[at].figures[column]).collect();
                all.sort_by(f64::total_cmp);
                last.rows[at].figures[column] = all.get(all.len() / 2).copied();
            }
        }
        if !runs.is_empty() {
            last.setting("median_of_runs", runs.len() + 1);
        }
        let mut faults: Vec<String> = runs.into_iter().flat_map(|run| run.faults).collect();
        faults.append(&mut last.faults);
        faults.sort();
        faults.dedup();
        last.faults = faults;
        Some(last)
    }

    /// Adds the figures of another report of the same bench for comparison.
    pub fn compare(&mut self, name: impl Into<String>, other: &Self) {
        self.baseline = Some(Baseline { name: name.into(), rows: other.rows.clone() });
        self.faults.extend(other.faults.iter().map(|fault| format!("the other run: {fault}")));
    }

    /// Adds the figures of another run for comparison, from its JSON or from any JSON file that has
    /// rows with the same names and keys.
    pub fn compare_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let text = std::fs::read(path)
            .with_context(|| format!("the baseline {} could not be read", path.display()))?;
        let other: Value = serde_json::from_slice(&text).with_context(|| {
            format!("the baseline {} is not JSON; make it with --json", path.display())
        })?;
        if other["bench"] != self.bench {
            bail!(
                "the baseline {} is of `bench {}`, not of `bench {}`",
                path.display(),
                other["bench"].as_str().unwrap_or("?"),
                self.bench
            );
        }
        let rows = other["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rows = rows.iter().filter_map(|row| {
            let figures = self.columns.iter().map(|column| row[column.key].as_f64());
            Some(ReportRow { name: row["name"].as_str()?.into(), figures: figures.collect() })
        });
        let name = other["settings"]["name"].as_str().map_or_else(
            || path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            str::to_owned,
        );
        self.baseline = Some(Baseline { name, rows: rows.collect() });
        Ok(())
    }

    /// Renders the report as JSON. Later versions add keys, but never remove keys.
    pub fn to_json(&self) -> Value {
        let settings: Map<String, Value> =
            self.settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut object = json!({
            "bench": self.bench,
            "hark": hark::VERSION,
            "at_s": now.map_or(0, |now| now.as_secs()),
            "settings": settings,
            "baseline": self.baseline_name(),
            "rows": self.json_rows(),
            "notes": self.notes,
            "faults": self.faults,
        });
        for section in &self.sections {
            let table =
                json!({ "rows": section.report.json_rows(), "notes": section.report.notes });
            object[section.key] = table;
        }
        object
    }

    fn json_rows(&self) -> Vec<Value> {
        self.rows
            .iter()
            .map(|row| {
                let mut object = Map::new();
                object.insert("name".into(), row.name.clone().into());
                for (at, (column, figure)) in self.columns.iter().zip(&row.figures).enumerate() {
                    object.insert(column.key.into(), json!(figure));
                    if let Some(other) = self.other(row, at).filter(|_| column.compared) {
                        object.insert(format!("{}_baseline", column.key), json!(other));
                        let ratio = figure.map(|figure| figure / other);
                        object.insert(format!("{}_ratio", column.key), json!(ratio));
                    }
                }
                object.into()
            })
            .collect()
    }

    /// Renders the report as text.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for fault in &self.faults {
            let _ = writeln!(out, "DOUBTFUL: {fault}");
        }
        if !self.faults.is_empty() {
            out.push('\n');
        }
        let table = self.table();
        let width = |at: usize| {
            let column = table.iter().filter_map(|line| line.get(at));
            column.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..table[0].len()).map(width).collect();
        // The lines of heads and of units are left out if they are empty.
        for line in table.iter().filter(|line| line.iter().any(|cell| !cell.is_empty())) {
            let mut text = format!("{:w$}", line[0], w = widths[0]);
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                let _ = write!(text, "  {cell:>width$}");
            }
            let _ = writeln!(out, "{}", text.trim_end());
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        for section in &self.sections {
            let _ = write!(out, "\n{}\n\n{}", section.title, section.report.to_text());
        }
        out
    }

    /// Returns the lines of the table: the heads, the units, and then the rows. With only one row,
    /// each figure has its own line.
    pub(crate) fn table(&self) -> Vec<Vec<String>> {
        let other = self.baseline_name();
        let text = |value: Option<f64>| value.map_or_else(|| "-".into(), figure);
        let compared = |row: &ReportRow, at: usize| {
            let (own, other) = (row.figures[at], self.other(row, at));
            let ratio = own.zip(other).map(|(own, other)| own / other);
            [text(other), ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x"))]
        };
        let is_compared = |column: &Column| column.compared && other.is_some();
        if let [row] = &self.rows[..] {
            let heads = other.map_or(vec!["", ""], |other| vec!["", "", other, "ratio"]);
            let heads: Vec<String> = heads.into_iter().map(str::to_owned).collect();
            let mut table = vec![heads.clone(), vec![String::new(); heads.len()]];
            for (at, column) in self.columns.iter().enumerate() {
                let unit = if column.unit.is_empty() {
                    String::new()
                } else {
                    format!(", {}", column.unit)
                };
                let mut line = vec![format!("{}{unit}", column.head), text(row.figures[at])];
                if is_compared(column) {
                    line.extend(compared(row, at));
                }
                line.resize(heads.len(), String::new());
                table.push(line);
            }
            return table;
        }
        let mut table = vec![vec![String::new()], vec![String::new()]];
        for column in &self.columns {
            table[0].push(column.head.into());
            table[1].push(column.unit.into());
            if is_compared(column) {
                table[0].extend([other.unwrap_or_default().to_owned(), "ratio".into()]);
                table[1].extend([column.unit.to_owned(), String::new()]);
            }
        }
        for row in &self.rows {
            let mut line = vec![row.name.clone()];
            for (at, column) in self.columns.iter().enumerate() {
                line.push(text(row.figures[at]));
                if is_compared(column) {
                    line.extend(compared(row, at));
                }
            }
            table.push(line);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 2] =
        [Column::plain("events", "events", ""), Column::compared("p50_ms", "p50", "ms")];

    fn report(p50: f64) -> BenchReport {
        let mut report = BenchReport::new("query", &COLUMNS);
        report.row("1 id", &[Some(1.0), Some(p50)]);
        report.row("latest 100", &[Some(100.0), None]);
        report
    }

    #[test]
    fn figures_stand_flush_right_below_heads_and_units() {
        let expected = "            events    p50\n                       ms\n\
                        1 id             1  0.230\nlatest 100     100      -\n";
        assert_eq!(report(0.23).to_text(), expected);
        let mut one = BenchReport::new("idle", &COLUMNS[1..]);
        one.row("all", &[Some(12_345.0)]);
        one.fault("12 refused");
        assert_eq!(one.to_text(), "DOUBTFUL: 12 refused\n\np50, ms  12,345\n");
        let other = one.clone();
        one.compare("peer", &other);
        let text = one.to_text();
        let expected = "                   peer  ratio\np50, ms  12,345  12,345  1.00x\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn another_run_adds_its_figures_and_ratios() {
        let mut faster = report(0.1);
        faster.compare("peer", &report(0.4));
        let text = faster.to_text();
        assert!(text.contains("p50   peer  ratio"), "{text}");
        assert!(text.contains("0.100  0.400  0.25x"), "{text}");
        let json = faster.to_json();
        assert_eq!(json["rows"][0]["p50_ms_ratio"], 0.25);
        assert_eq!(json["rows"][1]["p50_ms"], Value::Null);

        let dir = std::env::temp_dir().join(format!("hark-report-{}", std::process::id()));
        std::fs::write(&dir, json.to_string()).unwrap();
        let mut later = report(0.2);
        later.compare_file(&dir).unwrap();
        assert_eq!(later.to_json()["rows"][0]["p50_ms_ratio"], 2.0);
        let mut other = BenchReport::new("ingest", &COLUMNS);
        assert!(
            other.compare_file(&dir).unwrap_err().to_string().contains("not of `bench ingest`")
        );
        std::fs::remove_file(dir).unwrap();
    }

    #[test]
    fn of_several_runs_each_figure_is_the_median() {
        let median = BenchReport::median([3.0, 1.0, 2.0].map(report).into()).unwrap();
        assert_eq!(median.rows()[0].figures, [Some(1.0), Some(2.0)]);
        assert_eq!(median.rows()[1].figures, [Some(100.0), None]);
        assert!(BenchReport::median(Vec::new()).is_none());
    }
}
