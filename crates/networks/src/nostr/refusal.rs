//! Refusals in the form of NIP-01: a machine-readable prefix, and words for people. A rule returns
//! a verdict, and this module writes the verdict's prefix into the message to the client.

use std::borrow::Cow;
use std::fmt;

use hark_archive::SearchError;
use hark_codec::crypto::VerifyError;
use hark_codec::nostr::negentropy::NegentropyError;
use hark_codec::nostr::{CheckError, EventError, FilterError, MessageErrorKind, reply};
use hark_codec::record::Id;

/// Why a message gets an answer other than plain success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NostrVerdict {
    /// The event is already stored, so nothing is done.
    Duplicate,
    /// Refused: a version that supersedes the event is stored.
    Replaced,
    /// Refused: too little proof of work.
    Pow,
    /// Refused by the relay's bounds or rules.
    Blocked,
    /// Refused: a rate limit or a limit of concurrent work is reached.
    RateLimited,
    /// Refused: the message, event or filter is malformed.
    Invalid,
    /// Refused, because this reader or writer has no permission.
    Restricted,
    /// The relay failed to carry out the request.
    Error,
    /// Refused until the client authenticates.
    AuthRequired,
    /// The relay does not offer the requested function.
    Unsupported,
    /// The comparison is not open, or was ended because its client took too long.
    Closed,
}

impl NostrVerdict {
    /// The prefix of the verdict in messages, without the colon. Most prefixes are from NIP-01;
    /// `auth-required` is from NIP-42, and `closed` from NIP-77. Other relays send `replaced` and
    /// `unsupported`, too. There is no verdict for the prefix `mute` of NIP-01, because it would
    /// reveal who is online.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Replaced => "replaced",
            Self::Pow => "pow",
            Self::Blocked => "blocked",
            Self::RateLimited => "rate-limited",
            Self::Invalid => "invalid",
            Self::Restricted => "restricted",
            Self::Error => "error",
            Self::AuthRequired => "auth-required",
            Self::Unsupported => "unsupported",
            Self::Closed => "closed",
        }
    }

    /// Whether OK reports the event as accepted: the relay has the event.
    pub fn is_accepted(self) -> bool {
        self == Self::Duplicate
    }

    /// Makes a refusal with this verdict. `words` has the reason.
    pub fn because(self, words: impl Into<Cow<'static, str>>) -> NostrRefusal {
        NostrRefusal { verdict: self, words: words.into() }
    }
}

/// A verdict, with the reason as text for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NostrRefusal {
    /// The verdict, for programs.
    pub verdict: NostrVerdict,
    /// The reason, without a prefix.
    pub words: Cow<'static, str>,
}

impl fmt::Display for NostrRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict.prefix(), self.words)
    }
}

impl NostrRefusal {
    /// Appends the OK of an event.
    pub fn write_ok(&self, out: &mut Vec<u8>, id: &Id) {
        reply::write_ok(out, id, self.verdict.is_accepted(), self);
    }

    /// Appends the CLOSED of a subscription or count.
    pub fn write_closed(&self, out: &mut Vec<u8>, sub: &str) {
        reply::write_closed(out, sub, self);
    }

    /// Appends a NOTICE, for a message that names no event and no subscription.
    pub fn write_notice(&self, out: &mut Vec<u8>) {
        reply::write_notice(out, self);
    }

    /// Appends the NEG-ERR of a comparison (NIP-77). If the comparison has too many events,
    /// `events_max` is the maximum number of events.
    pub fn write_neg_err(&self, out: &mut Vec<u8>, sub: &str, events_max: Option<u64>) {
        reply::write_neg_err(out, sub, self, events_max);
    }
}

impl From<&MessageErrorKind> for NostrRefusal {
    fn from(error: &MessageErrorKind) -> Self {
        let verdict = match error {
            MessageErrorKind::TooManyFilters(_) => NostrVerdict::Blocked,
            MessageErrorKind::Type(_) => NostrVerdict::Unsupported,
            MessageErrorKind::Filter(error) => return error.into(),
            _ => NostrVerdict::Invalid,
        };
        verdict.because(error.to_string())
    }
}

impl From<&FilterError> for NostrRefusal {
    fn from(error: &FilterError) -> Self {
        let verdict = match error {
            FilterError::TooManyValues(_) => NostrVerdict::Blocked,
            error if error.is_unsupported() => NostrVerdict::Unsupported,
            _ => NostrVerdict::Invalid,
        };
        verdict.because(error.to_string())
    }
}

impl From<EventError> for NostrRefusal {
    fn from(error: EventError) -> Self {
        NostrVerdict::Invalid.because(error.to_string())
    }
}

impl From<VerifyError> for NostrRefusal {
    fn from(error: VerifyError) -> Self {
        NostrVerdict::Invalid.because(error.to_string())
    }
}

impl From<CheckError> for NostrRefusal {
    fn from(error: CheckError) -> Self {
        NostrVerdict::Invalid.because(error.to_string())
    }
}

impl From<NegentropyError> for NostrRefusal {
    fn from(error: NegentropyError) -> Self {
        NostrVerdict::Invalid.because(error.to_string())
    }
}

impl From<SearchError> for NostrRefusal {
    fn from(error: SearchError) -> Self {
        NostrVerdict::Error.because(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use hark_codec::nostr::{ClientMessage, MessageBuffers};

    use super::*;

    #[test]
    fn the_prefix_stands_before_the_words_in_every_message() {
        let refusal = NostrVerdict::RateLimited.because("slow down");
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8(out).unwrap()
        };
        let zeros = "00".repeat(32);
        for (got, expected) in [
            (
                written(&|out| refusal.write_ok(out, &[0; 32])),
                &*format!(r#"["OK","{zeros}",false,"rate-limited: slow down"]"#),
            ),
            (
                written(&|out| NostrVerdict::Duplicate.because("x").write_ok(out, &[0; 32])),
                &*format!(r#"["OK","{zeros}",true,"duplicate: x"]"#),
            ),
            (
                written(&|out| refusal.write_closed(out, "s")),
                r#"["CLOSED","s","rate-limited: slow down"]"#,
            ),
            (written(&|out| refusal.write_notice(out)), r#"["NOTICE","rate-limited: slow down"]"#),
            (
                written(&|out| refusal.write_neg_err(out, "n", Some(7))),
                r#"["NEG-ERR","n","rate-limited: slow down",7]"#,
            ),
        ] {
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn messages_that_cannot_be_parsed_have_a_verdict() {
        for (text, expected) in [
            (r#"["PING"]"#, r#"unsupported: message type "PING""#),
            (r#"["REQ","s"]"#, "invalid: no filter"),
            (r#"["REQ","s",{},{}]"#, "blocked: more than 1 filters"),
            (
                r#"["REQ","s",{"kinds":[1,1,1,1]}]"#,
                "blocked: a filter has more than 3 values, including repeated values; split it",
            ),
            (r#"["REQ","s",{"foo":1}]"#, r#"unsupported: filter element "foo""#),
            (r#"["REQ","s",{"ids":1}]"#, "invalid: ids is not an array"),
            (r#"["EVENT",1]"#, "invalid: event is not an object"),
        ] {
            let mut buffers = MessageBuffers::new(1).with_values_max(3);
            let error = ClientMessage::parse(text.as_bytes(), &mut buffers).unwrap_err();
            assert_eq!(NostrRefusal::from(&error.reason).to_string(), expected);
        }
    }
}
