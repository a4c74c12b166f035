//! `/vac/waku/filter-push/2.0.0-beta1` (RFC 12/WAKU2-FILTER): sends new messages to subscribers.
//!
//! Clients differ in the number of messages that they read from a stream. The clients of nwaku and
//! js-waku read until the stream ends. js-waku never closes a stream, and refuses further streams
//! if 100 are open. The client of go-waku reads one message and closes the stream. So all messages
//! first go over one stream, the line. If the client closes the line soon after the first message,
//! the other messages written to the line are sent again, and each message has a stream of its own
//! from then on.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, FutureExt as _, StreamExt as _,
};
use libp2p::{PeerId, Stream};
use tokio::sync::mpsc;

use super::frame;
use super::outgoing::{NewestConnection, OpenFault, StreamOpener};
use super::subscribers::{FilterSubscribers, WaitingPush};
use crate::roster::OpenConnection;
use crate::waku::metrics::{FilterMetrics, PushOutcome};

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/filter-push/2.0.0-beta1";
/// Maximum time to send a message, as in nwaku.
const PUSH_MAX: Duration = Duration::from_secs(20);
/// Maximum number of streams at the same time to a client that reads one message from a stream.
/// nim-libp2p reads at most 10.
const STREAMS_MAX: usize = 8;
/// Maximum number of attempts to send a message, each on a new stream, and the pause before the
/// second attempt.
const ATTEMPTS_MAX: u32 = 8;
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Time after the first message of a stream within which a client that reads one message closes the
/// stream. On a slow connection, the time is longer: a multiple of the time to open the stream.
const CLOSING_MAX: Duration = Duration::from_secs(1);
const CLOSING_FACTOR: u32 = 4;

/// The subscriber that a task sends messages to.
pub(super) struct PushTarget {
    pub(super) peer: PeerId,
    /// The number of the subscriber.
    pub(super) number: u64,
    /// The connection by which the peer subscribed.
    pub(super) listed: Arc<OpenConnection>,
    pub(super) opener: StreamOpener,
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

impl From<OpenFault> for PushFault {
    fn from(fault: OpenFault) -> Self {
        match fault {
            OpenFault::Unsupported(_) => Self::Unsupported,
            OpenFault::Time => Self::Unread,
            OpenFault::Broken(error) => error.into(),
            OpenFault::NotConnected | OpenFault::Ended => Self::Broken,
        }
    }
}

/// The stream over which all messages are sent, unless the client reads one message from a stream.
struct Line {
    stream: Stream,
    /// The connection of the stream.
    connection: NewestConnection,
    /// The end of the time within which a client that reads one message closes the stream.
    closing_until: Instant,
    /// The messages written up to `closing_until`.
    written: Vec<WaitingPush>,
}

/// Why no further message is written to a stream.
enum StreamEnd {
    /// The end of the client's data was read.
    Closed,
    /// An error was returned.
    Broken,
    /// The client has a newer connection.
    Replaced,
}

impl StreamEnd {
    /// Whether the client has reset the stream, and so does not read data that is still in transit.
    /// On a yamux stream, a read returns the same for a reset as for a close, but a write fails
    /// after a reset.
    fn is_reset(&self, stream: &mut Stream) -> bool {
        match self {
            Self::Closed => matches!(stream.write(&[]).now_or_never(), Some(Err(_))),
            Self::Broken => true,
            Self::Replaced => false,
        }
    }
}

/// The streams of a subscriber.
#[derive(Default)]
struct PushStreams {
    line: Option<Line>,
    /// Whether the client reads only one message from each stream.
    is_single: bool,
    /// Whether the client has reset the last line before `closing_until`.
    was_reset: bool,
    /// The messages to be sent again.
    again: VecDeque<WaitingPush>,
}

impl PushStreams {
    /// Returns the next message to send. `None` if the subscriptions have ended.
    async fn next(
        &mut self,
        waiting: &mut mpsc::UnboundedReceiver<WaitingPush>,
    ) -> Option<WaitingPush> {
        if let Some(push) = self.again.pop_front() {
            return Some(push);
        }
        loop {
            let Some(line) = &mut self.line else { return waiting.recv().await };
            let closing_until = line.closing_until.into();
            tokio::select! {
                next = waiting.recv() => return next,
                end = ended(&mut line.stream, &mut line.connection) => {
                    self.end_line(&end).await;
                    if let Some(push) = self.again.pop_front() {
                        return Some(push);
                    }
                }
                () = tokio::time::sleep_until(closing_until), if !line.written.is_empty() => {
                    line.written.clear();
                    self.was_reset = false;
                }
            }
        }
    }

    /// Writes a message to the line, and opens the line if there is none. If the client ends the
    /// line meanwhile, the message is sent again later.
    async fn write(
        &mut self,
        target: &PushTarget,
        metrics: &FilterMetrics,
        mut push: WaitingPush,
    ) -> Result<(), PushFault> {
        if self.line.is_none() {
            let (stream, connection, closing_max) = match open(target).await {
                // The stream was reset while its protocol was negotiated.
                Err(PushFault::Broken) if !self.was_reset => {
                    self.was_reset = true;
                    self.again.push_front(push);
                    return Ok(());
                }
                Err(PushFault::Broken) if push.is_sent => return Ok(()),
                opened => opened?,
            };
            let closing_until = Instant::now() + closing_max;
            self.line = Some(Line { stream, connection, closing_until, written: Vec::new() });
        }
        let Some(line) = &mut self.line else { return Ok(()) };
        let end = {
            let (mut reader, mut writer) = (&mut line.stream).split();
            tokio::select! {
                // A message is not written to a line that has ended.
                biased;
                end = ended(&mut reader, &mut line.connection) => Some(end),
                written = write(target, metrics, &mut writer, &mut push) => match written {
                    Ok(()) => None,
                    Err(PushFault::Broken) => Some(StreamEnd::Broken),
                    Err(fault) => return Err(fault),
                },
            }
        };
        if end.is_some() || Instant::now() < line.closing_until {
            line.written.push(push);
        }
        if let Some(end) = end {
            self.end_line(&end).await;
        }
        Ok(())
    }

    /// Decides which messages to send again after a line has ended. If the client closed the line, it
    /// has read the first message. If the client reset a second line in a row, it may have read the
    /// first message, so this message is not sent again. After a single reset, all messages are sent
    /// again: the client had too many streams, or was not yet ready to accept streams. If the client
    /// has a newer connection, all messages are sent again, as the earlier connection may be dead.
    async fn end_line(&mut self, end: &StreamEnd) {
        let Some(mut line) = self.line.take() else { return };
        if matches!(end, StreamEnd::Replaced) {
            self.again.extend(line.written);
            // If the earlier connection is not dead, the client reads the stream to its end. An
            // error affects only this stream, so the error is ignored.
            tokio::spawn(async move { frame::end(&mut line.stream).await });
            return;
        }
        let is_new = Instant::now() < line.closing_until;
        let is_reset = end.is_reset(&mut line.stream);
        self.is_single = !is_reset || self.was_reset;
        self.was_reset = is_reset && is_new;
        let read = usize::from(self.is_single && is_new);
        self.again.extend(line.written.into_iter().skip(read));
        if !is_reset {
            // An error affects only this stream, so the error is ignored.
            let _ = frame::end(&mut line.stream).await;
        }
    }
}

/// Waits until the client has ended a stream, or has a newer connection.
async fn ended(
    reader: &mut (impl AsyncRead + Unpin),
    connection: &mut NewestConnection,
) -> StreamEnd {
    let ended = async {
        match reader.read(&mut [0; 64]).await {
            Ok(0) => StreamEnd::Closed,
            // A client must not send data on this stream, so no further data is read.
            Ok(_) => std::future::pending().await,
            Err(_) => StreamEnd::Broken,
        }
    };
    tokio::select! {
        end = ended => end,
        () = connection.replaced() => StreamEnd::Replaced,
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
            next = streams.next(&mut waiting), if sending.len() < STREAMS_MAX => {
                let Some(push) = next else { break None };
                if streams.is_single {
                    // A client that resets each stream may have read the message before the reset.
                    let attempts_max = if streams.was_reset { 1 } else { ATTEMPTS_MAX };
                    sending.push(send(&target, &metrics, push, attempts_max));
                    continue;
                }
                streams.write(&target, &metrics, push).await
            }
            Some(done) = sending.next() => done,
        };
        match done {
            Ok(()) => {}
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
    let unsent = streams.again.iter().filter(|push| !push.is_sent).count();
    metrics.pushes.of(PushOutcome::Dropped).add(unsent as u64);
    waiting.close();
    while waiting.try_recv().is_ok() {
        metrics.pushes.of(PushOutcome::Dropped).add(1);
    }
}

/// Opens a stream. Returns the stream, its connection, and the time after the stream's first message
/// within which a client that reads one message closes the stream.
async fn open(target: &PushTarget) -> Result<(Stream, NewestConnection, Duration), PushFault> {
    let began = Instant::now();
    let (stream, connection) = target.opener.open_watched(target.peer, PROTOCOL).await?;
    Ok((stream, connection, CLOSING_MAX.max(began.elapsed() * CLOSING_FACTOR)))
}

/// Sends a message over a stream of its own. If the client resets the stream, the message is sent
/// again, at most `attempts_max` times in all.
async fn send(
    target: &PushTarget,
    metrics: &FilterMetrics,
    mut push: WaitingPush,
    attempts_max: u32,
) -> Result<(), PushFault> {
    let mut attempt = 1;
    loop {
        let sent = send_once(target, metrics, &mut push).await;
        let is_reset = matches!(sent, Ok(true) | Err(PushFault::Broken));
        if is_reset && attempt < attempts_max {
            tokio::time::sleep(AGAIN_AFTER * attempt).await;
            attempt += 1;
            continue;
        }
        return match sent {
            // The message is counted as sent already. The client may have read the message before
            // it left.
            Err(PushFault::Broken) if push.is_sent => Ok(()),
            sent => sent.map(|_| ()),
        };
    }
}

/// Sends a message over a stream of its own. Returns whether the client has reset the stream.
async fn send_once(
    target: &PushTarget,
    metrics: &FilterMetrics,
    push: &mut WaitingPush,
) -> Result<bool, PushFault> {
    let (mut stream, mut connection, closing_max) = open(target).await?;
    tokio::select! {
        written = write(target, metrics, &mut stream, push) => written?,
        () = connection.replaced() => return Err(PushFault::Broken),
    }
    // A client that does not close the stream in time has read the message.
    let end = tokio::time::timeout(closing_max, ended(&mut stream, &mut connection)).await;
    match end {
        // The earlier connection may be dead.
        Ok(StreamEnd::Replaced) => return Err(PushFault::Broken),
        Ok(end) if end.is_reset(&mut stream) => return Ok(true),
        _ => {}
    }
    // An error affects only this stream, so the error is ignored.
    let _ = frame::end(&mut stream).await;
    Ok(false)
}

/// Writes a message to a stream.
async fn write(
    target: &PushTarget,
    metrics: &FilterMetrics,
    stream: &mut (impl AsyncWrite + Unpin),
    push: &mut WaitingPush,
) -> Result<(), PushFault> {
    let writing = async {
        stream.write_all(&push.frame).await?;
        stream.flush().await
    };
    let written = tokio::time::timeout(PUSH_MAX, writing).await;
    written.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
    target.listed.counts.send(push.frame.len());
    if !push.is_sent {
        metrics.pushes.of(PushOutcome::Sent).add(1);
        metrics.push.note(push.since.elapsed());
    }
    push.is_sent = true;
    Ok(())
}
