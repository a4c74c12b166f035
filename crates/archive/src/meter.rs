//! Metrics: counters and histograms of durations. Each update is an addition without a lock, so
//! metrics are cheap enough for code that runs for every record. A value that is read may be
//! slightly out of date.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter that goes up, or a gauge that goes up and down.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts `count`, for a gauge.
    pub fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the classes of a [`Histogram`], in nanoseconds: 1, 2.5 and 5 times each power of
/// ten from 10 µs to 10 s. Longer durations are in one more class.
pub const BOUNDS_NS: [u64; 19] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    classes: [Counter; BOUNDS_NS.len() + 1],
    sum_ns: Counter,
}

/// The values of a [`Histogram`] at the time of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// The number of durations in each class of [`BOUNDS_NS`]; the last entry is for longer
    /// durations.
    pub classes: [u64; BOUNDS_NS.len() + 1],
    /// The sum of all durations.
    pub sum_ns: u64,
}

impl Histogram {
    /// Adds a duration.
    pub fn note(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.classes[BOUNDS_NS.partition_point(|bound| *bound < time_ns)].add(1);
        self.sum_ns.add(time_ns);
    }

    /// Returns the current values.
    pub fn read(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            classes: self.classes.each_ref().map(Counter::get),
            sum_ns: self.sum_ns.get(),
        }
    }
}

impl HistogramSnapshot {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_class_that_holds_it() {
        let histogram = Histogram::default();
        for time_ns in [0, 10_000, 10_001, 10_000_000_000, 10_000_000_001] {
            histogram.note(Duration::from_nanos(time_ns));
        }
        let times = histogram.read();
        assert_eq!((times.classes[0], times.classes[1]), (2, 1));
        assert_eq!((times.classes[18], times.classes[19], times.count()), (1, 1, 5));
        assert_eq!(times.sum_ns, 20_000_020_002);
    }
}
