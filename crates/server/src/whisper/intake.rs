//! Charges received envelopes to their senders, and stores the admitted envelopes.

use std::sync::Arc;
use std::time::Instant;

use hark_archive::CommitError;
use hark_codec::whisper::record::encode;
use hark_codec::whisper::{Envelope, EnvelopeError};
use hark_networks::whisper::admit::EnvelopeRefusal;

use super::mail_server::MailServer;
use super::metrics::{EnvelopeFate, MailSource};
use crate::metrics::MetricLabel as _;
use crate::rate::{RateSource, RateSubject};
use crate::roster::{self, ClientRefusal};
use crate::service::{Archived, NotStored, SubmittedRecord};

/// Maximum number of refused envelopes that are reported to the sender of a packet or a request.
/// Further envelopes are not read, because the answer would be many times as long as the sent data.
pub(super) const FAULTS_MAX: usize = 1_000;

/// Why an envelope was not stored.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum EnvelopeRejection {
    /// The bytes are not an envelope.
    #[error(transparent)]
    Malformed(#[from] EnvelopeError),
    /// The envelope is not admissible.
    #[error(transparent)]
    Refused(#[from] EnvelopeRefusal),
    /// The sender exceeds its rate limit for envelopes.
    #[error("the envelope was not stored: rate limit exceeded")]
    TooMany,
    /// The sender exceeds its rate limit for envelopes of new topics.
    #[error("the envelope was not stored: rate limit of new topics exceeded")]
    TooManyTopics,
    /// The archive failed to commit the envelope.
    #[error("the envelope was not stored: {0}")]
    Store(Arc<CommitError>),
    /// The server is shutting down.
    #[error("the envelope was not stored: the server is going down")]
    Down,
}

impl From<NotStored> for EnvelopeRejection {
    fn from(why: NotStored) -> Self {
        match why {
            NotStored::Archive(error) => Self::Store(error),
            NotStored::Down => Self::Down,
        }
    }
}

/// An accepted envelope that is not durable yet.
pub(crate) struct PendingEnvelope {
    from: MailSource,
    bytes: u64,
    began: Instant,
    submitted: SubmittedRecord,
}

impl MailServer {
    fn count(&self, from: MailSource, fate: EnvelopeFate) {
        self.metrics.envelopes.of(from).of(fate).add(1);
        if matches!(fate, EnvelopeFate::Stored | EnvelopeFate::Duplicate) {
            return roster::count_accepted();
        }
        let is_too_many = matches!(fate, EnvelopeFate::TooMany);
        roster::count_refusal(&ClientRefusal {
            verb: "envelope",
            verdict: fate.name(),
            reason: if is_too_many {
                "more envelopes than a rate of its address allows"
            } else {
                ""
            },
            is_of_record: true,
            // Peers are not logged, because they may only have forwarded the envelope.
            is_logged: is_too_many && matches!(from, MailSource::Rest),
        });
    }

    /// Checks an envelope and begins to store the envelope. `sender` is the source that the
    /// envelope is charged to; without a sender, there is no rate limit. Waits while too many bytes
    /// of envelopes are not durable yet.
    ///
    /// [`MailServer::wait_until_durable`] waits until the envelope is durable. A caller with
    /// several envelopes submits all of them before it waits for the first envelope.
    pub(crate) async fn submit(
        &self,
        from: MailSource,
        sender: Option<RateSource>,
        rlp: &[u8],
    ) -> Result<PendingEnvelope, EnvelopeRejection> {
        let began = Instant::now();
        let settings = self.config.settings.load_full();
        let sender = sender.filter(|_| !self.unlimited).map(RateSubject::Events);
        let questions = &self.service.questions;
        if sender.is_some_and(|sender| !questions.charge(sender, settings.envelopes)) {
            self.count(from, EnvelopeFate::TooMany);
            return Err(EnvelopeRejection::TooMany);
        }
        let envelope =
            Envelope::parse(rlp).inspect_err(|_| self.count(from, EnvelopeFate::Malformed))?;
        settings
            .bounds
            .admit(&envelope, self.now_s())
            .inspect_err(|refusal| self.count(from, (*refusal).into()))?;
        let of_topics = sender.filter(|_| !self.topics.has(envelope.topic));
        let (buckets, rate) = (&self.topic_buckets, settings.new_topics);
        if of_topics.is_some_and(|sender| !questions.charge_in(buckets, sender, rate)) {
            self.count(from, EnvelopeFate::TooMany);
            return Err(EnvelopeRejection::TooManyTopics);
        }
        let mut record = Vec::new();
        encode(&envelope, &envelope.hash(), &mut record);
        let submitted = self.service.intake.enter(record).await?.submit()?;
        Ok(PendingEnvelope { from, bytes: rlp.len() as u64, began, submitted })
    }

    /// Waits until an envelope is durable.
    pub(crate) async fn wait_until_durable(
        &self,
        pending: PendingEnvelope,
    ) -> Result<Archived, EnvelopeRejection> {
        let PendingEnvelope { from, bytes, began, submitted } = pending;
        let archived = submitted.durable().await.map(Archived::from);
        let fate = match archived {
            Ok(Archived::Stored) => {
                self.metrics.insert.note(began.elapsed());
                self.metrics.stored_bytes.add(bytes);
                EnvelopeFate::Stored
            }
            Ok(Archived::Duplicate) => EnvelopeFate::Duplicate,
            Err(_) => EnvelopeFate::Failed,
        };
        self.count(from, fate);
        Ok(archived?)
    }
}
