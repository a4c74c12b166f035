//! Admits received messages, and stores or relays the admitted messages.

use std::sync::Arc;
use std::time::Instant;

use hark_archive::{CommitError, Record};
use hark_codec::waku::{Message, MessageEncoder, RateLimitProof, Shard, signed};
use hark_networks::waku::admit;

use super::metrics::{MessageFate, MessageOrigin};
use super::node::WakuNode;
use crate::metrics::MetricLabel as _;
use crate::roster::{self, ClientRefusal};
use crate::service::{Archived, NotStored};

/// The result for an accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptResult {
    /// Durable.
    Stored,
    /// The message was stored before.
    Duplicate,
    /// Relayed and not stored.
    Ephemeral,
}

/// Why a message was not accepted or not stored.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum MessageRejection {
    /// The message is not admissible.
    #[error(transparent)]
    Refused(#[from] admit::MessageRefusal),
    /// The archive failed to commit the message.
    #[error("the message was not stored: {0}")]
    Store(Arc<CommitError>),
    /// The node is shutting down.
    #[error("the message was not stored: the node is going down")]
    Down,
}

impl From<Archived> for AcceptResult {
    fn from(archived: Archived) -> Self {
        match archived {
            Archived::Stored => Self::Stored,
            Archived::Duplicate => Self::Duplicate,
        }
    }
}

impl From<NotStored> for MessageRejection {
    fn from(why: NotStored) -> Self {
        match why {
            NotStored::Archive(error) => Self::Store(error),
            NotStored::Down => Self::Down,
        }
    }
}

impl WakuNode {
    /// Checks a message and stores it: see [`WakuNode::admit`] and [`WakuNode::store_message`].
    pub(crate) async fn accept_message(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        bytes: usize,
        pubsub_topic: &str,
    ) -> Result<AcceptResult, MessageRejection> {
        self.admit(origin, message, bytes, pubsub_topic)?;
        self.store_message(origin, message, pubsub_topic).await
    }

    /// Checks whether a message of `bytes` bytes is admissible. Counts refused messages.
    pub(super) fn admit(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        bytes: usize,
        pubsub_topic: &str,
    ) -> Result<(), admit::MessageRefusal> {
        let settings = self.settings();
        let bounds = admit::MessageBounds {
            message_bytes_max: self.config.message_bytes_max,
            window_ns: settings.window_ns,
            epoch_ns: self.config.proofs.then_some(admit::EPOCH_NS),
        };
        let admitted = match origin {
            MessageOrigin::Rest | MessageOrigin::LightPush if !self.config.forward => {
                Err(admit::MessageRefusal::Listener)
            }
            MessageOrigin::Store => bounds.admit_old(message, bytes).map(drop),
            _ => bounds.admit(message, bytes, self.now_ns()),
        };
        let admitted = admitted
            .and_then(|()| self.admit_signed(origin, message, pubsub_topic))
            .and_then(|()| self.admit_proved(origin, message, pubsub_topic));
        admitted.inspect_err(|refusal| self.count(origin, (*refusal).into()))
    }

    /// Checks the signature of a message if the message's shard is protected. Messages from other
    /// stores also need a signature, but may be of any age.
    fn admit_signed(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<(), admit::MessageRefusal> {
        let settings = self.settings();
        let protected = &settings.protected_shards;
        let shard = if protected.is_empty() { None } else { pubsub_topic.parse::<Shard>().ok() };
        let on = |shard: Shard| protected.iter().find(|protected| protected.shard == shard.index);
        let Some(protected) = shard.and_then(on) else { return Ok(()) };
        let time = message.timestamp.unwrap_or_default().cast_unsigned();
        let in_time =
            origin == MessageOrigin::Store || self.now_ns().abs_diff(time) < signed::WINDOW_NS;
        if in_time && protected.key.has_signed(message, pubsub_topic) {
            Ok(())
        } else {
            Err(admit::MessageRefusal::Unsigned)
        }
    }

    /// If the message needs a rate-limit proof: checks that no other message has the same
    /// nullifier.
    fn admit_proved(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<(), admit::MessageRefusal> {
        if !self.config.proofs || origin == MessageOrigin::Store {
            return Ok(());
        }
        let proof = message.proof.and_then(RateLimitProof::parse);
        let proof = proof.ok_or(admit::MessageRefusal::Proof)?;
        let is_first =
            self.nullifiers.note((proof.epoch, *proof.nullifier), &message.hash(pubsub_topic));
        if is_first { Ok(()) } else { Err(admit::MessageRefusal::Nullifier) }
    }

    /// Stores an admitted message. On return the message is durable, unless it is ephemeral.
    pub(super) async fn store_message(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<AcceptResult, MessageRejection> {
        if origin != MessageOrigin::Store {
            self.metrics.payload_bytes.note(message.payload.len() as u64);
        }
        let began = Instant::now();
        let accepted = self.store(origin, message, pubsub_topic).await;
        let fate = match &accepted {
            Ok(AcceptResult::Stored) => {
                self.metrics.insert.note(began.elapsed());
                if let Ok(shard) = pubsub_topic.parse::<Shard>() {
                    self.metrics.stored(shard.index);
                }
                MessageFate::Stored
            }
            Ok(AcceptResult::Duplicate) => MessageFate::Duplicate,
            Ok(AcceptResult::Ephemeral) => MessageFate::Ephemeral,
            Err(_) => MessageFate::Insert,
        };
        self.count(origin, fate);
        accepted
    }

    fn count(&self, origin: MessageOrigin, fate: MessageFate) {
        self.metrics.messages.of(origin).of(fate).add(1);
        if !MessageFate::FAILED.contains(&fate) {
            return roster::count_accepted();
        }
        roster::count_refusal(&ClientRefusal {
            verb: "message",
            verdict: fate.name(),
            reason: "",
            is_of_record: true,
            // The peer may only have forwarded the message of another node.
            is_logged: false,
        });
    }

    /// Whether a message is so young that nodes may still forward the message.
    fn may_be_new(&self, message: &Message<'_>) -> bool {
        let time_ns = message.timestamp.unwrap_or_default().cast_unsigned();
        let window_ns = self.settings().window_ns;
        window_ns.is_some_and(|window_ns| self.now_ns().abs_diff(time_ns) <= window_ns)
    }

    async fn store(
        &self,
        origin: MessageOrigin,
        message: &Message<'_>,
        pubsub_topic: &str,
    ) -> Result<AcceptResult, MessageRejection> {
        let (hash, mut record) = (message.hash(pubsub_topic), Vec::new());
        MessageEncoder::default().encode(message, pubsub_topic, &hash, &mut record);
        // Gossip may still bring a message of the last seconds, but then as a duplicate.
        let is_old = origin == MessageOrigin::Store && !self.may_be_new(message);
        if message.ephemeral == Some(true) {
            // An ephemeral message is not written, so no one waits for the disk.
            let _arrival = self.arriving.expect(hash, message, is_old);
            if let Ok(record) = Record::new(&record) {
                self.service.shelf.pass_on(&record);
            }
            return Ok(AcceptResult::Ephemeral);
        }
        let entered = self.service.intake.enter(record).await?;
        let arrival = self.arriving.expect(hash, message, is_old);
        let archived = entered.submit()?.durable().await.map(Archived::from);
        drop(arrival);
        Ok(archived?.into())
    }
}
