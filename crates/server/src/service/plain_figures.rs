//! The common metrics, for a service whose network defines no metrics of its own.

use crate::metrics::{Counter, Histogram, MetricsPage};

/// The times to store records and to answer questions, and the number of refusals.
#[derive(Debug, Default)]
pub(super) struct ServiceFigures {
    pub(super) insert: Histogram,
    pub(super) search: Histogram,
    pub(super) refused: Counter,
}

impl ServiceFigures {
    /// Writes the metrics. `name` is the name of the network.
    pub(super) fn write(&self, name: &str, page: &mut MetricsPage) {
        page.histogram(
            &format!("{name}_insert_duration_seconds"),
            "Time from the arrival of a record until the record was durable, in seconds.",
            &self.insert,
        );
        page.histogram(
            &format!("{name}_query_duration_seconds"),
            "Time to find the answer to a question, including the wait, in seconds.",
            &self.search,
        );
        let help = "Records and questions that were refused or failed.";
        page.counter(&format!("{name}_refused_total"), help, &self.refused);
    }
}
