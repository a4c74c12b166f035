//! A plan as text, for the output of `hark explain`.

use std::fmt;

/// The plan for one part of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePlan {
    /// The name of the part: a head, a segment, a table.
    pub source: String,
    /// Number of records in the part.
    pub rows: u64,
    /// The set whose rows are walked, e.g. `200 authors of kind 1` or `time`.
    pub driver: String,
    /// The sets that are intersected with the driver.
    pub intersect: Vec<String>,
    /// The conditions that are checked on each record.
    pub residual: Vec<String>,
    /// Number of rows of the part that the search is expected to visit until the limit is reached.
    pub estimate: u64,
}

/// The plan for a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The plan in a few words: the driver of that part in which the most rows are expected to be
    /// visited.
    pub plan: String,
    /// The parts, in the order in which a search opens the parts.
    pub steps: Vec<SourcePlan>,
    /// Number of rows expected to be visited in all parts.
    pub estimate: u64,
    /// Further lines from the store, for example an SQL statement and the database's plan for this
    /// statement.
    pub details: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = |count: u64| format!("{count} row{}", if count == 1 { "" } else { "s" });
        writeln!(f, "plan: {}, about {} to visit", self.plan, rows(self.estimate))?;
        for step in &self.steps {
            write!(f, "  {} ({}): {}", step.source, rows(step.rows), step.driver)?;
            if !step.intersect.is_empty() {
                write!(f, ", cut with {}", step.intersect.join(" and "))?;
            }
            if !step.residual.is_empty() {
                write!(f, ", checked: {}", step.residual.join(", "))?;
            }
            writeln!(f, ", about {}", rows(step.estimate))?;
        }
        for line in &self.details {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
