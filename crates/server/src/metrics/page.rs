//! The page for Prometheus, in its text format.
//!
//! The crate prometheus-client is not used, because it writes OpenMetrics. In OpenMetrics, the
//! names of counters would differ from the names that the networks' own servers and their
//! dashboards use.

use std::fmt::{Display, Write as _};

use hark_archive::meter::{BOUNDS_NS, HistogramSnapshot};

use super::{ByLabel, Counter, Histogram, MetricLabel};

/// The content type that Prometheus expects.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text of the page written so far.
#[derive(Default)]
pub struct MetricsPage(String);

impl MetricsPage {
    /// The page as text.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Writes the head of a metric: its type and its help text.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a line. `labels` is like `verb="REQ",result="ok"`, or empty.
    pub fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = if labels.is_empty() {
            writeln!(self.0, "{name} {value}")
        } else {
            writeln!(self.0, "{name}{{{labels}}} {value}")
        };
    }

    /// Writes a gauge: a number that may rise and fall.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.line(name, "", value);
    }

    /// Writes a counter: a number that only rises.
    pub fn counter(&mut self, name: &str, help: &str, count: &Counter) {
        self.head(name, "counter", help);
        self.line(name, "", count.get());
    }

    /// Writes counters, one for each value of a label.
    pub fn counters<L: MetricLabel>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        counts: &ByLabel<L>,
    ) {
        self.head(name, "counter", help);
        for (value, count) in counts.all() {
            self.line(name, &format!("{label}=\"{value}\""), count.get());
        }
    }

    /// Writes counters by two labels, with their head.
    pub fn counters_nested<A: MetricLabel, B: MetricLabel>(
        &mut self,
        name: &str,
        help: &str,
        [outer, inner]: [&str; 2],
        counts: &ByLabel<A, ByLabel<B>>,
    ) {
        self.head(name, "counter", help);
        for (outer_value, counts) in counts.all() {
            for (inner_value, count) in counts.all() {
                let labels = format!("{outer}=\"{outer_value}\",{inner}=\"{inner_value}\"");
                self.line(name, &labels, count.get());
            }
        }
    }

    /// Writes a histogram of times, with its head.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        self.classes(name, "", &histogram.read());
    }

    /// Writes the lines of a histogram of times, with labels.
    pub fn classes(&mut self, name: &str, labels: &str, times: &HistogramSnapshot) {
        self.buckets(name, labels, &BOUNDS_NS, &times.classes, times.sum_ns, 1e9);
    }

    /// Writes the lines of a histogram. The bounds and the sum are divided by `unit`. `classes`,
    /// the counts of the buckets, has one more entry than `bounds`, for the values above the last
    /// bound.
    pub fn buckets(
        &mut self,
        name: &str,
        labels: &str,
        bounds: &[u64],
        classes: &[u64],
        sum: u64,
        unit: f64,
    ) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        for (bound, class) in bounds.iter().zip(classes) {
            count += class;
            let bound = *bound as f64 / unit;
            let _ = writeln!(self.0, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
        }
        let count: u64 = classes.iter().sum();
        let _ = writeln!(self.0, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
        self.line(&format!("{name}_sum"), labels, sum as f64 / unit);
        self.line(&format!("{name}_count"), labels, count);
    }
}
