//! Requests to a relay that have several answers. Each ends when it is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use crate::client::{ClientShared, send};
use crate::error::PeerError;
use crate::route::{BytesPermit, ComparisonAnswer, SubscriptionAnswer};

/// All answers to a request are given so many times as long as one.
pub(crate) const PATIENCE_FOR_ALL: u32 = 10;

/// The stored and live events of a filter. Dropping this closes the subscription.
pub(crate) struct RelaySubscription {
    pub(crate) id: String,
    pub(crate) answers: mpsc::UnboundedReceiver<(SubscriptionAnswer, Option<BytesPermit>)>,
    pub(crate) shared: Arc<ClientShared>,
    pub(crate) outgoing: mpsc::Sender<Message>,
    pub(crate) is_open: bool,
    /// How long answers were waited for in all.
    pub(crate) waited: Duration,
}

impl RelaySubscription {
    /// Waits for the next answer, as long as the relay is given for one.
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

    /// Waits for the next answer for as long as the connection lives.
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

/// Sends a message that ends a request, from where nothing can wait.
fn close(shared: &ClientShared, outgoing: &mpsc::Sender<Message>, text: String) {
    shared.sent_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
    if let Err(mpsc::error::TrySendError::Full(message)) = outgoing.try_send(Message::text(text))
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        let outgoing = outgoing.clone();
        // Fails if the connection has ended, which ends the request, too.
        runtime.spawn(async move { outgoing.send(message).await.is_ok() });
    }
}

/// An open comparison. Dropping this closes it.
pub(crate) struct Comparing {
    pub(crate) id: String,
    pub(crate) answers: mpsc::UnboundedReceiver<(ComparisonAnswer, BytesPermit)>,
    pub(crate) shared: Arc<ClientShared>,
    pub(crate) outgoing: mpsc::Sender<Message>,
    /// When the answer that is awaited was asked for.
    pub(crate) asked: Instant,
}

impl Comparing {
    /// Waits for the next answer. Notices give the relay no more time for it.
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
