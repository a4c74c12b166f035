//! The rate limits, and their default values.

/// A rate limit: a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of tokens that the bucket regains in a minute.
    pub per_minute: u64,
    /// Number of tokens of a full bucket.
    pub at_once: u64,
}

/// The rate limits; `None` means no limit. A message above a limit is answered with OK false,
/// CLOSED or NEG-ERR `rate-limited:`. The server then pauses reading from the connection until the
/// rate allows a message again, for at most a second. A NEG-MSG above a limit is deferred instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// EVENT and AUTH messages from one address, whatever their outcome. A long message counts once
    /// more for every 64 KiB.
    pub events_per_address: Option<Rate>,
    /// Events of one key with a valid signature.
    pub events_per_key: Option<Rate>,
    /// All other messages from one address, except CLOSE and NEG-CLOSE. A long message counts like
    /// a long event, but a NEG-MSG always counts once.
    pub questions_per_address: Option<Rate>,
    /// REQs, COUNTs, NEG-OPENs and NEG-MSGs of one authenticated key (NIP-42).
    pub questions_per_key: Option<Rate>,
    /// Rows that the searches and comparisons of one connection visit. Each record sent counts as
    /// ten more rows. The REQ, COUNT or NEG message that exceeds the rate is answered; the next
    /// REQ, COUNT or NEG-OPEN is refused.
    pub rows_per_connection: Option<Rate>,
    /// Rows that the searches and comparisons of one address visit, counted in the same way.
    pub rows_per_address: Option<Rate>,
}

impl RateLimits {
    /// Returns rates without any limit.
    pub const fn none() -> Self {
        Self {
            events_per_address: None,
            events_per_key: None,
            questions_per_address: None,
            questions_per_key: None,
            rows_per_connection: None,
            rows_per_address: None,
        }
    }
}

impl Default for RateLimits {
    fn default() -> Self {
        let rate = |per_minute, at_once| Some(Rate { per_minute, at_once });
        Self {
            events_per_address: rate(600, 1_200),
            events_per_key: rate(300, 600),
            questions_per_address: rate(1_200, 1_200),
            questions_per_key: rate(1_200, 1_200),
            rows_per_connection: rate(12_000_000, 3_000_000),
            rows_per_address: rate(24_000_000, 6_000_000),
        }
    }
}
