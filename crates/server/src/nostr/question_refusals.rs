//! Refusals that several parts of the relay send.

use std::time::Duration;

use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use crate::rate::RateExceeded;

impl From<RateExceeded> for NostrRefusal {
    fn from(too_fast: RateExceeded) -> Self {
        NostrVerdict::RateLimited.because(too_fast.words)
    }
}

/// Returns the refusal of a question that panicked.
pub(super) fn bug() -> NostrRefusal {
    NostrVerdict::Error.because("the relay failed at this; its log says how")
}

/// Returns the refusal of a question that exceeds its budget of rows.
pub(super) fn too_much() -> NostrRefusal {
    let words = "too much to read for one question; name authors, kinds, tags or a shorter time";
    NostrVerdict::Error.because(words)
}

/// Returns the refusal to continue an answer that the client has not read within this time.
pub(super) fn not_read(within: Duration) -> NostrRefusal {
    let minutes = within.as_secs() / 60;
    NostrVerdict::Error.because(format!("the answer was not read within {minutes} minutes"))
}
