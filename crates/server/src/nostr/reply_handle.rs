//! Answers the client that has sent an event.

use std::sync::Arc;

use hark_codec::nostr::reply;
use hark_codec::record::Id;
use hark_networks::nostr::{NostrRefusal, NostrVerdict};
use tokio::sync::OwnedSemaphorePermit;

use super::auth::ClientIdentity;
use super::metrics::Verb;
use super::outbox::{Outbox, RequestPermit};
use super::refused::note_refusal;
use crate::rate::RatedConnection;

/// A permit for the bytes of one event.
pub(crate) type EventPermit = OwnedSemaphorePermit;

/// The session to answer. Holds the permits for the request and for its bytes until the answer is
/// sent.
pub(super) struct ReplyHandle {
    request: RequestPermit,
    pub(super) caller: Arc<ClientIdentity>,
    pub(super) rated: RatedConnection,
    verb: Verb,
    _bytes: EventPermit,
}

impl ReplyHandle {
    /// Creates a handle for a request of `verb`.
    pub(super) fn new(
        verb: Verb,
        (request, bytes): (RequestPermit, EventPermit),
        caller: Arc<ClientIdentity>,
        rated: RatedConnection,
    ) -> Self {
        Self { request, caller, rated, verb, _bytes: bytes }
    }

    /// The outbox to the client.
    pub(super) fn outbox(&self) -> &Arc<Outbox> {
        self.request.outbox()
    }

    /// Counts an event that was stored or passed on, and answers it with OK.
    pub(super) fn accepted(&self, id: &Id, kind: u16) {
        self.outbox().metrics().events.add(kind);
        self.done(id);
    }

    /// Answers with OK true and no reason.
    pub(super) fn done(&self, id: &Id) {
        self.outbox().metrics().done(self.verb);
        if self.verb == Verb::Event {
            self.rated.listed().counts.accepted.add(1);
        }
        self.outbox().push_message(|out| reply::write_ok(out, id, true, ""));
    }

    /// Counts an event that was carried out, and answers it with OK true and these words.
    pub(super) fn accepted_with(&self, id: &Id, kind: u16, words: &str) {
        let metrics = self.outbox().metrics();
        metrics.events.add(kind);
        metrics.done(self.verb);
        self.rated.listed().counts.accepted.add(1);
        self.outbox().push_message(|out| reply::write_ok(out, id, true, words));
    }

    /// Answers with OK true although the event is refused. The refusal is counted.
    pub(super) fn feign(&self, id: &Id, msg: &str) {
        let refusal = NostrVerdict::Blocked.because("the plugin refuses the event in silence");
        note_refusal(self.outbox().metrics(), &self.rated, self.verb, &refusal);
        self.outbox().push_message(|out| reply::write_ok(out, id, true, msg));
    }

    pub(super) fn notice(&self, refusal: &NostrRefusal) {
        note_refusal(self.outbox().metrics(), &self.rated, self.verb, refusal);
        self.outbox().push_message(|out| refusal.write_notice(out));
    }

    /// Answers with an OK that gives the reason.
    pub(super) fn refuse(&self, id: &Id, refusal: &NostrRefusal) {
        if let Some(challenge) = self.caller.repeated_challenge(refusal) {
            self.outbox().push_message(|out| reply::write_auth(out, challenge));
        }
        note_refusal(self.outbox().metrics(), &self.rated, self.verb, refusal);
        self.outbox().push_message(|out| refusal.write_ok(out, id));
    }
}
