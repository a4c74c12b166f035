//! Fetches the messages of a time span from one store, page by page.

use futures_util::future::join_all;
use hark_codec::record::Id;
use hark_codec::waku::store::{KeyValue, Status};
use hark_codec::waku::{Message, ProtobufError, StoreResponse};
use hark_networks::waku::NS_PER_S;
use hark_networks::waku::history::MessageRequest;
use libp2p::Multiaddr;

use crate::waku::intake::{AcceptResult, MessageRejection};
use crate::waku::metrics::MessageOrigin;
use crate::waku::node::WakuNode;
use crate::waku::p2p::AskFault;
use crate::waku::peer_status::NO_PEERS;

/// A time span of which messages may be missing, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeSpan {
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
}

/// Why history cannot be fetched from a store. The texts are for operators.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchFault {
    /// The node has no peers.
    #[error("{NO_PEERS}")]
    NoPeers,
    /// See [`AskFault`].
    #[error(transparent)]
    Ask(#[from] AskFault),
    /// The bytes are not an answer.
    #[error(transparent)]
    Malformed(#[from] ProtobufError),
    /// The store refuses the request: status and description.
    #[error("{0} {1}")]
    Status(u32, String),
    /// This node could not store a message.
    #[error(transparent)]
    Store(#[from] MessageRejection),
    /// The store sent an empty page with a cursor, so the pages might never end.
    #[error("it sent an empty page that is not the last")]
    EmptyPage,
    /// A cursor led back to an earlier page, so the pages would never end.
    #[error("its pages lead back to an earlier one")]
    Circle,
}

impl FetchFault {
    /// Whether the store refuses the request because it has too many requests.
    pub(super) fn is_busy(&self) -> bool {
        let busy = [Status::TooManyRequests, Status::Unavailable].map(Status::code);
        matches!(self, Self::Status(status, _) if busy.contains(status))
    }

    /// Whether the store is not connected.
    pub(super) fn is_away(&self) -> bool {
        matches!(self, Self::NoPeers | Self::Ask(AskFault::Connect(_)))
    }

    /// Whether the same request may succeed soon.
    pub(super) fn is_passing(&self) -> bool {
        let Self::Ask(fault) = self else { return false };
        match fault {
            AskFault::Stream(_) | AskFault::Broken(_) | AskFault::Silent | AskFault::Slow(_) => {
                true
            }
            AskFault::Connect(_) | AskFault::Malformed(_) | AskFault::TooLong => false,
        }
    }
}

/// The position in the pages of a store, and the messages that the store has sent.
#[derive(Debug, Default)]
pub(super) struct StorePages {
    cursor: Option<Id>,
    trail: PageTrail,
    fetched: FetchTotals,
}

/// The messages that a store has sent.
#[derive(Debug, Default)]
struct FetchTotals {
    pages: u64,
    messages: u64,
    stored: u64,
    refused: u64,
}

impl StorePages {
    /// Fetches the next page and stores its messages. Returns true after the last page.
    /// After a fault, the same page is fetched again.
    pub(super) async fn fetch(
        &mut self,
        waku: &WakuNode,
        store: &Multiaddr,
        span: TimeSpan,
    ) -> Result<bool, FetchFault> {
        let network = waku.network.as_ref().ok_or(FetchFault::NoPeers)?;
        let request = MessageRequest {
            id: "resume".into(),
            include_data: true,
            time_start: i64::try_from(span.from_ns).ok(),
            time_end: i64::try_from(span.until_ns).ok(),
            cursor: self.cursor,
            forward: true,
            limit: Some(network.page_max()),
            ..MessageRequest::default()
        };
        let answer = network.ask(store.clone(), &request).await?;
        let answer = StoreResponse::parse(&answer)?;
        if answer.status_code != Some(Status::Success.code()) {
            let words = answer.status_desc.unwrap_or_default().to_owned();
            return Err(FetchFault::Status(answer.status_code.unwrap_or_default(), words));
        }
        // Messages are stored concurrently, so that a page becomes one batch.
        for taken in join_all(answer.messages().map(|one| accept(waku, one))).await {
            self.fetched.messages += 1;
            match taken {
                Some(Ok(AcceptResult::Stored)) => self.fetched.stored += 1,
                Some(Ok(_)) => {}
                None | Some(Err(MessageRejection::Refused(_))) => self.fetched.refused += 1,
                Some(Err(error)) => return Err(error.into()),
            }
        }
        self.fetched.pages += 1;
        let next = answer.cursor.and_then(|next| <Id>::try_from(next).ok());
        if next.is_none() || next == self.cursor {
            return Ok(true);
        }
        self.trail.follow(next, answer.messages().next().is_none())?;
        self.cursor = next;
        Ok(false)
    }

    /// Logs the messages that the store has sent.
    pub(super) fn report(&self, store: &Multiaddr, span: TimeSpan) {
        tracing::info!(
            %store,
            back_s = (span.until_ns - span.from_ns) / NS_PER_S,
            pages = self.fetched.pages,
            messages = self.fetched.messages,
            new = self.fetched.stored,
            refused = self.fetched.refused,
            "fetched the missed messages"
        );
    }
}

/// Stores a message of a page. Returns `None` for bytes that are no message of this node's shards.
async fn accept(
    waku: &WakuNode,
    one: KeyValue<'_>,
) -> Option<Result<AcceptResult, MessageRejection>> {
    let message = one.message.and_then(|bytes| Message::parse(bytes).ok().zip(Some(bytes)));
    let ((message, bytes), topic) = message.zip(one.pubsub_topic)?;
    if !waku.serves(topic) || message.hash(topic)[..] != *one.message_hash {
        return None;
    }
    Some(waku.accept_message(MessageOrigin::Store, &message, bytes.len(), topic).await)
}

/// Detects pages of a store that lead in a circle, with one cursor in memory (Brent's algorithm).
#[derive(Debug, Default)]
struct PageTrail {
    pages: u64,
    seen: Option<Id>,
}

impl PageTrail {
    /// Records the cursor of the next page. Fails if the pages would never end.
    fn follow(&mut self, next: Option<Id>, is_empty: bool) -> Result<(), FetchFault> {
        if is_empty {
            return Err(FetchFault::EmptyPage);
        }
        if next == self.seen {
            return Err(FetchFault::Circle);
        }
        self.pages += 1;
        if self.pages.is_power_of_two() {
            self.seen = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_lead_in_a_circle_or_nowhere_end_the_fetch() {
        let mut long = PageTrail::default();
        for page in 0..1_000_u32 {
            let mut cursor = [0; 32];
            cursor[..4].copy_from_slice(&page.to_le_bytes());
            assert!(long.follow(Some(cursor), false).is_ok());
        }
        assert!(long.follow(Some([1; 32]), true).is_err());
        // Some pages, and then a circle of seven.
        let mut circle = PageTrail::default();
        let mut cursors = (0..5).chain((0..).map(|at| 10 + at % 7));
        let asked = cursors.position(|at| circle.follow(Some([at; 32]), false).is_err());
        assert!(asked.expect("the circle is found") < 30);
    }
}
