//! An event that passed every check except the signature check, and the action for the event once
//! its signature is verified.

use std::sync::Arc;

use hark_archive::writer::WriterBusy;
use hark_archive::{Outcome, Record, Write};
use hark_codec::crypto::Signature;
use hark_codec::hex;
use hark_codec::nostr::{Event, REQUESTS, npub};
use hark_codec::record::{Id, Key};
use hark_networks::nostr::admit;
use hark_networks::nostr::requests::is_heard;
use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use super::event_checks::IntakeContext;
use super::metrics::Verb;
use super::own::MembershipRequest;
use super::reply_handle::ReplyHandle;
use crate::roster::KeyName;

/// An event that passed every check except the signature check.
pub(super) struct CheckedEvent {
    pub(super) id: Id,
    pub(super) kind: u16,
    pub(super) key: Key,
    pub(super) signature: Signature,
    pub(super) purpose: EventPurpose,
    /// Whether the event is a request about its author's own data, such as a deletion.
    pub(super) is_own_request: bool,
    pub(super) from: ReplyHandle,
}

/// The action for an event once its signature is verified. `Keep`, `KeepRequest` and `PassOn`
/// contain the event's record.
pub(super) enum EventPurpose {
    Keep(Vec<u8>),
    /// A request about its author's own data, such as a deletion, from an author who may not
    /// publish, for the given reason.
    KeepRequest(Vec<u8>, NostrRefusal),
    PassOn(Vec<u8>),
    /// A request to join or to leave, which is neither stored nor passed on.
    ChangeMembership(MembershipRequest),
    Prove,
}

impl CheckedEvent {
    pub(super) fn new(event: &Event<'_>, purpose: EventPurpose, from: ReplyHandle) -> Self {
        Self {
            id: *event.id(),
            kind: event.kind(),
            key: *event.pubkey(),
            signature: *event.signature(),
            purpose,
            is_own_request: false,
            from,
        }
    }

    /// Carries out the purpose of an event that passed every check.
    pub(super) fn land(self, parts: &IntakeContext) {
        let Self { id, kind, key, purpose, from, .. } = self;
        match purpose {
            EventPurpose::Keep(record) => {
                // Checked here as well, because a ban may have come into force meanwhile.
                let check = parts.moderation.check();
                let banned = check.late_refusal(&id, &key).filter(|_| !REQUESTS.contains(&kind));
                if let Some(refusal) = banned {
                    from.rated.refund(&key, kind);
                    return from.refuse(&id, &refusal);
                }
                // Not held during `submit`, which waits while the writer's queue is full.
                drop(check);
                submit(parts, (id, key), kind, record, from);
            }
            EventPurpose::KeepRequest(record, refusal) => {
                match is_heard(&**parts.shelf.store(), &record) {
                    Ok(true) => submit(parts, (id, key), kind, record, from),
                    Ok(false) => {
                        from.rated.refund(&key, kind);
                        from.refuse(&id, &refusal);
                    }
                    Err(error) => {
                        from.rated.refund(&key, kind);
                        from.refuse(&id, &error.into());
                    }
                }
            }
            EventPurpose::PassOn(record) => {
                let check = parts.moderation.check();
                if let Some(refusal) = check.late_refusal(&id, &key) {
                    from.rated.refund(&key, kind);
                    return from.refuse(&id, &refusal);
                }
                if let Ok(record) = Record::new(&record) {
                    parts.shelf.pass_on(&record);
                }
                // An ephemeral event can be sent again and again, by anybody.
                if !from.caller.gate().readers.contains(&key) {
                    from.rated.refund(&key, kind);
                }
                from.accepted(&id, kind);
            }
            EventPurpose::ChangeMembership(request) => {
                let membership = Arc::clone(&parts.membership);
                // The permits of the handle bound the number of these tasks.
                tokio::spawn(async move {
                    match membership.carry_out(request, key).await {
                        Ok(words) => from.accepted_with(&id, kind, &words),
                        Err(refusal) => from.refuse(&id, &refusal),
                    }
                });
            }
            EventPurpose::Prove => {
                let keys_max = parts.settings.load().limits.auth_keys_max;
                match from.caller.prove(&key, keys_max) {
                    Ok(()) => {
                        from.rated.listed().prove(&key);
                        from.rated.listed().add_key(KeyName {
                            shown: npub::encode(&key).into(),
                            digits: hex::text_32(&key).into(),
                        });
                        // A new ban closes the connections that have the key in the list of open
                        // connections. A ban from before the key was added did not find this
                        // connection.
                        match parts.moderation.key_ban(&key) {
                            Some(reason) => {
                                from.rated.listed().kick(&reason);
                                from.refuse(&id, &NostrVerdict::Blocked.because(reason));
                            }
                            None => from.done(&id),
                        }
                    }
                    Err(refusal) => from.refuse(&id, &refusal),
                }
            }
        }
    }
}

/// Passes an event to the writer, and blocks while the writer's queue is full. Blocking is
/// safe: this thread has no other work, and the queue of the intake is bounded.
fn submit(
    parts: &IntakeContext,
    (id, key): (Id, Key),
    kind: u16,
    record: Vec<u8>,
    from: ReplyHandle,
) {
    let (outbox, rated) = (Arc::clone(from.outbox()), from.rated.clone());
    let moderation = parts.moderation.clone();
    let is_request = REQUESTS.contains(&kind);
    let done = move |result: Result<_, Arc<hark_archive::CommitError>>| match result {
        Ok(outcome) => {
            if !matches!(outcome, Outcome::Stored { .. }) {
                from.rated.refund(&key, kind);
            }
            // Held until the OK is in the outbox, so that no OK follows a ban.
            let check = moderation.check();
            let banned = check.late_refusal(&id, &key).filter(|_| !is_request);
            match banned.map_or_else(|| admit::answer(kind, outcome), Err) {
                Ok(()) => from.accepted(&id, kind),
                Err(refusal) => from.refuse(&id, &refusal),
            }
        }
        Err(error) => {
            from.rated.refund(&key, kind);
            let words = format!("event was not kept: {error}");
            from.refuse(&id, &NostrVerdict::Error.because(words));
        }
    };
    if let Err(WriterBusy(_)) =
        parts.shelf.writer().submit(Write::Put(record.into()), Box::new(done))
    {
        rated.refund(&key, kind);
        let refusal = NostrVerdict::Error.because("the archive takes no more writes");
        parts.metrics.refused(Verb::Event, refusal.verdict);
        outbox.push_message(|out| refusal.write_ok(out, &id));
    }
}
