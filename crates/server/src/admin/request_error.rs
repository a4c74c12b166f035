//! Why the server does not carry out a request of a command.

use std::sync::Arc;

use hark_archive::CommitError;

use super::clients::ClientsError;
use super::reload::ReloadError;
use crate::door::AdminLinkFault;
use crate::shelf::CompactFault;

/// Why a request about a shelf failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShelfRequestError {
    #[error("a request to delete has no list of ids")]
    NoIds,
    #[error("this network has no report")]
    NoReport,
    #[error(transparent)]
    Write(#[from] Arc<CommitError>),
    #[error("this store has nothing to compact")]
    NothingToCompact,
    #[error(transparent)]
    Compact(CompactFault),
    #[error(transparent)]
    Reload(#[from] ReloadError),
    #[error(transparent)]
    Clients(#[from] ClientsError),
    #[error(transparent)]
    Link(#[from] AdminLinkFault),
    #[error("request {0} is not known; is the other end of this version?")]
    Unknown(u8),
}
