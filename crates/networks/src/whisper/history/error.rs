//! Why a request for envelopes gets no page of envelopes.

use hark_archive::SearchError;

use crate::search::SearchStop;

/// Why a request gets no page. The texts are for clients.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    /// The client exceeds its rate limit.
    #[error("rate limit exceeded")]
    TooMany,
    /// The memory for answers that clients have not read yet is used up.
    #[error("too many answers wait to be read; try again later")]
    Busy,
    /// The search would visit too many rows.
    #[error("too much would have to be read; ask for a shorter time or for fewer topics")]
    TooDear,
    /// The client does not wait for the answer any more.
    #[error("nobody waits for the answer")]
    Gone,
    /// The server is shutting down.
    #[error("the server is going down")]
    Down,
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] SearchError),
}

impl From<SearchStop> for MailError {
    fn from(stop: SearchStop) -> Self {
        match stop {
            SearchStop::Gone => Self::Gone,
            SearchStop::TooDear => Self::TooDear,
            SearchStop::Archive(error) => Self::Archive(error),
        }
    }
}
