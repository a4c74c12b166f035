//! `/vac/waku/filter-push/2.0.0-beta1` (RFC 12/WAKU2-FILTER): sends new messages to subscribers.
//!
//! Clients differ in the number of messages that they read from a stream. The clients of nwaku and
//! js-waku read until the stream ends. js-waku never closes a stream, and refuses further streams
//! if 100 are open. The client of go-waku reads one message and closes the stream. So at first each
//! message has a stream of its own. If the client does not close a stream after a message, all
//! further messages go over this stream.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _, StreamExt as _};
use libp2p::{PeerId, Stream, StreamProtocol};
use libp2p_stream::{Control, OpenStreamError};
use tokio::sync::mpsc;

use super::frame;
use super::subscribers::{FilterSubscribers, WaitingPush};
use crate::roster::OpenConnection;
use crate::waku::metrics::{FilterMetrics, PushOutcome};

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/filter-push/2.0.0-beta1";
/// Maximum time to send a message, as in nwaku.
const PUSH_MAX: Duration = Duration::from_secs(20);
/// Maximum number of streams of a subscriber at the same time.
const STREAMS_MAX: usize = 16;
/// Time after a message in which a client that reads one message closes the stream. On a slow
/// connection, the time is longer: a multiple of the time to open the stream.
const CLOSING_MAX: Duration = Duration::from_secs(1);
const CLOSING_FACTOR: u32 = 4;

/// The subscriber that a task sends messages to.
pub(super) struct PushTarget {
    pub(super) peer: PeerId,
    /// The number of the subscriber.
    pub(super) number: u64,
    /// The connection by which the peer subscribed.
    pub(super) listed: Arc<OpenConnection>,
    pub(super) control: Control,
}

/// Why a message was not sent.
enum PushFault {
    /// The peer has not read the message in time.
    Unread,
    /// The peer does not accept messages.
    Unsupported,
    /// The stream or the connection broke.
    Broken,
}

impl From<io::Error> for PushFault {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Unread } else { Self::Broken }
    }
}

impl From<OpenStreamError> for PushFault {
    fn from(error: OpenStreamError) -> Self {
        match error {
            OpenStreamError::UnsupportedProtocol(_) => Self::Unsupported,
            OpenStreamError::Io(error) => error.into(),
            _ => Self::Broken,
        }
    }
}

/// The streams of a subscriber.
#[derive(Default)]
struct PushStreams {
    /// The stream for all further messages.
    line: Option<Stream>,
    /// Whether the client reads one message from a stream.
    is_single: bool,
}

impl PushStreams {
    /// Considers a stream after its first message. `None` if the client has closed the stream.
    async fn add(&mut self, stream: Option<Stream>) {
        match stream {
            None => (self.line, self.is_single) = (None, true),
            Some(stream) if self.line.is_none() && !self.is_single => self.line = Some(stream),
            Some(mut stream) => {
                // An error affects only this stream, so the error is ignored.
                let _ = frame::end(&mut stream).await;
            }
        }
    }

    /// Returns the stream for all further messages. `None` if there is no such stream, or if the
    /// client has closed the stream.
    fn line(&mut self) -> Option<&mut Stream> {
        let unread = &mut [0; 64];
        match self.line.as_mut()?.read(unread).now_or_never() {
            None | Some(Ok(1..)) => {}
            Some(Ok(0)) => (self.line, self.is_single) = (None, true),
            Some(Err(_)) => self.line = None,
        }
        self.line.as_mut()
    }
}

/// Sends messages to a subscriber until its subscriptions end. A peer that does not read is
/// disconnected, so that it notices the loss and subscribes again once it reads.
pub(super) async fn run(
    subscribers: Arc<FilterSubscribers>,
    target: PushTarget,
    mut waiting: mpsc::UnboundedReceiver<WaitingPush>,
) {
    let metrics = Arc::clone(&subscribers.metrics);
    let (mut sending, mut streams) = (FuturesUnordered::new(), PushStreams::default());
    let fault = loop {
        let done = tokio::select! {
            next = waiting.recv(), if sending.len() < STREAMS_MAX => {
                let Some(push) = next else { break None };
                let Some(line) = streams.line() else {
                    sending.push(send(&target, &metrics, push));
                    continue;
                };
                match write(&target, &metrics, line, &push).await {
                    // The stream has broken. The client ignores a message that it gets twice.
                    Err(PushFault::Broken) => {
                        streams.line = None;
                        sending.push(send(&target, &metrics, push));
                        continue;
                    }
                    done => done.map(|()| None),
                }
            }
            Some(done) = sending.next() => done.map(Some),
        };
        match done {
            Ok(None) => {}
            Ok(Some(stream)) => streams.add(stream).await,
            Err(PushFault::Broken) => metrics.pushes.of(PushOutcome::Broken).add(1),
            Err(fault) => break Some(fault),
        }
    };
    if let Some(fault) = fault {
        let is_unread = matches!(fault, PushFault::Unread);
        let outcome = if is_unread { PushOutcome::Unread } else { PushOutcome::Unsupported };
        metrics.pushes.of(outcome).add(1);
        if let Some(listed) = subscribers.remove_number(target.number) {
            let peer = target.peer;
            tracing::debug!(%peer, ?outcome, "the subscriptions of a peer have ended");
            if is_unread {
                listed.kick("the peer does not read the messages of its subscriptions");
            }
        }
    }
    // The messages that are still waiting are lost.
    waiting.close();
    while waiting.try_recv().is_ok() {
        metrics.pushes.of(PushOutcome::Dropped).add(1);
    }
}

/// Sends a message over a new stream. Returns `None` if the client has
/// closed the stream.
async fn send(
    target: &PushTarget,
    metrics: &FilterMetrics,
    push: WaitingPush,
) -> Result<Option<Stream>, PushFault> {
    let (began, mut control) = (Instant::now(), target.control.clone());
    let opening = control.open_stream(target.peer, StreamProtocol::new(PROTOCOL));
    let opened = tokio::time::timeout(PUSH_MAX, opening).await;
    let mut stream = opened.unwrap_or(Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
    let closing_max = CLOSING_MAX.max(began.elapsed() * CLOSING_FACTOR);
    write(target, metrics, &mut stream, &push).await?;
    drop(push);
    let closed = async { while !matches!(stream.read(&mut [0; 64]).await, Ok(0) | Err(_)) {} };
    match tokio::time::timeout(closing_max, closed).await {
        Ok(()) => {
            let _ = frame::end(&mut stream).await;
            Ok(None)
        }
        Err(_) => Ok(Some(stream)),
    }
}

/// Writes a message to a stream.
async fn write(
    target: &PushTarget,
    metrics: &FilterMetrics,
    stream: &mut Stream,
    push: &WaitingPush,
) -> Result<(), PushFault> {
    let writing = async {
        stream.write_all(&push.frame).await?;
        stream.flush().await
    };
    let written = tokio::time::timeout(PUSH_MAX, writing).await;
    written.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
    target.listed.counts.send(push.frame.len());
    metrics.pushes.of(PushOutcome::Sent).add(1);
    metrics.push.note(push.since.elapsed());
    Ok(())
}
