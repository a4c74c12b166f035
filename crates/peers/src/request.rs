//! Requests to a relay that have several answers. Dropping a request also ends the request at the
//! relay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::error::PeerError;
use crate::link::RelayLink;
use crate::route::{BytesPermit, ComparisonAnswer, SubscriptionAnswer};

/// Time limit for all answers to a request, as a multiple of the time limit for one answer.
pub(crate) const PATIENCE_FOR_ALL: u32 = 10;

/// The stored and live events of a filter. Dropping this value closes the subscription.
pub(crate) struct RelaySubscription {
    id: String,
    answers: mpsc::UnboundedReceiver<(SubscriptionAnswer, Option<BytesPermit>)>,
    link: Arc<RelayLink>,
    is_open: bool,
    /// Total time spent waiting for answers.
    waited: Duration,
}

impl RelaySubscription {
    /// Begins a subscription. `filter` is a filter's JSON.
    pub(crate) async fn open(link: &Arc<RelayLink>, filter: &str) -> Result<Self, PeerError> {
        let id = format!("h{}", link.next_number());
        let (to, answers) = mpsc::unbounded_channel();
        link.routes.lock().subscriptions.insert(id.clone(), to);
        let request = format!("[\"REQ\",\"{id}\",{filter}]");
        let link = Arc::clone(link);
        let subscription = Self { id, answers, link, is_open: true, waited: Duration::ZERO };
        subscription.link.send(request).await?;
        Ok(subscription)
    }

    /// Waits for the next answer, up to the time limit for one answer.
    pub(crate) async fn next(
        &mut self,
        what: &'static str,
    ) -> Result<SubscriptionAnswer, PeerError> {
        let Self { answers, link, is_open, waited, .. } = self;
        let (answer, _permit) = if let Ok(answer) = answers.try_recv() {
            answer
        } else {
            let began = Instant::now();
            let answer = link.within(what, async || answers.recv().await).await?;
            if !link.was_held_up_since(began) {
                *waited += began.elapsed();
            }
            if *waited > link.patience() * PATIENCE_FOR_ALL {
                return Err(link.silence_error(what));
            }
            answer
        };
        *is_open &= !matches!(answer, SubscriptionAnswer::Closed(_));
        Ok(answer)
    }

    /// Waits for the next answer, without a time limit while the connection is open.
    pub(crate) async fn next_live(&mut self) -> Result<SubscriptionAnswer, PeerError> {
        match self.answers.recv().await {
            Some((answer, _permit)) => {
                self.is_open &= !matches!(answer, SubscriptionAnswer::Closed(_));
                Ok(answer)
            }
            None => Err(self.link.ended_error()),
        }
    }
}

impl Drop for RelaySubscription {
    fn drop(&mut self) {
        self.link.routes.lock().subscriptions.remove(&self.id);
        if self.is_open {
            self.link.send_later(format!("[\"CLOSE\",\"{}\"]", self.id));
        }
    }
}

/// An open comparison. Dropping this value closes the comparison.
pub(crate) struct RelayComparison {
    id: String,
    answers: mpsc::UnboundedReceiver<(ComparisonAnswer, BytesPermit)>,
    link: Arc<RelayLink>,
    /// Time at which the last message, which is not answered yet, was sent.
    sent_at: Instant,
}

impl RelayComparison {
    /// Begins a comparison (NIP-77). `filter` is a filter's JSON, and `hex` is the first message.
    pub(crate) async fn open(
        link: &Arc<RelayLink>,
        filter: &str,
        hex: &str,
    ) -> Result<Self, PeerError> {
        let id = format!("n{}", link.next_number());
        let (to, answers) = mpsc::unbounded_channel();
        link.routes.lock().comparisons.insert(id.clone(), to);
        let request = format!("[\"NEG-OPEN\",\"{id}\",{filter},\"{hex}\"]");
        let comparison = Self { id, answers, link: Arc::clone(link), sent_at: Instant::now() };
        comparison.link.send(request).await?;
        Ok(comparison)
    }

    /// Waits for the next answer. A notice does not restart the time limit for the answer.
    pub(crate) async fn next(&mut self) -> Result<ComparisonAnswer, PeerError> {
        let Self { answers, link, sent_at, .. } = self;
        let what = "a comparison";
        let (answer, _permit) = link.within(what, async || answers.recv().await).await?;
        if !matches!(answer, ComparisonAnswer::Notice(_)) {
            return Ok(answer);
        }
        if sent_at.elapsed() > link.patience() && !link.was_held_up_since(*sent_at) {
            return Err(link.silence_error(what));
        }
        Ok(answer)
    }

    /// Whether the reading task was blocked since `began`.
    pub(crate) fn was_held_up_since(&self, began: Instant) -> bool {
        self.link.was_held_up_since(began)
    }

    /// Sends the next message.
    pub(crate) async fn send(&mut self, hex: &str) -> Result<(), PeerError> {
        self.sent_at = Instant::now();
        let text = format!("[\"NEG-MSG\",\"{}\",\"{hex}\"]", self.id);
        self.link.send(text).await
    }
}

impl Drop for RelayComparison {
    fn drop(&mut self) {
        self.link.routes.lock().comparisons.remove(&self.id);
        self.link.send_later(format!("[\"NEG-CLOSE\",\"{}\"]", self.id));
    }
}
