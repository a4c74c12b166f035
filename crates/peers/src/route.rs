//! Routes the answers of a relay to their requests.
//!
//! Every answer holds a permit for its bytes until the answer is processed, and the client reads
//! nothing from the relay while no permits are left. So if a relay sends faster than events are
//! checked and written, the relay has to wait.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use hark_codec::record::Id;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use crate::message::RelaySays;

/// Maximum number of remembered notices, which are shown with an error.
const NOTICES_MAX: usize = 4;

/// The permit for the bytes of an answer.
pub(crate) type BytesPermit = OwnedSemaphorePermit;

/// A received event that is not checked yet.
#[derive(Debug)]
pub struct RelayEvent {
    text: Utf8Bytes,
    event: Range<usize>,
    pub(crate) permit: BytesPermit,
}

impl RelayEvent {
    /// The event's JSON.
    pub(crate) fn json(&self) -> &str {
        self.text.get(self.event.clone()).unwrap_or_default()
    }
}

/// An answer to a REQ.
#[derive(Debug)]
pub(crate) enum SubscriptionAnswer {
    Event(RelayEvent),
    /// The relay has sent all stored events. `finish` means that the relay has no more matching
    /// events (NIP-67).
    Eose {
        finish: bool,
    },
    Closed(String),
    /// An event that is too long was skipped. The number is the length of its message in bytes.
    TooLong(u64),
}

/// An answer to a message of a comparison.
#[derive(Debug)]
pub(crate) enum ComparisonAnswer {
    /// A message, in hex.
    Message(String),
    Refused(String),
    /// A text for people, received while an answer was awaited.
    Notice(String),
}

/// An answer to an EVENT: whether the event was accepted, and the relay's reason.
pub(crate) type PublishAnswer = (bool, String);

/// The receivers of answers.
#[derive(Default)]
pub(crate) struct AnswerRoutes {
    pub(crate) subscriptions:
        HashMap<String, mpsc::UnboundedSender<(SubscriptionAnswer, Option<BytesPermit>)>>,
    pub(crate) comparisons: HashMap<String, mpsc::UnboundedSender<(ComparisonAnswer, BytesPermit)>>,
    /// The receivers of the answer to each event. Several callers may send the same event at the
    /// same time.
    pub(crate) published: HashMap<Id, Vec<oneshot::Sender<PublishAnswer>>>,
    pub(crate) notices: VecDeque<String>,
    /// The relay's last challenge.
    pub(crate) challenge: Option<String>,
}

impl AnswerRoutes {
    /// Passes an answer to its request. Answers to requests that have ended are dropped.
    pub(crate) fn pass(&mut self, says: RelaySays, text: &Utf8Bytes, permit: BytesPermit) {
        let subscription = |id: &str, answer, permit| {
            if let Some(to) = self.subscriptions.get(id) {
                // This fails only if the request has just ended and no longer needs the answer.
                let _ = to.send((answer, permit));
            }
        };
        match says {
            RelaySays::Event { subscription: id, event } => {
                let event = RelayEvent { text: text.clone(), event, permit };
                subscription(&id, SubscriptionAnswer::Event(event), None);
            }
            RelaySays::Eose { subscription: id, finish } => {
                subscription(&id, SubscriptionAnswer::Eose { finish }, Some(permit));
            }
            RelaySays::Closed { subscription: id, reason } => {
                subscription(&id, SubscriptionAnswer::Closed(reason), Some(permit));
            }
            RelaySays::TooLong { subscription: id, bytes } => {
                let id = id.unwrap_or_default();
                subscription(&id, SubscriptionAnswer::TooLong(bytes), Some(permit));
            }
            RelaySays::Ok { id, accepted, reason } => {
                for to in self.published.remove(&id).unwrap_or_default() {
                    let _ = to.send((accepted, reason.clone()));
                }
            }
            RelaySays::NegMsg { comparison, message } => {
                self.compared(&comparison, ComparisonAnswer::Message(message), permit);
            }
            RelaySays::NegErr { comparison, reason } => {
                self.compared(&comparison, ComparisonAnswer::Refused(reason), permit);
            }
            RelaySays::Notice(notice) => {
                // A notice names no request. If exactly one comparison is open, the notice may be
                // its answer, because relays that do not support comparisons answer with a notice.
                if self.comparisons.len() == 1
                    && let Some(to) = self.comparisons.values().next()
                {
                    let _ = to.send((ComparisonAnswer::Notice(notice.clone()), permit));
                }
                if self.notices.len() == NOTICES_MAX {
                    self.notices.pop_front();
                }
                self.notices.push_back(notice);
            }
            RelaySays::Auth(challenge) => self.challenge = Some(challenge),
            RelaySays::Other => {}
        }
    }

    fn compared(&mut self, id: &str, answer: ComparisonAnswer, permit: BytesPermit) {
        if let Some(to) = self.comparisons.get(id) {
            let _ = to.send((answer, permit));
        }
    }
}
