//! A histogram of times in a fixed amount of memory. Each bucket is 1 to 2 % wide.

use std::time::Duration;

use crate::report::Curve;

/// Number of buckets for each doubling of the time.
const STEPS: usize = 64;
/// Number of doublings. The histogram covers times from nanoseconds to more than an hour.
const DOUBLINGS: usize = 42;

/// A histogram of times. The percentiles of the histogram have an error of about 1 %.
#[derive(Clone)]
pub(crate) struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    /// The exact sum of all times, and the exact shortest and longest time.
    sum: Duration,
    least: Duration,
    most: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            buckets: vec![0; STEPS * DOUBLINGS],
            count: 0,
            sum: Duration::ZERO,
            least: Duration::MAX,
            most: Duration::ZERO,
        }
    }
}

/// Returns the bucket of a time in ns.
fn bucket(ns: u64) -> usize {
    let ns = ns.max(STEPS as u64);
    let doublings = ns.ilog2() - STEPS.ilog2();
    let step = (ns >> doublings) as usize - STEPS;
    ((doublings as usize) * STEPS + step).min(STEPS * DOUBLINGS - 1)
}

/// Returns the middle of a bucket, in ns.
fn middle(bucket: usize) -> f64 {
    let (doublings, step) = (bucket / STEPS, bucket % STEPS);
    ((STEPS + step) as f64 + 0.5) * (1u64 << doublings) as f64
}

impl Latencies {
    pub(crate) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(time);
        self.least = self.least.min(time);
        self.most = self.most.max(time);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (own, other) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += other;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }

    /// Returns the number of times.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean of all times in ms. `None` without times.
    pub(crate) fn mean_ms(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.as_secs_f64() * 1e3 / self.count as f64)
    }

    /// Returns the shortest time in ms. `None` without times.
    pub(crate) fn least_ms(&self) -> Option<f64> {
        (self.count > 0).then_some(self.least.as_secs_f64() * 1e3)
    }

    /// Returns the longest time in ms. `None` without times.
    pub(crate) fn most_ms(&self) -> Option<f64> {
        (self.count > 0).then_some(self.most.as_secs_f64() * 1e3)
    }

    /// Returns the time in ms that a `share` of all times does not exceed. `None` without times.
    pub(crate) fn at_ms(&self, share: f64) -> Option<f64> {
        // The rank of the time, counted from 1.
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut passed = 0;
        let found = self.buckets.iter().position(|bucket| {
            passed += bucket;
            passed >= rank
        });
        found.filter(|_| self.count > 0).map(|bucket| middle(bucket) / 1e6)
    }

    /// Returns the times at every percentile from 0 to 100.
    pub(crate) fn curve(&self, name: &str) -> Curve {
        let points = (0..=100).filter_map(|percent| self.at_ms(f64::from(percent) / 100.0));
        Curve { name: name.into(), points: points.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut times = Latencies::default();
        assert_eq!([times.at_ms(0.5), times.mean_ms(), times.least_ms()], [None; 3]);
        for us in (1..=1_000).rev() {
            times.add(Duration::from_micros(us));
        }
        for (share, expected_ms) in
            [(0.0, 0.001), (0.5, 0.5), (0.95, 0.95), (0.99, 0.99), (1.0, 1.0)]
        {
            let found = times.at_ms(share).unwrap();
            assert!((found / expected_ms - 1.0).abs() < 0.02, "{share}: {found}");
        }
        let exact = [times.least_ms(), times.mean_ms(), times.most_ms()].map(Option::unwrap);
        for (found, expected_ms) in exact.into_iter().zip([0.001, 0.5005, 1.0]) {
            assert!((found - expected_ms).abs() < 1e-9, "{exact:?}");
        }
        let mut both = times.clone();
        both.merge(&times);
        assert_eq!((both.count, both.at_ms(0.5)), (2_000, times.at_ms(0.5)));
        let curve = times.curve("all").points;
        assert!(curve.len() == 101 && curve.is_sorted());
    }

    #[test]
    fn no_time_is_too_short_or_too_long() {
        let mut times = Latencies::default();
        times.add(Duration::ZERO);
        times.add(Duration::from_hours(24));
        assert!(times.at_ms(0.0).unwrap() < 0.001);
        assert!(times.at_ms(1.0).unwrap() > 60_000.0);
        assert_eq!(bucket(64), 0);
        assert!((0..40u32).all(|doubling| bucket(1 << doubling) <= bucket((1 << doubling) + 1)));
    }
}
