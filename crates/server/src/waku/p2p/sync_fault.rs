//! Why a comparison with another store, or the transfer after a comparison, ends early.

use std::io;
use std::time::Duration;

use hark_codec::waku::sync::SyncError;
use hark_networks::search::SearchStop;
use hark_networks::waku::history::HistoryError;

use super::error::ConnectFault;
use super::outgoing::OpenFault;
use crate::service::{NotAsked, TurnAnswer};

/// Why a comparison ends early. The texts are for operators.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncFault {
    /// The first payload of a peer did not arrive in time.
    #[error("its first payload took too long")]
    FirstPayload,
    /// No further payload arrived within this time.
    #[error("no whole payload was received for {} s", .0.as_secs())]
    NextPayload(Duration),
    /// The session took too long.
    #[error("it took too long")]
    Time,
    /// The maximum number of sessions is running already.
    #[error("the maximum number of comparisons is in progress")]
    Sessions,
    /// The peer exceeds a rate limit.
    #[error(transparent)]
    Refused(HistoryError),
    /// A payload is malformed.
    #[error(transparent)]
    Payload(#[from] SyncError),
    /// The stream of the comparison broke.
    #[error("the stream broke: {0}")]
    Broken(io::Error),
    /// The stream of the transfer broke.
    #[error(transparent)]
    Transfer(io::Error),
    /// The peer is not connected.
    #[error(transparent)]
    Connect(#[from] ConnectFault),
    /// No stream of the protocol could be opened to the peer.
    #[error(transparent)]
    Stream(#[from] OpenFault),
    /// The lists of all sessions together are too long.
    #[error("all comparisons together have too many messages")]
    Room,
    /// The session's list would have more than this number of messages.
    #[error("there are more than {0} messages to compare")]
    Items(usize),
    /// Too many questions wait in the fair queue.
    #[error("too many questions wait")]
    Line,
    /// The node is shutting down.
    #[error("the node is going down")]
    Down,
    /// The search for this store's messages failed.
    #[error(transparent)]
    Search(#[from] SearchStop),
}

/// Returns the result of a search.
pub(super) fn answered<T>(
    ran: Result<TurnAnswer<Result<T, SyncFault>>, NotAsked>,
) -> Result<T, SyncFault> {
    match ran {
        Ok(asked) => asked.answer,
        Err(NotAsked::Line) => Err(SyncFault::Line),
        Err(NotAsked::Panicked) => Err(SyncFault::Down),
    }
}
