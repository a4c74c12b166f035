//! Logs bursts of events: one line at intervals instead of one line per event.

use super::metrics::{ConnectionEnd, RelayMetrics};
use crate::metrics::{ByLabel, ConnectionRefusal, MetricLabel};

/// The counts that were logged so far.
#[derive(Default)]
pub(super) struct LoggedCounts {
    turned_away: Vec<u64>,
    slow: u64,
}

impl LoggedCounts {
    pub(super) fn log_growth(&mut self, metrics: &RelayMetrics) {
        if let Some(by_reason) = grown(&metrics.turned_away, &mut self.turned_away) {
            tracing::warn!(by_reason, "connections were refused");
        }
        let slow = metrics.ended.of(ConnectionEnd::Slow).get();
        if slow > self.slow {
            let closed = slow - self.slow;
            tracing::info!(
                closed,
                "connections were closed, because their clients read too slowly"
            );
            self.slow = slow;
        }
    }
}

/// The growth of each count since the last call, as text. `None` if no count has grown.
fn grown(counts: &ByLabel<ConnectionRefusal>, last: &mut Vec<u64>) -> Option<String> {
    last.resize(ConnectionRefusal::ALL.len(), 0);
    let mut words = Vec::new();
    for ((name, count), last) in counts.all().zip(last) {
        let more = count.get().saturating_sub(*last);
        *last += more;
        if more > 0 {
            words.push(format!("{more} {name}"));
        }
    }
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_one_line_with_its_numbers() {
        let (metrics, mut last) = (RelayMetrics::default(), Vec::new());
        assert_eq!(grown(&metrics.turned_away, &mut last), None);
        metrics.turned_away.of(ConnectionRefusal::Full).add(300);
        metrics.turned_away.of(ConnectionRefusal::Address).add(2);
        let line = grown(&metrics.turned_away, &mut last);
        assert_eq!(line.as_deref(), Some("300 full, 2 address"));
        assert_eq!(grown(&metrics.turned_away, &mut last), None);
    }
}
