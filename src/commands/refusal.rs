//! Why an event that was to be brought in was not stored.

use hark_archive::Outcome;
use hark_archive::admission::Refusal;

/// The reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Malformed,
    BadId,
    BadSignature,
    TooLarge,
    Ephemeral,
    Expired,
    Duplicate,
    Superseded,
    Deleted,
    Vanished,
    /// Its source has it no more; only an adoption knows.
    Gone,
}

impl Reason {
    /// Why the store did not keep a record; none if it did.
    pub(super) fn of(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Stored { .. } | Outcome::Erased(_) => None,
            Outcome::Duplicate => Some(Self::Duplicate),
            Outcome::Superseded => Some(Self::Superseded),
            Outcome::Refused(Refusal::Deleted) => Some(Self::Deleted),
            Outcome::Refused(Refusal::Vanished) => Some(Self::Vanished),
        }
    }
}
