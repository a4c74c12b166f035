//! Transfers after comparisons (`/vac/waku/transfer/1.0.0`): each store sends the messages that the
//! other store lacks, on a stream of its own.
//!
//! Messages are accepted only from peers that the configuration names, because the messages may be
//! of any age.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use hark_archive::Query;
use hark_codec::waku::protobuf::{ProtobufFields, put_bytes};
use hark_codec::waku::sync::MessagePosition;
use hark_codec::waku::{Message, MessageRecord};
use libp2p::{PeerId, Stream, StreamProtocol};
use libp2p_stream::Control;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::frame;
use super::incoming::IncomingStreams;
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

/// Receives the messages that configured peers send.
pub(super) fn receive(incoming: &IncomingStreams, waku: &Arc<WakuNode>) {
    let waku = Arc::clone(waku);
    incoming.serve(PROTOCOL, move |peer, stream| {
        let waku = Arc::clone(&waku);
        async move {
            if waku.knows(peer.id) {
                store_gossip(&waku, stream).await;
            }
        }
    });
}

/// Sends messages to a peer. Returns the number of messages sent.
pub(super) async fn send(
    waku: &Arc<WakuNode>,
    mut control: Control,
    (peer, source): (PeerId, RateSource),
    positions: &[MessagePosition],
) -> Result<usize, SyncFault> {
    let mut stream = control.open_stream(peer, StreamProtocol::new(PROTOCOL)).await?;
    let mut sent = 0;
    for some in positions.chunks(READ_AT_ONCE) {
        let ids = Some(some.iter().map(|position| position.1).collect());
        let mut query = Query { ids, ..Query::default() };
        query.normalise();
        let found = waku.service.questions.search_in_turn(source, u64::MAX, move |search| {
            let mut frames = Vec::new();
            search.run(&query, SLICE_ROWS, &mut |record| {
                let record = MessageRecord::new(*record);
                let mut frame = Vec::with_capacity(record.message().len() + 64);
                put_bytes(&mut frame, 1, record.pubsub_topic());
                put_bytes(&mut frame, 2, record.message());
                frames.push(frame);
                ControlFlow::Continue(())
            })?;
            Ok(frames)
        });
        for message in answered(found.await)? {
            frame::write(&mut stream, &message).await.map_err(SyncFault::Transfer)?;
            transferred(waku, Direction::Sent, message.len());
            sent += 1;
        }
    }
    frame::end(&mut stream).await.map_err(SyncFault::Transfer)?;
    Ok(sent)
}

/// Counts a transferred message.
fn transferred(waku: &WakuNode, direction: Direction, bytes: usize) {
    let counts = &waku.metrics.sync;
    counts.bytes.of(SyncProtocol::Transfer).of(direction).add(bytes as u64);
    counts.messages.of(direction).add(1);
}

/// Stores the messages of a stream until the stream ends.
async fn store_gossip(waku: &Arc<WakuNode>, mut stream: Stream) {
    // A topic may have 1,024 bytes.
    let bytes_max = waku.config.message_bytes_max + 1_024;
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let (mut taking, mut new) = (JoinSet::new(), 0_u64);
    while let Ok(Ok(Some(bytes))) =
        tokio::time::timeout(WAIT, frame::read(&mut stream, bytes_max)).await
    {
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
