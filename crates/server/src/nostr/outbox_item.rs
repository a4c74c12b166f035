//! The items in an outbox: messages to one client, and the bytes charged for each item.

use std::iter::Sum;

use hark_archive::live::NewRecord;

use crate::websocket::FramedMessages;

/// An item to send.
pub(crate) enum OutboxItem {
    /// Messages of an answer that the client requested.
    Page(FramedMessages),
    /// One message.
    One(Vec<u8>),
    /// A live event.
    Live(LiveDelivery),
}

/// A live event, for one or more subscriptions of a client. All clients share the event's bytes.
pub(crate) struct LiveDelivery {
    news: NewRecord,
    /// For each subscription: a length in four bytes, and then `["EVENT","sub",` with this length.
    opens: Vec<u8>,
    /// Number of messages that were not taken yet.
    count: u32,
    /// Number of bytes of `opens`, from its beginning, that belong to messages already taken.
    taken: u32,
}

impl LiveDelivery {
    pub(super) fn new(open: &[u8], news: NewRecord) -> Self {
        let opens = Vec::with_capacity(size_of::<u32>() + open.len());
        let mut delivery = Self { news, opens, count: 0, taken: 0 };
        delivery.add(open);
        delivery
    }

    pub(super) fn add(&mut self, open: &[u8]) {
        self.opens.extend_from_slice(&(open.len() as u32).to_le_bytes());
        self.opens.extend_from_slice(open);
        self.count += 1;
    }

    /// Takes the message to the next subscription. Returns the message in pieces, and the weight to
    /// subtract for this message.
    pub(crate) fn take(&mut self) -> Option<([&[u8]; 3], OutboxWeight)> {
        let (len, rest) = self.opens.get(self.taken as usize..)?.split_first_chunk()?;
        let len = u32::from_le_bytes(*len);
        self.taken += size_of::<u32>() as u32 + len;
        self.count -= 1;
        let taken = OutboxWeight { size: self.news.size(), own: 0 };
        Some(([rest.get(..len as usize)?, self.news.wire(), b"]"], taken))
    }

    /// Whether the messages to all subscriptions were taken.
    pub(crate) fn is_written(&self) -> bool {
        self.taken as usize == self.opens.len()
    }
}

impl OutboxItem {
    /// Whether the item is this live event, from the same call of `publish`.
    pub(super) fn is_live(&self, news: &NewRecord) -> bool {
        matches!(self, Self::Live(live) if live.news.is_same_as(news))
    }

    /// Size of the item in bytes, with its overhead.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Page(messages) => messages.len(),
                Self::One(bytes) => bytes.len(),
                Self::Live(live) => live.opens.capacity() + live.count as usize * live.news.size(),
            }
    }

    /// Returns the bytes charged for the item, to its client and to all clients together. The
    /// charge to all clients excludes the bytes of a live event: all subscribers share these bytes,
    /// and the index of live subscriptions counts them once.
    pub(crate) fn weight(&self) -> OutboxWeight {
        let size = self.size();
        let own = match self {
            Self::Live(live) => size_of::<Self>() + live.opens.capacity(),
            _ => size,
        };
        OutboxWeight { size, own }
    }
}

/// Bytes charged for items.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutboxWeight {
    /// Number of all bytes, charged to the client.
    pub(super) size: usize,
    /// The bytes of `size` that are not shared with other clients.
    pub(super) own: usize,
}

impl OutboxWeight {
    pub(crate) fn add(&mut self, other: Self) {
        (self.size, self.own) = (self.size + other.size, self.own + other.own);
    }

    pub(super) fn sub(&mut self, other: Self) {
        self.size = self.size.saturating_sub(other.size);
        self.own = self.own.saturating_sub(other.own);
    }
}

impl Sum for OutboxWeight {
    fn sum<I: Iterator<Item = Self>>(weights: I) -> Self {
        weights.fold(Self::default(), |mut sum, weight| {
            sum.add(weight);
            sum
        })
    }
}
