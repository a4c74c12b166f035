//! Why a request to the relay management API is refused, as a status and a text.

use axum::http::StatusCode;

use super::call::CallFault;
use super::http_auth::HttpAuthFault;
use super::method::ManageMethod;
use super::page::SessionFault;
use crate::metrics::{MetricLabel, labels};
use crate::moderation::{ModerationError, SubjectError};
use crate::roster::UnclearPattern;

/// Maximum size of the body of a request, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

labels! {
    /// The result of a request to the relay management API.
    ManageResult {
        /// The call was carried out.
        Done = "ok",
        /// The relay has no managers.
        NoManagers = "no managers",
        /// The signature is missing or invalid.
        Unauthorized = "unauthorized",
        /// The key may not call the method.
        Forbidden = "forbidden",
        /// The request is no valid call.
        Invalid = "invalid",
        /// The rate of the client's address is exceeded.
        RateLimited = "rate-limited",
        /// The call failed.
        Error = "error",
    }
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManageFault {
    #[error("this relay has no managers; its operator names them in [manage] keys")]
    NoManagers,
    #[error("{0}")]
    Rate(String),
    #[error(transparent)]
    Auth(#[from] HttpAuthFault),
    #[error("this key does not manage this relay")]
    NotManager,
    #[error("your roles do not include {}; supportedmethods lists your methods", .0.text())]
    NotAllowed(ManageMethod),
    #[error("the role {0:?} has methods that you may not call, so you cannot give or withdraw it")]
    RoleAbove(String),
    #[error("there is no role {0:?}; createrole defines a role")]
    NoRole(String),
    #[error("the role {0:?} exists; editrole changes it")]
    RoleExists(String),
    #[error("the settings of the relay assign the role {0:?} to this key; edit [manage] roles")]
    RoleOfSettings(String),
    #[error("the relay has {0} roles, which is the maximum")]
    TooManyRoles(usize),
    #[error("the role is assigned to {0} keys, which is the maximum")]
    TooManyKeys(usize),
    #[error("the body has more than {BODY_BYTES_MAX} bytes")]
    Long,
    #[error("the body did not arrive in full")]
    Body,
    #[error(transparent)]
    Call(#[from] CallFault),
    #[error("the list has more than {0} entries; `hark list` on the server shows all")]
    LongList(usize),
    #[error(transparent)]
    Moderation(#[from] ModerationError),
    #[error("the archive could not be read: {0}")]
    Search(String),
    #[error("the server is stopping")]
    Stopping,
    #[error(transparent)]
    Subject(#[from] SubjectError),
    #[error("only keys in [manage] keys, and links of `hark admin link`, may do this")]
    NotAdmin,
    #[error("`{0}` {1}")]
    Connections(String, UnclearPattern),
    #[error("the form is not complete; load the page again")]
    NoForm,
    #[error(
        "the request does not come from a page of this relay: its Origin header must be the address of \
         this page"
    )]
    Origin,
    #[error("nobody is logged in, or the session has ended; log in again")]
    NoSession,
    #[error("the form belongs to another session; load the page again")]
    Token,
    #[error(transparent)]
    Session(#[from] SessionFault),
}

impl ManageFault {
    /// The status of the answer, and the result for the metrics.
    pub(super) fn status(&self) -> (StatusCode, ManageResult) {
        match self {
            Self::NoManagers => (StatusCode::FORBIDDEN, ManageResult::NoManagers),
            Self::Rate(_) => (StatusCode::TOO_MANY_REQUESTS, ManageResult::RateLimited),
            Self::Auth(HttpAuthFault::TooMany) => {
                (StatusCode::TOO_MANY_REQUESTS, ManageResult::RateLimited)
            }
            Self::Auth(_) => (StatusCode::UNAUTHORIZED, ManageResult::Unauthorized),
            Self::Origin | Self::NoSession | Self::Token | Self::Session(SessionFault::Link) => {
                (StatusCode::FORBIDDEN, ManageResult::Unauthorized)
            }
            Self::NotManager | Self::NotAllowed(_) | Self::RoleAbove(_) | Self::NotAdmin => {
                (StatusCode::FORBIDDEN, ManageResult::Forbidden)
            }
            Self::Long => (StatusCode::PAYLOAD_TOO_LARGE, ManageResult::Invalid),
            Self::Body => (StatusCode::REQUEST_TIMEOUT, ManageResult::Invalid),
            Self::Call(_)
            | Self::NoRole(_)
            | Self::RoleExists(_)
            | Self::RoleOfSettings(_)
            | Self::TooManyRoles(_)
            | Self::TooManyKeys(_)
            | Self::LongList(_)
            | Self::Subject(_)
            | Self::Connections(..)
            | Self::NoForm
            | Self::Moderation(ModerationError::Text | ModerationError::Full) => {
                (StatusCode::BAD_REQUEST, ManageResult::Invalid)
            }
            Self::Moderation(_) | Self::Search(_) | Self::Stopping | Self::Session(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, ManageResult::Error)
            }
        }
    }
}
