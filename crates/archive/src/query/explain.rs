//! A plan in words and numbers, as `hark explain` prints it.

use std::fmt;

/// How one part of an archive would be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which part: a head, a segment, a table.
    pub source: String,
    /// Records in it.
    pub rows: u64,
    /// What is walked, e.g. `author+kind x200` or `time`.
    pub driver: String,
    /// What is cut with the driver by skipping.
    pub intersect: Vec<String>,
    /// What is checked on each record.
    pub residual: Vec<String>,
    /// Rows the plan expects to visit here if it is asked to the end of the limit.
    pub estimate: u64,
}

/// How a question would be answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The choice in a word: the driver of the largest part.
    pub plan: String,
    /// In the order they would be asked.
    pub steps: Vec<Step>,
    /// Rows expected to be visited in all.
    pub estimate: u64,
    /// What a store adds in its own words: what it says to a database, and how that carries it out.
    pub details: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan: {}, about {} rows to visit", self.plan, self.estimate)?;
        for step in &self.steps {
            write!(f, "  {} ({} rows): {}", step.source, step.rows, step.driver)?;
            if !step.intersect.is_empty() {
                write!(f, ", cut with {}", step.intersect.join(" and "))?;
            }
            if !step.residual.is_empty() {
                write!(f, ", checked: {}", step.residual.join(", "))?;
            }
            writeln!(f, ", about {} rows", step.estimate)?;
        }
        for line in &self.details {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
