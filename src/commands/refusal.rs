//! The reasons why an import or an adoption does not store an event.

use hark_archive::Outcome;
use hark_archive::effects::Refusal;
use hark_networks::LineFault;

/// The reason why an event is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalReason {
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
    Banned,
    /// The source no longer has the event. Only adoptions use this reason.
    Gone,
    /// The key of the row is not a key that a mail server makes. Only adoptions of a mail server use
    /// this reason.
    Foreign,
    /// The message has no payload. Only adoptions distinguish this reason and the following ones.
    NoPayload,
    /// The message has no content topic, or a topic that is not UTF-8.
    BadTopic,
    /// The message has no time, or a time before 1970.
    BadTime,
}

impl RefusalReason {
    /// The number of reasons.
    pub(super) const COUNT: usize = Self::BadTime as usize + 1;

    /// Returns the reason why a line gives no record, and details, which may be empty.
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

    /// Returns the reason why the store did not store a record; `None` if the record was stored.
    pub(super) fn of(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Stored { .. } | Outcome::Erased(_) => None,
            Outcome::Duplicate => Some(Self::Duplicate),
            Outcome::Superseded => Some(Self::Superseded),
            Outcome::Refused(Refusal::Deleted) => Some(Self::Deleted),
            Outcome::Refused(Refusal::Vanished) => Some(Self::Vanished),
            Outcome::Refused(Refusal::Banned) => Some(Self::Banned),
        }
    }
}
