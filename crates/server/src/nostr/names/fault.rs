//! Why a name could not be checked.

use std::io;

use hark_networks::nostr::names::NameDocumentFault;

use crate::tls::TlsError;

/// Why a name could not be checked. The texts continue a sentence about the name, for its owner.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameFault {
    /// The domain has no address.
    #[error("the address of the domain is not found")]
    Address(#[source] io::Error),
    /// No address of the domain is reachable from the whole internet.
    #[error("the domain has no public address")]
    NotPublic,
    /// No address of the domain accepts a connection.
    #[error("the server of the domain cannot be reached by https")]
    Connection(#[source] io::Error),
    /// The handshake failed. The certificate may be for another domain.
    #[error("the server of the domain has no valid certificate")]
    Handshake(#[source] io::Error),
    /// The exchange of the request and the answer failed.
    #[error("the server of the domain does not answer in HTTP")]
    Http(#[from] hyper::Error),
    /// The request could not be made.
    #[error("the domain cannot be asked")]
    Request(#[from] hyper::http::Error),
    /// The answer has another status than 200. A redirect is not followed (NIP-05).
    #[error(
        "the server of the domain answers with HTTP status {0}, and redirects are not followed"
    )]
    Status(u16),
    /// The answer is too long.
    #[error("the answer of the domain has more than {0} bytes")]
    Long(usize),
    /// The answer is no document of NIP-05.
    #[error(transparent)]
    Document(#[from] NameDocumentFault),
    /// The domain did not answer in time.
    #[error("the server of the domain does not answer in time")]
    Timeout,
    /// This machine has no certificate authorities.
    #[error("this relay cannot check names at the moment")]
    Authorities(#[from] TlsError),
    /// The check has ended without a result.
    #[error("the check was interrupted")]
    Interrupted,
}

impl NameFault {
    /// Whether other names of the domain fail in the same way. Otherwise, the answer may concern only
    /// the name, and anybody can claim a name that the domain does not have.
    pub(super) fn concerns_domain(&self) -> bool {
        match self {
            Self::Status(status) => *status >= 500 || *status == 429,
            Self::Long(_) | Self::Document(_) | Self::Interrupted => false,
            _ => true,
        }
    }
}
