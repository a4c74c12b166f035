//! Waits for events that must come. A test waits until something has happened, never for a fixed
//! time.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// The longest time to wait. Even on a loaded machine, each step of a test needs much less time.
pub const PATIENCE: Duration = Duration::from_mins(2);
/// The pause after the first attempt. Each further pause is twice as long, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The deadline of a wait, and the pause before its next attempt.
struct Wait {
    until: Instant,
    pause: Duration,
}

impl Wait {
    fn new(patience: Duration) -> Self {
        Self { until: Instant::now() + patience, pause: PAUSE_MIN }
    }

    /// The pause before the next attempt; `None` after the deadline.
    fn next_pause(&mut self) -> Option<Duration> {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        (Instant::now() < self.until).then_some(pause)
    }
}

/// Waits until `holds` returns true. Panics with `what` in the message after [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(holds_within(PATIENCE, holds), "not within {PATIENCE:?}: {what}");
}

/// Returns whether `holds` returns true within this time.
pub fn holds_within(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let mut wait = Wait::new(patience);
    while !holds() {
        let Some(pause) = wait.next_pause() else { return false };
        std::thread::sleep(pause);
    }
    true
}

/// Waits for the first `Ok` of `attempt`, and returns its value. Panics with the last error after
/// [`PATIENCE`].
#[track_caller]
pub fn until_ok<T, E: Display>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let mut wait = Wait::new(PATIENCE);
    loop {
        let error = match attempt() {
            Ok(value) => return value,
            Err(error) => error,
        };
        let Some(pause) = wait.next_pause() else { panic!("not within {PATIENCE:?}: {error}") };
        std::thread::sleep(pause);
    }
}

/// Waits until `holds` returns true, for tests on an async runtime. Panics with `what` in the
/// message after [`PATIENCE`].
#[cfg(feature = "client")]
pub async fn until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let mut wait = Wait::new(PATIENCE);
    while !holds().await {
        let Some(pause) = wait.next_pause() else { panic!("not within {PATIENCE:?}: {what}") };
        tokio::time::sleep(pause).await;
    }
}
