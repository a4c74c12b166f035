//! Fetches events by their ids, in several concurrent batches.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hark_archive::{Id, Query};
use hark_networks::Network;
use tokio::sync::mpsc;

use crate::client::PeerClient;
use crate::error::{PeerError, RateWaits};
use crate::feed::{MissedEvents, SeenIds};
use crate::intake::{AskedIds, IntakeQueue, Origin, Wanted};
use crate::meter::SyncMeter;
use crate::route::SubscriptionAnswer;

/// Number of ids in a batch, and the minimum to which this number shrinks after refusals.
const BATCH_IDS: usize = 500;
const BATCH_IDS_MIN: usize = 20;
/// Maximum number of concurrent batches.
const BATCHES: usize = 4;
/// Maximum number of ids that are not in a batch yet.
const WAITING_IDS: usize = 16 * BATCH_IDS;
/// Maximum number of events that a relay may list in a comparison and then not send. Above this
/// number, no more events are requested, because the relay may invent ids.
const NOT_SENT_MAX: u64 = 100_000;

/// Fetches events by their ids, and passes them on to be checked and stored.
pub(crate) struct Fetcher<'a> {
    pub(crate) client: &'a PeerClient,
    pub(crate) network: &'a dyn Network,
    pub(crate) intake: IntakeQueue,
    pub(crate) meter: &'a Arc<SyncMeter>,
    pub(crate) seen: Option<Arc<SeenIds>>,
    pub(crate) missed: Option<Arc<MissedEvents>>,
    /// See [`Origin::missed_from`].
    pub(crate) missed_from: u64,
    pub(crate) protected: bool,
}

/// How a batch ended.
struct BatchEnd {
    asked: usize,
    /// Ids of the events that have not arrived.
    left: Vec<Id>,
    /// Why the relay ended the batch early; `None` if the batch is complete.
    refusal: Option<String>,
}

impl Fetcher<'_> {
    /// Fetches the events with the ids from the channel `ids`, until the channel is closed.
    pub(crate) async fn run(&self, mut ids: mpsc::Receiver<Vec<Id>>) -> Result<(), PeerError> {
        let mut running = FuturesUnordered::new();
        let (mut waiting, mut batch_ids): (Vec<Id>, _) = (Vec::new(), BATCH_IDS);
        let (mut is_open, mut waits) = (true, RateWaits::default());
        let (mut came, mut not_sent) = (0, 0);
        loop {
            if not_sent > NOT_SENT_MAX && not_sent > came {
                self.meter.add(|meter| &meter.not_asked, waiting.len() as u64);
                waiting.clear();
            }
            // A short batch is requested only if no other batch is in flight.
            while running.len() < BATCHES
                && (waiting.len() >= batch_ids
                    || !waiting.is_empty() && (!is_open || running.is_empty()))
            {
                let batch = waiting.split_off(waiting.len().saturating_sub(batch_ids));
                running.push(self.batch(batch));
            }
            if !is_open && running.is_empty() && waiting.is_empty() {
                return Ok(());
            }
            tokio::select! {
                more = ids.recv(), if is_open && waiting.len() < WAITING_IDS => match more {
                    Some(more) => waiting.extend(more),
                    None => is_open = false,
                },
                Some(ended) = running.next(), if !running.is_empty() => {
                    let BatchEnd { asked, left, refusal } = ended?;
                    came += (asked - left.len()) as u64;
                    match refusal {
                        None if left.len() < asked => {
                            // The relay may have truncated the answer, so the missing events are
                            // requested again. The requests come to an end, because each such
                            // answer has brought at least one event.
                            waits.over();
                            waiting.extend(left);
                        }
                        None => {
                            not_sent += left.len() as u64;
                            self.meter.add(|meter| &meter.not_sent, left.len() as u64);
                            self.meter.check_forged()?;
                        }
                        Some(reason) if PeerError::is_rate(&reason) => {
                            let wait = waits.next("events by their ids", &reason)?;
                            self.meter.add(|meter| &meter.slowed, 1);
                            tokio::time::sleep(wait).await;
                            waiting.extend(left);
                        }
                        // [`Self::batch`] has proved the key to the relay, so the ids can be
                        // requested again.
                        Some(reason) if PeerError::wants_auth(&reason) => waiting.extend(left),
                        Some(reason) => {
                            if left.len() == asked && batch_ids <= BATCH_IDS_MIN {
                                return Err(PeerError::Refused { what: "events by their ids", reason });
                            }
                            batch_ids = (batch_ids / 2).max(BATCH_IDS_MIN);
                            waiting.extend(left);
                        }
                    }
                },
            }
        }
    }

    async fn batch(&self, ids: Vec<Id>) -> Result<BatchEnd, PeerError> {
        let count = ids.len();
        let mut query = Query { ids: Some(ids.clone()), limit: count, ..Query::default() };
        query.normalise();
        let filter = self.network.filters().text(&query);
        let asked = Arc::new(AskedIds::new(ids));
        let origin = Origin {
            meter: Arc::clone(self.meter),
            wanted: Wanted::Ids(Arc::clone(&asked)),
            seen: self.seen.clone(),
            missed: self.missed.clone(),
            missed_from: self.missed_from,
            protected: self.protected,
        };
        let proofs = self.client.proofs();
        let mut answers = self.client.subscribe(&filter).await?;
        let (mut received, mut refusal) = (0, None);
        loop {
            match answers.next("a request for events").await {
                Ok(SubscriptionAnswer::Event(event)) => {
                    received += 1;
                    bounded(received, count)?;
                    self.intake.put(event, origin.clone()).await?;
                }
                Ok(SubscriptionAnswer::TooLong(bytes)) => {
                    received += 1;
                    bounded(received, count)?;
                    self.meter.refuse_too_long(bytes);
                }
                Ok(SubscriptionAnswer::Eose { .. }) => break,
                Ok(SubscriptionAnswer::Closed(reason)) => {
                    refusal = Some(reason);
                    break;
                }
                // Some relays do not mark the end of an answer.
                Err(PeerError::Silent { .. }) if received > 0 => break,
                Err(error) => return Err(error),
            }
        }
        drop(answers);
        let left = asked.left().await;
        if let Some(reason) = refusal.as_deref().filter(|reason| PeerError::wants_auth(reason)) {
            // The key is proved here and not in the main loop, so that other batches continue
            // during the proof.
            self.client.authenticate_for(proofs, reason).await?;
        }
        Ok(BatchEnd { asked: count, left, refusal })
    }
}

/// Returns an error if more than twice the requested number of events was received.
fn bounded(received: usize, asked: usize) -> Result<(), PeerError> {
    if received <= 2 * asked {
        return Ok(());
    }
    let why = format!("it sent more than {} events in answer to a request for {asked}", 2 * asked);
    Err(PeerError::Misbehaved(why))
}
