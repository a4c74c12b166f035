//! How long something takes, and how often it allocates.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Rounds of one operation: their median counts.
const ROUNDS: usize = 31;
/// How long a round takes at least.
const ROUND_US: u128 = 1_000;

/// Takes the figures of one library for one message.
pub struct Meter {
    allocations: Option<fn() -> usize>,
    figures: Vec<Figure>,
}

/// What one operation costs.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Which.
    pub operation: &'static str,
    /// Of one run: the median of many rounds.
    pub ns: f64,
    /// Of one run on buffers that have grown, if anybody counted.
    pub allocations: Option<f64>,
}

impl Meter {
    pub(super) fn new(allocations: Option<fn() -> usize>) -> Self {
        Self { allocations, figures: Vec::new() }
    }

    /// Measures `run`.
    pub fn measure(&mut self, operation: &'static str, mut run: impl FnMut()) {
        // The first run makes buffers grow.
        run();
        let allocations = self.allocations.map(|count| {
            let before = count();
            run();
            (count() - before) as f64
        });
        let mut times = 1_u32;
        while round(times, &mut run).as_micros() < ROUND_US {
            times *= 2;
        }
        let mut rounds: Vec<_> = (0..ROUNDS).map(|_| round(times, &mut run)).collect();
        rounds.sort_unstable();
        let ns = rounds[ROUNDS / 2].as_nanos() as f64 / f64::from(times);
        self.figures.push(Figure { operation, ns, allocations });
    }

    pub(super) fn figures(self) -> Vec<Figure> {
        self.figures
    }
}

/// Makes the compiler believe that a value is needed.
pub fn keep<T>(value: T) {
    let _ = black_box(value);
}

fn round(times: u32, run: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        run();
    }
    start.elapsed()
}
