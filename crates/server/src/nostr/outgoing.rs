//! The items on their way from the outbox to the socket.

use std::collections::VecDeque;

use super::outbox_item::{OutboxItem, OutboxWeight};
use crate::websocket::Socket;

/// Items taken from the outbox and not yet fed to the socket.
#[derive(Default)]
pub(super) struct OutgoingItems {
    pub(super) parts: VecDeque<OutboxItem>,
}

/// Counts of the messages that one poll feeds to the socket.
#[derive(Default)]
pub(super) struct SentCounts {
    pub(super) messages: u64,
    /// Number of messages with a live event.
    pub(super) live: u64,
    pub(super) text_bytes: u64,
    /// Weight of the items that were fed to the socket.
    pub(super) done: OutboxWeight,
}

impl OutgoingItems {
    /// Feeds the next item to the socket. If the item is a live event, feeds only its message to
    /// the next subscription.
    pub(super) fn feed(&mut self, socket: &mut Socket, sent: &mut SentCounts) {
        if let Some(OutboxItem::Live(live)) = self.parts.front_mut() {
            if let Some((pieces, weight)) = live.take() {
                sent.feed(socket, &pieces);
                sent.live += 1;
                sent.done.add(weight);
            }
            if !live.is_written() {
                return;
            }
        }
        let Some(part) = self.parts.pop_front() else { return };
        sent.done.add(part.weight());
        match part {
            OutboxItem::Page(messages) => {
                sent.messages += messages.messages();
                sent.text_bytes += messages.text_bytes();
                socket.feed_framed(messages);
            }
            OutboxItem::One(text) => sent.feed(socket, &[&text]),
            OutboxItem::Live(_) => {}
        }
    }
}

impl SentCounts {
    fn feed(&mut self, socket: &mut Socket, pieces: &[&[u8]]) {
        socket.feed_text(pieces);
        self.messages += 1;
        self.text_bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
    }
}
