//! A page of stored events: many messages in one buffer.

use hark_codec::nostr::reply::{self, EoseHint};

use super::outbox_item::OutboxItem;
use super::subscription::SessionSubscription;
use crate::websocket::FramedMessages;

/// A page of at least this many bytes is put into the outbox.
const PAGE_BYTES: usize = 64 << 10;

/// Messages in one buffer.
pub(super) struct EventPage<'a> {
    sub: &'a SessionSubscription,
    messages: FramedMessages,
    pub(super) records: u64,
}

impl<'a> EventPage<'a> {
    pub(super) fn new(sub: &'a SessionSubscription) -> Self {
        Self { sub, messages: FramedMessages::new(), records: 0 }
    }

    pub(super) fn add(&mut self, wire: &[u8]) {
        self.messages.add(self.sub.framing(), &[self.sub.open(), wire, b"]"]);
        self.records += 1;
    }

    pub(super) fn end(&mut self, hint: Option<EoseHint>) {
        let mut eose = Vec::with_capacity(128);
        reply::write_eose(&mut eose, self.sub.id(), hint);
        self.messages.add(self.sub.framing(), &[&eose]);
    }

    /// Whether the page is full. Either its bytes or its uncompressed text can reach the limit,
    /// because compression takes time even if the result is short.
    pub(super) fn is_full(&self) -> bool {
        self.messages.len().max(self.messages.text_bytes() as usize) >= PAGE_BYTES
    }

    pub(super) fn part(self) -> Option<OutboxItem> {
        (self.messages.messages() > 0).then_some(OutboxItem::Page(self.messages))
    }
}
