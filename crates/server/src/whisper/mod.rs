//! The Whisper mail server: accepts envelopes and serves history, by REST and by devp2p (EIP-627,
//! 6/WAKU1, 8/WAKU-MAIL).
//!
//! `hark_networks::whisper::admit` decides which envelopes are accepted, and [`history`] answers
//! requests. `rest` is the HTTP interface, which other mail servers do not have. It makes history
//! available to programs that do not speak devp2p.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use hark_archive::{CommitError, Outcome, Write, writer};
use hark_codec::whisper::record::encode;
use hark_codec::whisper::{Envelope, EnvelopeError, HistoryRequest};
use hark_networks::whisper::admit::{EnvelopeBounds, EnvelopeRefusal};
use tokio::sync::{Semaphore, oneshot};

use crate::limits::Rate;
use crate::metrics::SearchDriver;
use crate::permits::{Share, Shares};
use crate::rate::{RateBuckets, RateSource, RateSubject};
use crate::shelf::{self, Shelf};
use crate::slow::{SearchCost, SlowLog};
use crate::turns::{AnswerWaiter, NotAsked, QuestionSlots, StoreLocation, TurnAnswer};
use crate::{Clients, WebAccess};
use history::{EnvelopePage, EnvelopeQuestion, MailError, PageBounds};
use metrics::{EnvelopeFate, MailMetrics, MailSource, RequestFate};
use topics::TopicIndex;

mod door;
pub mod history;
pub mod metrics;
#[cfg(feature = "devp2p")]
pub mod peers;
mod prometheus;
mod rest;
#[cfg(feature = "devp2p")]
pub mod rlpx;
pub mod topics;

/// Maximum size of the envelopes that wait to be durable, in bytes. Above this bound senders wait.
const INTAKE_BYTES_MAX: usize = 64 << 20;
/// Minimum charge for an envelope, in bytes. The minimum ensures that no more envelopes wait than
/// the writer's queue holds.
const INTAKE_BYTES_MIN: usize = INTAKE_BYTES_MAX / INTAKE_MAX;
/// Maximum number of envelopes that wait to be durable.
const INTAKE_MAX: usize = 16_384;

/// Maximum number of refused envelopes that are reported to the sender of a packet or a request.
/// Further envelopes are not read, because the answer would be many times as long as the sent data.
const FAULTS_MAX: usize = 1_000;

/// Maximum size of the envelopes on an answer's first page, in bytes, unless a single envelope is
/// longer.
const PAGE_BYTES: usize = 256 << 10;
/// Maximum size of the envelopes on later pages of a long answer, in bytes. Each page is a separate
/// search.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum size of all pages that clients have not read yet, in bytes.
const PAGES_BYTES_MAX: usize = 256 << 20;
/// Maximum size of such pages for one address, in bytes.
const PAGES_BYTES_PER_ADDRESS_MAX: usize = 64 << 20;

/// Rows that a search may visit on an async worker thread, which other tasks share.
const ROWS_AT_ONCE: u64 = 20_000;

/// A mail server, ready to be served.
pub struct MailService {
    /// The configuration of the mail server.
    pub config: MailConfig,
    /// The options of the mail server's store.
    pub shelf: shelf::ShelfOptions,
}

/// The settings that can change while a mail server runs.
#[derive(Clone, Debug, PartialEq)]
pub struct MailSettings {
    /// The bounds for accepted envelopes.
    pub bounds: EnvelopeBounds,
    /// Requests allowed per client. `None` is unlimited.
    pub requests: Option<Rate>,
    /// Envelopes allowed per address. `None` is unlimited.
    pub envelopes: Option<Rate>,
    /// Envelopes of topics that are new to the archive, allowed per address. `None` is unlimited.
    pub new_topics: Option<Rate>,
    /// Maximum number of rows that a request may visit.
    pub query_rows_max: u64,
}

impl Default for MailSettings {
    fn default() -> Self {
        Self {
            bounds: EnvelopeBounds::default(),
            requests: None,
            // Status' network had 34 envelopes a minute in 2019, and a peer sends all its stored
            // envelopes at once.
            envelopes: Some(Rate { per_minute: 6_000, at_once: 60_000 }),
            // Status' network had 9,606 topics in a month.
            new_topics: Some(Rate { per_minute: 60, at_once: 20_000 }),
            query_rows_max: 5_000_000,
        }
    }
}

/// A shared handle of the current settings. Any holder can replace the settings while the mail
/// server runs.
pub type SharedMailSettings = Arc<ArcSwap<MailSettings>>;

/// Makes a shared handle that holds these settings.
pub fn shared(settings: MailSettings) -> SharedMailSettings {
    Arc::new(ArcSwap::from_pointee(settings))
}

/// The configuration of a mail server.
#[derive(Clone, Debug)]
pub struct MailConfig {
    /// Address of the REST interface. `None` disables the REST interface.
    pub rest: Option<SocketAddr>,
    /// The web pages that may use the REST interface.
    pub access: WebAccess,
    /// Configuration of the devp2p interface. `None` disables the devp2p interface.
    #[cfg(feature = "devp2p")]
    pub peers: Option<peers::PeersConfig>,
    /// The settings that can change while the mail server runs.
    pub settings: SharedMailSettings,
    /// Where the store does its work: in this process, or in a database.
    pub store_at: StoreLocation,
    /// The name of the store in metrics: `embedded` or `postgres`.
    pub database: &'static str,
}

impl Default for MailConfig {
    /// A mail server without any interface, on an archive in files.
    fn default() -> Self {
        Self {
            rest: None,
            access: WebAccess::default(),
            #[cfg(feature = "devp2p")]
            peers: None,
            settings: SharedMailSettings::default(),
            store_at: StoreLocation::Process,
            database: "embedded",
        }
    }
}

/// The state that all interfaces share.
pub(crate) struct MailServer {
    shelf: Arc<Shelf>,
    topics: Arc<TopicIndex>,
    pub(crate) metrics: MailMetrics,
    slow: SlowLog,
    /// Permits, in bytes, for envelopes that wait to be durable.
    intake: Arc<Semaphore>,
    slots: QuestionSlots,
    /// Permits, in bytes, for pages in transmission.
    pages: Shares<RateSource>,
    buckets: RateBuckets,
    /// The rate limits for new topics.
    topic_buckets: RateBuckets,
    /// Whether the rate limits for envelopes are disabled.
    unlimited: bool,
    clients: Clients,
    config: MailConfig,
}

/// A page and its memory permit.
pub(crate) struct PermittedEnvelopes {
    pub(crate) page: EnvelopePage,
    pub(crate) room: Share<RateSource>,
}

/// Maximum size of an answer's next page, in bytes. Each page may be twice as long as the previous
/// page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageBytes(usize);

impl Default for PageBytes {
    fn default() -> Self {
        Self(PAGE_BYTES)
    }
}

impl PageBytes {
    /// Allows a longer page.
    pub(crate) fn grow(&mut self) {
        self.0 = PAGE_BYTES_MAX.min(2 * self.0);
    }
}

/// The result for an accepted envelope, which is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Archived {
    /// The envelope is new.
    Stored,
    /// The envelope was stored before.
    Duplicate,
}

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

/// An accepted envelope that is not durable yet.
pub(crate) struct PendingEnvelope {
    from: MailSource,
    bytes: u64,
    began: Instant,
    done: oneshot::Receiver<Result<Outcome, Arc<CommitError>>>,
}

impl MailServer {
    /// Returns the current settings.
    pub(crate) fn settings(&self) -> Guard<Arc<MailSettings>> {
        self.config.settings.load()
    }

    /// The current time, in seconds since 1970.
    pub(crate) fn now_s(&self) -> u64 {
        self.shelf.clock().now_s()
    }

    fn count(&self, from: MailSource, fate: EnvelopeFate) {
        self.metrics.envelopes.of(from).of(fate).add(1);
    }

    /// Counts a request.
    pub(crate) fn count_request(&self, from: MailSource, fate: RequestFate) {
        self.metrics.requests.of(from).of(fate).add(1);
    }

    /// Checks an envelope and begins to store the envelope. `sender` is the source that the
    /// envelope is charged to; without a sender, there is no rate limit. Waits while too many bytes
    /// of envelopes are not durable yet.
    ///
    /// [`MailServer::settle`] waits until the envelope is durable. A caller with several envelopes
    /// submits all of them before the first call of `settle`.
    pub(crate) async fn submit(
        &self,
        from: MailSource,
        sender: Option<RateSource>,
        rlp: &[u8],
    ) -> Result<PendingEnvelope, EnvelopeRejection> {
        let began = Instant::now();
        let settings = self.config.settings.load_full();
        let sender = sender.filter(|_| !self.unlimited).map(RateSubject::Events);
        let too_many = |_: &Duration| self.count(from, EnvelopeFate::TooMany);
        if let Some((sender, rate)) = sender.zip(settings.envelopes) {
            let taken = self.buckets.take(sender, rate).inspect_err(too_many);
            taken.map_err(|_| EnvelopeRejection::TooMany)?;
        }
        let envelope =
            Envelope::parse(rlp).inspect_err(|_| self.count(from, EnvelopeFate::Malformed))?;
        settings
            .bounds
            .admit(&envelope, self.now_s())
            .inspect_err(|refusal| self.count(from, (*refusal).into()))?;
        if let Some((sender, rate)) = sender.zip(settings.new_topics)
            && !self.topics.has(envelope.topic)
        {
            let taken = self.topic_buckets.take(sender, rate).inspect_err(too_many);
            taken.map_err(|_| EnvelopeRejection::TooManyTopics)?;
        }
        let mut record = Vec::new();
        encode(&envelope, &envelope.hash(), &mut record);
        let share = record.len().clamp(INTAKE_BYTES_MIN, INTAKE_BYTES_MAX) as u32;
        let room = Arc::clone(&self.intake).acquire_many_owned(share).await;
        let room = room.map_err(|_| EnvelopeRejection::Down)?;
        let (send, done) = oneshot::channel();
        let callback: writer::WriteCallback = Box::new(move |outcome| {
            drop(room);
            // The receiver may be dropped.
            let _ = send.send(outcome);
        });
        self.shelf
            .writer()
            .try_submit(Write::Put(record.into()), callback)
            .map_err(|_| EnvelopeRejection::Down)?;
        Ok(PendingEnvelope { from, bytes: rlp.len() as u64, began, done })
    }

    /// Waits until an envelope is durable.
    pub(crate) async fn settle(
        &self,
        pending: PendingEnvelope,
    ) -> Result<Archived, EnvelopeRejection> {
        let PendingEnvelope { from, bytes, began, done } = pending;
        let archived = match done.await {
            Ok(Ok(Outcome::Duplicate)) => Ok(Archived::Duplicate),
            Ok(Ok(_)) => Ok(Archived::Stored),
            Ok(Err(error)) => Err(EnvelopeRejection::Store(error)),
            Err(_) => Err(EnvelopeRejection::Down),
        };
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
        archived
    }

    /// Charges one request to a client. Fails if the client exceeds its rate limit.
    pub(crate) fn allow(&self, from: RateSource) -> Result<(), MailError> {
        let Some(rate) = self.settings().requests else { return Ok(()) };
        let taken = self.buckets.take(RateSubject::Questions(from), rate);
        taken.map_err(|_| MailError::TooMany)
    }

    /// Creates the search for a request. A request without a limit gets `limit_default`.
    pub(crate) fn question(
        &self,
        request: &HistoryRequest<'_>,
        limit_default: usize,
    ) -> EnvelopeQuestion {
        EnvelopeQuestion::new(request, &self.topics, self.now_s(), limit_default)
    }

    /// Returns the next page of a search. If the source's share of the memory for pages does not
    /// suffice for a long page, the page is no longer than an answer's first page.
    pub(crate) async fn page(
        &self,
        (from, source): (MailSource, RateSource),
        question: &EnvelopeQuestion,
        PageBytes(bytes): PageBytes,
    ) -> Result<PermittedEnvelopes, MailError> {
        let take = |bytes| Some((bytes, self.pages.take(source, bytes)?));
        let taken = take(bytes).or_else(|| take(PAGE_BYTES));
        let (bytes, mut room) = taken.ok_or(MailError::Busy)?;
        let began = Instant::now();
        let TurnAnswer { answer: page, waited } = self.find(source, question, bytes).await?;
        let time = began.elapsed();
        self.metrics.page.note(time);
        if self.slow.is_slow(time) {
            let (rows, plan) = match &page {
                Ok(page) => (page.rows, SearchDriver::from(page.driver)),
                Err(MailError::TooDear) => {
                    (self.settings().query_rows_max, SearchDriver::from(None))
                }
                Err(_) => (0, SearchDriver::from(None)),
            };
            let spent = SearchCost { time, waited, rows, plan };
            let limit = question.query.limit;
            self.slow.note("MAIL", &spent, std::iter::once((&question.query, limit)));
        }
        let page = page?;
        room.shrink(page.rlp().len());
        self.metrics.sent.of(from).add(page.len() as u64);
        self.metrics.sent_bytes.of(from).add(page.rlp().len() as u64);
        self.metrics.damaged.of(from).add(page.damaged.into());
        Ok(PermittedEnvelopes { page, room })
    }

    async fn find(
        &self,
        source: RateSource,
        question: &EnvelopeQuestion,
        bytes: usize,
    ) -> Result<TurnAnswer<Result<EnvelopePage, MailError>>, MailError> {
        let rows = self.settings().query_rows_max;
        let bounds = PageBounds { envelopes: usize::MAX, bytes, rows };
        if self.config.store_at == StoreLocation::Process {
            // Switching threads would take longer than nearly every search.
            let few = PageBounds { rows: rows.min(ROWS_AT_ONCE), ..bounds };
            let waiter = AnswerWaiter::default();
            let page = history::page(&**self.shelf.store(), question, &few, &waiter);
            if few.rows == rows || page != Err(MailError::TooDear) {
                return Ok(TurnAnswer { answer: page, waited: Duration::ZERO });
            }
        }
        let (store, question) = (Arc::clone(self.shelf.store()), question.clone());
        let search =
            move |waiter: &AnswerWaiter| history::page(&*store, &question, &bounds, waiter);
        self.slots.run_for(source, search, |_| {}).await.map_err(|not_asked| match not_asked {
            NotAsked::Line => MailError::Busy,
            NotAsked::Panicked => MailError::Down,
        })
    }
}
