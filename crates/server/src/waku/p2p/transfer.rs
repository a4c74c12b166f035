//! Transfers after comparisons (`/vac/waku/transfer/1.0.0`): each store sends the messages that the
//! other store lacks, on a stream of its own.
//!
//! Messages are accepted only from peers that the configuration names, because the messages may be
//! of any age.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use hark_archive::Query;
use hark_codec::record::Id;
use hark_codec::waku::protobuf::{ProtobufFields, put_bytes};
use hark_codec::waku::sync::MessagePosition;
use hark_codec::waku::{Message, MessageRecord};
use libp2p::{PeerId, Stream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::frame::{self, ReadFrame};
use super::incoming::IncomingStreams;
use super::outgoing::StreamOpener;
use super::own_messages::SLICE_ROWS;
use super::sync_fault::{SyncFault, answered};
use crate::rate::RateSource;
use crate::waku::intake::AcceptResult;
use crate::waku::metrics::{Direction, MessageOrigin, SyncProtocol};
use crate::waku::node::WakuNode;

/// The protocol that sends missing messages.
pub(super) const PROTOCOL: &str = "/vac/waku/transfer/1.0.0";
/// How long a configured peer may take to send its next frame.
pub(super) const WAIT: Duration = Duration::from_secs(30);
/// Maximum number of received messages that are being stored at the same time.
const AT_ONCE: usize = 100;
/// Number of messages that are read from the store at once.
const READ_AT_ONCE: usize = 32;
/// Maximum size of a frame that every store reads, in bytes. nwaku reads no longer frame, and
/// nothing behind such a frame on the same stream.
const SHORT_MAX: usize = 150 << 10;
/// Maximum size of a received message that is discarded without ending the transfer, in bytes.
const DISCARDED_MAX: usize = 16 << 20;

/// Receives the messages that configured peers send.
pub(super) fn receive(incoming: &IncomingStreams, waku: &Arc<WakuNode>) {
    let waku = Arc::clone(waku);
    incoming.serve(PROTOCOL, move |peer, stream| {
        let waku = Arc::clone(&waku);
        async move {
            if waku.knows(peer.id) {
                store_gossip(&waku, peer.id, stream).await;
            }
        }
    });
}

/// Sends messages to a peer. Returns the number of messages sent. Long messages are sent last, on
/// another stream, because the peer may end a stream with a long message.
pub(super) async fn send(
    waku: &Arc<WakuNode>,
    opener: &StreamOpener,
    (peer, source): (PeerId, RateSource),
    positions: &[MessagePosition],
) -> Result<usize, SyncFault> {
    let mut stream = opener.open(peer, PROTOCOL).await?;
    let (mut sent, mut long) = (0, Vec::new());
    for some in positions.chunks(READ_AT_ONCE) {
        let ids = some.iter().map(|position| position.1).collect();
        for (id, message) in load_frames(waku, source, ids).await? {
            if message.len() > SHORT_MAX {
                long.push(id);
            } else {
                send_frame(waku, &mut stream, &message).await?;
                sent += 1;
            }
        }
    }
    frame::end(&mut stream).await.map_err(SyncFault::Transfer)?;
    if !long.is_empty() {
        let count = long.len();
        if let Err(fault) = send_long(waku, opener, (peer, source), &long, &mut sent).await {
            let why = fault.to_string();
            tracing::debug!(%peer, count, why, "another store did not take the long messages");
        }
    }
    Ok(sent)
}

/// Sends long messages on a stream of their own. Adds the number of messages sent to `sent`.
async fn send_long(
    waku: &Arc<WakuNode>,
    opener: &StreamOpener,
    (peer, source): (PeerId, RateSource),
    long: &[Id],
    sent: &mut usize,
) -> Result<(), SyncFault> {
    let mut stream = opener.open(peer, PROTOCOL).await?;
    for some in long.chunks(READ_AT_ONCE) {
        for (_, message) in load_frames(waku, source, some.to_vec()).await? {
            send_frame(waku, &mut stream, &message).await?;
            *sent += 1;
        }
    }
    frame::end(&mut stream).await.map_err(SyncFault::Transfer)
}

/// Reads messages from the store. Returns the id and the frame of each message found.
async fn load_frames(
    waku: &Arc<WakuNode>,
    source: RateSource,
    ids: Vec<Id>,
) -> Result<Vec<(Id, Vec<u8>)>, SyncFault> {
    let mut query = Query { ids: Some(ids), ..Query::default() };
    query.normalise();
    let found = waku.service.questions.search_in_turn(source, u64::MAX, move |search| {
        let mut frames = Vec::new();
        search.run(&query, SLICE_ROWS, &mut |record| {
            let id = *record.id();
            let record = MessageRecord::new(*record);
            let mut frame = Vec::with_capacity(record.message().len() + 64);
            put_bytes(&mut frame, 1, record.pubsub_topic());
            put_bytes(&mut frame, 2, record.message());
            frames.push((id, frame));
            ControlFlow::Continue(())
        })?;
        Ok(frames)
    });
    answered(found.await)
}

/// Writes the frame of a message to a stream.
async fn send_frame(waku: &WakuNode, stream: &mut Stream, message: &[u8]) -> Result<(), SyncFault> {
    frame::write(stream, message).await.map_err(SyncFault::Transfer)?;
    transferred(waku, Direction::Sent, message.len());
    Ok(())
}

/// Counts a transferred message.
fn transferred(waku: &WakuNode, direction: Direction, bytes: usize) {
    let counts = &waku.metrics.sync;
    counts.bytes.of(SyncProtocol::Transfer).of(direction).add(bytes as u64);
    counts.messages.of(direction).add(1);
}

/// Stores the messages of a stream until the stream ends.
async fn store_gossip(waku: &Arc<WakuNode>, peer: PeerId, mut stream: Stream) {
    // A topic may have 1,024 bytes.
    let bytes_max = waku.config.message_bytes_max + 1_024;
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let (mut taking, mut new, mut is_reported) = (JoinSet::new(), 0_u64, false);
    loop {
        let reading = frame::read_or_discard(&mut stream, bytes_max, DISCARDED_MAX);
        let bytes = match tokio::time::timeout(WAIT, reading).await {
            Ok(Ok(Some(ReadFrame::Message(bytes)))) => bytes,
            Ok(Ok(Some(ReadFrame::Discarded(bytes)))) => {
                if !is_reported {
                    tracing::warn!(
                        %peer,
                        bytes,
                        bytes_max,
                        "another store sent a message above message_bytes_max, which is left out"
                    );
                    is_reported = true;
                }
                continue;
            }
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "a transfer has ended early");
                break;
            }
            Ok(Ok(None)) | Err(_) => break,
        };
        transferred(waku, Direction::Received, bytes.len());
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let waku = Arc::clone(waku);
        taking.spawn(async move {
            let taken = one(&waku, &bytes).await;
            drop(slot);
            taken
        });
        while let Some(taken) = taking.try_join_next() {
            new += u64::from(taken.unwrap_or_default());
        }
    }
    while let Some(taken) = taking.join_next().await {
        new += u64::from(taken.unwrap_or_default());
    }
    if new > 0 {
        tracing::info!(new, "another store sent the messages that this store lacked");
    }
}

/// Stores one message with its topic. Returns whether the message is new.
async fn one(waku: &WakuNode, bytes: &[u8]) -> bool {
    let (mut pubsub_topic, mut message) = ("", None);
    for field in ProtobufFields::new(bytes).flatten() {
        match field.number {
            1 => pubsub_topic = field.string().unwrap_or_default(),
            2 => message = field.bytes().ok(),
            _ => {}
        }
    }
    let Some(bytes) = message.filter(|_| waku.serves(pubsub_topic)) else { return false };
    let Ok(message) = Message::parse(bytes) else { return false };
    let taken =
        waku.accept_message(MessageOrigin::Store, &message, bytes.len(), pubsub_topic).await;
    matches!(taken, Ok(AcceptResult::Stored))
}
