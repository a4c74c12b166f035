//! The figures of a comparison: tables with a row for each relay, and in each cell the values of
//! all rounds.

use std::collections::BTreeSet;

use crate::report::Column;

/// A table of a comparison.
pub(super) struct CompareTable {
    /// The name in JSON.
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    /// How the figures are to be read.
    pub(super) about: &'static str,
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<ComparedRow>,
}

/// A row: one case of one relay.
pub(super) struct ComparedRow {
    /// The case, such as a type of question. Empty in tables with one case.
    pub(super) case: String,
    pub(super) relay: String,
    /// The values of the rounds, for each column.
    values: Vec<Vec<f64>>,
    /// Why figures are missing or do not count.
    pub(super) marks: BTreeSet<String>,
}

/// The median of the rounds, with the least and the greatest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundsFigure {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl CompareTable {
    pub(super) fn new(
        key: &'static str,
        title: &'static str,
        about: &'static str,
        columns: &'static [Column],
    ) -> Self {
        Self { key, title, about, columns, rows: Vec::new() }
    }

    fn row(&mut self, relay: &str, case: &str) -> &mut ComparedRow {
        let at = self.rows.iter().position(|row| row.relay == relay && row.case == case);
        let at = at.unwrap_or_else(|| {
            let values = vec![Vec::new(); self.columns.len()];
            let marks = BTreeSet::new();
            self.rows.push(ComparedRow { case: case.into(), relay: relay.into(), values, marks });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Adds the figures of a round. `figures` are in the order of the columns.
    pub(super) fn add(&mut self, relay: &str, case: &str, figures: &[Option<f64>]) {
        let row = self.row(relay, case);
        for (values, figure) in row.values.iter_mut().zip(figures) {
            values.extend(figure.filter(|figure| figure.is_finite()));
        }
    }

    /// Marks a row: its figures are missing or do not count.
    pub(super) fn mark(&mut self, relay: &str, case: &str, reason: impl Into<String>) {
        self.row(relay, case).marks.insert(reason.into());
    }

    /// Sorts the rows by case, in the order in which the cases first appear, and then by relay, in
    /// the order of `relays`. Other relays come last.
    pub(super) fn sort(&mut self, relays: &[String]) {
        let mut cases: Vec<String> = Vec::new();
        for row in &self.rows {
            if !cases.contains(&row.case) {
                cases.push(row.case.clone());
            }
        }
        let place = |list: &[String], name: &String| {
            list.iter().position(|other| other == name).unwrap_or(list.len())
        };
        self.rows.sort_by_key(|row| (place(&cases, &row.case), place(relays, &row.relay)));
    }

    /// Returns the ratio of a row's figure to the first relay's figure in the same case. `None` for
    /// columns that are not compared, and for the first relay itself.
    pub(super) fn ratio(&self, row: &ComparedRow, column: usize, first: &str) -> Option<f64> {
        let is_compared = self.columns.get(column)?.compared && row.relay != first;
        let of_first = |other: &&ComparedRow| other.relay == first && other.case == row.case;
        let first = self.rows.iter().find(of_first)?.figure(column)?.median;
        let own = row.figure(column)?.median;
        (is_compared && first > 0.0).then(|| own / first)
    }
}

impl ComparedRow {
    /// Returns the figure of a column. `None` if it was not measured in any round.
    pub(super) fn figure(&self, column: usize) -> Option<RoundsFigure> {
        let mut values = self.values.get(column)?.clone();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        // With an even number of values, the median is the mean of the two middle values.
        let (low, high) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
        Some(RoundsFigure { median: f64::midpoint(*low, *high), least, most })
    }

    /// The values of the rounds of a column.
    pub(super) fn values(&self, column: usize) -> &[f64] {
        self.values.get(column).map(Vec::as_slice).unwrap_or_default()
    }

    /// The marks as one text.
    pub(super) fn mark_text(&self) -> String {
        let marks: Vec<&str> = self.marks.iter().map(String::as_str).collect();
        marks.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 2] =
        [Column::compared("p50_ms", "p50", "ms"), Column::plain("events", "events", "")];

    #[test]
    fn figures_are_medians_of_rounds_and_ratios_are_to_the_first_relay() {
        let mut table = CompareTable::new("t", "T", "", &COLUMNS);
        for (relay, rounds) in [("b", [8.0, 2.0, 4.0]), ("a", [1.0, 3.0, 2.0])] {
            for value in rounds {
                table.add(relay, "1 id", &[Some(value), None]);
            }
        }
        table.add("b", "later", &[Some(1.0), Some(f64::NAN)]);
        table.add("b", "later", &[Some(2.0), None]);
        table.mark("a", "later", "it died");
        table.sort(&["a".to_owned(), "b".to_owned()]);
        let order: Vec<_> = table.rows.iter().map(|row| (&*row.case, &*row.relay)).collect();
        assert_eq!(order, [("1 id", "a"), ("1 id", "b"), ("later", "a"), ("later", "b")]);
        let figure = table.rows[1].figure(0).unwrap();
        assert_eq!(figure, RoundsFigure { median: 4.0, least: 2.0, most: 8.0 });
        assert_eq!(table.ratio(&table.rows[1], 0, "a"), Some(2.0));
        assert_eq!(
            [table.ratio(&table.rows[0], 0, "a"), table.ratio(&table.rows[3], 0, "a")],
            [None; 2]
        );
        assert!((table.rows[3].figure(0).unwrap().median - 1.5).abs() < 1e-9);
        assert!(table.rows[2].figure(0).is_none() && table.rows[3].figure(1).is_none());
        assert_eq!(table.rows[2].mark_text(), "it died");
    }
}
