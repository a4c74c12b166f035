//! Requests to a relay that have several answers. Dropping a request ends it on the relay.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use crate::client::{ClientShared, send};
use crate::error::PeerError;
use crate::route::{BytesPermit, ComparisonAnswer, SubscriptionAnswer};

/// Time limit for all answers to a request, as a multiple of the limit for one answer.
pub(crate) const PATIENCE_FOR_ALL: u32 = 10;

/// The stored and live events of a filter. Dropping this closes the subscription.
pub(crate) struct RelaySubscription {
    pub(crate) id: String,
    pub(crate) answers: mpsc::UnboundedReceiver<(SubscriptionAnswer, Option<BytesPermit>)>,
    pub(crate) shared: Arc<ClientShared>,
    pub(crate) outgoing: mpsc::Sender<Message>,
    pub(crate) is_open: bool,
    /// Total time spent waiting for answers.
    pub(crate) waited: Duration,
}

impl RelaySubscription {
    /// Waits for the next answer, up to the time limit for one answer.
    pub(crate) async fn next(
        &mut self,
        what: &'static str,
    ) -> Result<SubscriptionAnswer, PeerError> {
        let Self { answers, shared, is_open, waited, .. } = self;
        let (answer, _permit) = if let Ok(answer) = answers.try_recv() {
            answer
        } else {
            let began = Instant::now();
            let answer = shared.within(what, async || answers.recv().await).await?;
            if !shared.was_held_up_since(began) {
                *waited += began.elapsed();
            }
            if *waited > shared.patience() * PATIENCE_FOR_ALL {
                return Err(shared.silent(what));
            }
            answer
        };
        *is_open &= !matches!(answer, SubscriptionAnswer::Closed(_));
        Ok(answer)
    }

    /// Waits for the next answer, without a limit while the connection is open.
    pub(crate) async fn next_live(&mut self) -> Result<SubscriptionAnswer, PeerError> {
        match self.answers.recv().await {
            Some((answer, _permit)) => {
                self.is_open &= !matches!(answer, SubscriptionAnswer::Closed(_));
                Ok(answer)
            }
            None => Err(self.shared.ended_error()),
        }
    }
}

impl Drop for RelaySubscription {
    fn drop(&mut self) {
        self.shared.routes.lock().subscriptions.remove(&self.id);
        if self.is_open {
            close(&self.shared, &self.outgoing, format!("[\"CLOSE\",\"{}\"]", self.id));
        }
    }
}

/// Sends a message that ends a request, without blocking the caller.
fn close(shared: &ClientShared, outgoing: &mpsc::Sender<Message>, text: String) {
    shared.sent_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
    if let Err(mpsc::error::TrySendError::Full(message)) = outgoing.try_send(Message::text(text))
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        let outgoing = outgoing.clone();
        // Sending fails only if the connection has ended, which ends the request, too.
        runtime.spawn(async move { outgoing.send(message).await.is_ok() });
    }
}

/// An open comparison. Dropping this value closes the comparison.
pub(crate) struct Comparing {
    pub(crate) id: String,
    pub(crate) answers: mpsc::UnboundedReceiver<(ComparisonAnswer, BytesPermit)>,
    pub(crate) shared: Arc<ClientShared>,
    pub(crate) outgoing: mpsc::Sender<Message>,
    /// When the message that awaits an answer was sent.
    pub(crate) asked: Instant,
}

impl Comparing {
    /// Waits for the next answer. Notices do not extend the time limit for the answer.
    pub(crate) async fn next(&mut self) -> Result<ComparisonAnswer, PeerError> {
        let Self { answers, shared, asked, .. } = self;
        let what = "a comparison";
        let (answer, _permit) = shared.within(what, async || answers.recv().await).await?;
        if !matches!(answer, ComparisonAnswer::Notice(_)) {
            return Ok(answer);
        }
        if asked.elapsed() > shared.patience() && !shared.was_held_up_since(*asked) {
            return Err(shared.silent(what));
        }
        Ok(answer)
    }

    /// Sends the next message.
    pub(crate) async fn say(&mut self, hex: &str) -> Result<(), PeerError> {
        self.asked = Instant::now();
        let text = format!("[\"NEG-MSG\",\"{}\",\"{hex}\"]", self.id);
        send(&self.shared, &self.outgoing, text).await
    }
}

impl Drop for Comparing {
    fn drop(&mut self) {
        self.shared.routes.lock().comparisons.remove(&self.id);
        close(&self.shared, &self.outgoing, format!("[\"NEG-CLOSE\",\"{}\"]", self.id));
    }
}
