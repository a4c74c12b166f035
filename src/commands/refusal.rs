//! Why an event that was to be brought in was not stored.

use hark_archive::Outcome;
use hark_archive::admission::Refusal;
use hark_networks::LineFault;

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
    /// Why a line has no record, and words that say more, or none.
    pub(super) fn of_line(fault: LineFault) -> (Self, String) {
        match fault {
            LineFault::Malformed(words) => (Self::Malformed, words),
            LineFault::TooLarge(words) => (Self::TooLarge, words),
            LineFault::Id => (Self::BadId, String::new()),
            LineFault::Signature => (Self::BadSignature, String::new()),
            LineFault::Ephemeral => (Self::Ephemeral, String::new()),
            LineFault::Expired => (Self::Expired, String::new()),
            LineFault::Kept => (Self::Duplicate, String::new()),
        }
    }

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
