//! Why a request for messages gets no page of messages, in the terms of the protocol.

use hark_archive::SearchError;
use hark_codec::waku::ProtobufError;
use hark_codec::waku::store::Status;

use crate::search::SearchStop;

/// Maximum size of a request id, in bytes. The answer repeats the request id.
pub(super) const REQUEST_ID_MAX: usize = 256;

/// Why a request gets no page.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The request cannot be parsed.
    #[error("BAD_REQUEST: {0}")]
    Unread(#[from] ProtobufError),
    /// The request id is empty or too long.
    #[error("BAD_REQUEST: request_id must have 1 to {REQUEST_ID_MAX} bytes")]
    RequestId,
    /// The memory for answers that are being sent is used up.
    #[error("too many answers are being sent; try again")]
    Busy,
    /// The request is too long.
    #[error("BAD_REQUEST: {0}")]
    Length(String),
    /// The rate limit is exceeded.
    #[error("TOO_MANY_REQUESTS")]
    TooMany,
    /// The node is shutting down.
    #[error("the node is going down")]
    Down,
    /// A parameter of the request is invalid.
    #[error("INVALID_QUERY: {0}")]
    Invalid(String),
    /// The cursor's message is not stored.
    #[error("archive error: DRIVER_ERROR: cursor not found")]
    Cursor,
    /// The client does not wait for the answer any more.
    #[error("nobody waits for the answer")]
    Gone,
    /// The query would visit too many rows.
    #[error("too much would have to be read; ask for a shorter time or for fewer topics")]
    TooDear,
    /// The archive failed.
    #[error("archive error: DRIVER_ERROR: {0}")]
    Archive(#[from] SearchError),
}

impl HistoryError {
    /// The status of the answer.
    pub fn status(&self) -> Status {
        match self {
            Self::Unread(_) | Self::RequestId | Self::Length(_) => Status::BadRequest,
            Self::TooMany => Status::TooManyRequests,
            Self::Archive(_) | Self::Down | Self::Busy | Self::Gone => Status::Unavailable,
            _ => Status::BadResponse,
        }
    }
}

impl From<SearchStop> for HistoryError {
    fn from(stop: SearchStop) -> Self {
        match stop {
            SearchStop::Gone => Self::Gone,
            SearchStop::TooDear => Self::TooDear,
            SearchStop::Archive(error) => Self::Archive(error),
        }
    }
}
