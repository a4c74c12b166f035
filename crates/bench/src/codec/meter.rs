//! Measures how long an operation takes, and how often it allocates.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Number of timed rounds of one operation. The result is the median of the rounds.
const ROUNDS: usize = 31;
/// Minimum duration of a round, in µs.
const ROUND_US: u128 = 1_000;

/// Collects the figures of one library for the messages of a case.
pub struct CodecMeter {
    /// The number of messages that one run of an operation processes.
    messages: usize,
    allocations: Option<fn() -> usize>,
    figures: Vec<Figure>,
}

/// The cost of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The name of the operation.
    pub operation: &'static str,
    /// The time for one message, in ns: the median of many rounds.
    pub ns: f64,
    /// The allocations for one message, once the buffers have reached their final size. `None` if they
    /// were not counted.
    pub allocations: Option<f64>,
}

impl CodecMeter {
    pub(super) fn new(messages: usize, allocations: Option<fn() -> usize>) -> Self {
        Self { messages, allocations, figures: Vec::new() }
    }

    /// Measures `run`, which processes all messages of the case, and adds its figure.
    pub fn measure(&mut self, operation: &'static str, mut run: impl FnMut()) {
        let messages = self.messages as f64;
        // In the first run, the buffers grow to their final size.
        run();
        let allocations = self.allocations.map(|count| {
            let before = count();
            run();
            (count() - before) as f64 / messages
        });
        let mut times = 1_u32;
        while round(times, &mut run).as_micros() < ROUND_US {
            times *= 2;
        }
        let mut rounds: Vec<_> = (0..ROUNDS).map(|_| round(times, &mut run)).collect();
        rounds.sort_unstable();
        let ns = rounds[ROUNDS / 2].as_nanos() as f64 / f64::from(times) / messages;
        self.figures.push(Figure { operation, ns, allocations });
    }

    pub(super) fn figures(self) -> Vec<Figure> {
        self.figures
    }
}

/// Keeps the compiler from removing the computation of a value.
pub fn consume_value<T>(value: T) {
    let _ = black_box(value);
}

fn round(times: u32, run: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        run();
    }
    start.elapsed()
}
