//! Errors in exchanges with a relay, and how long to wait before a retry.

use std::time::Duration;

/// Why an exchange with a relay failed. The texts are for people.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// The relay could not be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The connection ended.
    #[error("the connection ended: {0}")]
    Ended(String),
    /// The relay did not answer a request.
    #[error("the relay did not answer {what} within {within_s} s{said}")]
    Silent {
        /// The request.
        what: &'static str,
        /// The length of the wait, in seconds.
        within_s: u64,
        /// The relay's last notice, with leading punctuation; empty if there was no notice.
        said: String,
    },
    /// The relay refused a request.
    #[error("the relay refused {what}: {reason}")]
    Refused {
        /// The request.
        what: &'static str,
        /// The reason in the relay's answer.
        reason: String,
    },
    /// The relay broke the protocol or a limit.
    #[error("the relay broke the protocol: {0}")]
    Misbehaved(String),
    /// The local archive could not be read or written.
    #[error("{0}")]
    Archive(String),
}

impl PeerError {
    /// Whether the relay answered that the client must authenticate first.
    pub(crate) fn wants_auth(reason: &str) -> bool {
        reason.starts_with("auth-required") || reason.starts_with("restricted")
    }

    /// Whether the reason is a rate limit, so that the same request may succeed later.
    pub(crate) fn is_rate(reason: &str) -> bool {
        reason.starts_with("rate-limited")
    }
}

/// Number of waits in a row, with no accepted request in between, after which the client gives up.
/// These waits take some minutes in total.
const WAITS_MAX: u32 = 9;
/// The longest wait.
const WAIT_MAX_S: u64 = 60;

/// The waits after a relay has refused requests because of their rate. A wait has the length that
/// the relay's answer names, but at least a minimum and at most [`WAIT_MAX_S`]. The minimum doubles
/// with each wait until a request is accepted.
#[derive(Debug, Default)]
pub(crate) struct RateWaits {
    in_a_row: u32,
}

impl RateWaits {
    /// Returns the wait after a refusal of `what`. Fails if the relay has accepted nothing during
    /// [`WAITS_MAX`] waits.
    pub(crate) fn next(&mut self, what: &'static str, reason: &str) -> Result<Duration, PeerError> {
        if self.in_a_row >= WAITS_MAX {
            return Err(PeerError::Refused { what, reason: reason.into() });
        }
        let least_s = 1 << self.in_a_row;
        self.in_a_row += 1;
        let named_s = named_wait_s(reason).unwrap_or_default();
        Ok(Duration::from_secs(named_s.max(least_s).min(WAIT_MAX_S)))
    }

    /// Notes that the relay accepts requests again.
    pub(crate) fn over(&mut self) {
        self.in_a_row = 0;
    }
}

/// Maximum sum of all waits for the relay's rate limit in one synchronisation.
const RUN_WAITS_MAX: Duration = Duration::from_hours(1);

/// The sum of all waits for a relay's rate limit in one synchronisation. Unlike the waits in
/// [`RateWaits`], the sum does not start anew when the relay accepts a request.
#[derive(Debug, Default)]
pub(crate) struct RunWaits(Duration);

impl RunWaits {
    /// Adds a wait after a refusal of `what`. Fails if all waits together take too long.
    pub(crate) fn add(
        &mut self,
        wait: Duration,
        what: &'static str,
        reason: &str,
    ) -> Result<(), PeerError> {
        self.0 += wait;
        if self.0 > RUN_WAITS_MAX {
            return Err(PeerError::Refused { what, reason: reason.into() });
        }
        Ok(())
    }
}

/// Returns the wait in seconds that a refusal names, in the form of Hark's refusals: `wait 3 s`.
fn named_wait_s(reason: &str) -> Option<u64> {
    let (_, rest) = reason.rsplit_once("wait ")?;
    rest.split_once(" s")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_as_long_as_the_relay_says_and_grows_while_nothing_is_taken() {
        let mut waits = RateWaits::default();
        let mut next = |reason: &str| waits.next("events", reason).map(|wait| wait.as_secs()).ok();
        let told = "rate-limited: more than 600 events a minute of your address; wait 3 s";
        assert_eq!([next(told), next(told), next(told)], [Some(3), Some(3), Some(4)]);
        assert_eq!(next("rate-limited: slow down"), Some(8));
        assert_eq!(next("rate-limited: wait 100000 s"), Some(60));
        let left: Vec<_> = std::iter::from_fn(|| next("rate-limited:")).collect();
        assert_eq!(left, [32, 60, 60, 60], "then the client gives up");
        waits.over();
        assert!(waits.next("events", told).is_ok());
    }
}
