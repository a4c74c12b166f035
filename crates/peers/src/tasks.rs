//! The two tasks of a connection: one task reads messages and passes them to their requests, and
//! one task writes the queued messages.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::connection::{self, RelaySocket, shortened};
use crate::link::RelayLink;
use crate::message::{self, RelaySays};
use crate::route::BytesPermit;

/// Approximate memory of a message in bytes, in addition to the message's bytes.
const MESSAGE_OVERHEAD: usize = 256;
/// Interval at which the reading task notes that it is blocked.
const HELD_UP_EVERY: Duration = Duration::from_secs(1);

/// Reads until the connection ends, and returns the reason.
pub(crate) async fn read(link: &RelayLink, mut stream: SplitStream<RelaySocket>) -> String {
    let budget = Arc::new(Semaphore::new(link.options.waiting_bytes_max));
    let mut asked_for_life = false;
    loop {
        let message = match timeout(link.options.patience, stream.next()).await {
            Err(_) if asked_for_life => return "it does not answer pings".into(),
            Err(_) => {
                asked_for_life = true;
                link.ping();
                continue;
            }
            Ok(None) => return "the relay closed it".into(),
            Ok(Some(Err(error))) => return connection::words(&error),
            Ok(Some(Ok(message))) => message,
        };
        asked_for_life = false;
        match message {
            Message::Text(text) => {
                if let Err(why) = receive(link, &text, &budget).await {
                    return why;
                }
            }
            Message::Close(Some(frame)) if !frame.reason.is_empty() => {
                return format!("the relay closed it: {}", shortened(&frame.reason));
            }
            Message::Close(_) => return "the relay closed it".into(),
            Message::Binary(_) => return "it sent a binary message".into(),
            _ => {}
        }
    }
}

/// Passes a message to its request.
async fn receive(
    link: &RelayLink,
    text: &Utf8Bytes,
    budget: &Arc<Semaphore>,
) -> Result<(), String> {
    link.count_received(text.len());
    let says = message::read(text)?;
    if let RelaySays::TooLong { subscription: None, bytes } = says {
        let max = link.options.message_bytes_max;
        return Err(format!("it sent a message of {bytes} bytes, and {max} are read at most"));
    }
    let bytes = (text.len() + MESSAGE_OVERHEAD).min(link.options.waiting_bytes_max) as u32;
    let permit = permit(link, bytes, budget).await?;
    let challenges = matches!(says, RelaySays::Auth(_));
    link.routes.lock().pass(says, text, permit);
    if challenges {
        link.challenged.notify_one();
    }
    Ok(())
}

/// Waits for a permit for `bytes` bytes, and notes during the wait that the reading task is
/// blocked.
async fn permit(
    link: &RelayLink,
    bytes: u32,
    budget: &Arc<Semaphore>,
) -> Result<BytesPermit, String> {
    if let Ok(permit) = Arc::clone(budget).try_acquire_many_owned(bytes) {
        return Ok(permit);
    }
    let mut waiting = std::pin::pin!(Arc::clone(budget).acquire_many_owned(bytes));
    loop {
        link.note_held_up();
        if let Ok(permit) = timeout(HELD_UP_EVERY, &mut waiting).await {
            return permit.map_err(|error| error.to_string());
        }
    }
}

/// Writes the queued messages, and with them the answers to pings.
pub(crate) async fn write(
    link: &RelayLink,
    mut sink: SplitSink<RelaySocket, Message>,
    mut queue: mpsc::Receiver<Message>,
) -> Result<(), String> {
    let patience = link.options.patience;
    let late = |_| format!("the relay accepted no data for {} s", patience.as_secs());
    loop {
        let message = tokio::select! {
            message = queue.recv() => message,
            () = link.wait_for_end() => None,
        };
        let Some(message) = message else { return Ok(()) };
        let mut next = Some(message);
        while let Some(message) = next {
            let fed = timeout(patience, sink.feed(message)).await.map_err(late)?;
            fed.map_err(|error| connection::words(&error))?;
            next = queue.try_recv().ok();
        }
        let flushed = timeout(patience, sink.flush()).await.map_err(late)?;
        flushed.map_err(|error| connection::words(&error))?;
    }
}
