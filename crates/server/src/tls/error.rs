//! Why a certificate cannot be used.

use std::error::Error;
use std::path::PathBuf;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The program was built without TLS.
    #[error(
        "this program was built without the feature tls; build it with tls, or put a proxy in front"
    )]
    Unsupported,
    /// A file cannot be read.
    #[error("{} cannot be read: {cause}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// A file has no certificate.
    #[error("{} has no certificate in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// A file has no private key.
    #[error("{} has no private key in PEM, or the key has a password", .0.display())]
    NoKey(PathBuf),
    /// The key belongs to another certificate.
    #[error("the key in {} does not belong to the certificate in {}", key.display(), certificate.display())]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The system has no list of authorities, so no other server can be verified.
    #[error("this system has no list of certificate authorities; install ca-certificates")]
    NoAuthorities,
    /// The library offers no version of TLS.
    #[error("no version of TLS can be used: {0}")]
    Protocol(Box<dyn Error + Send + Sync>),
    /// No certificate was issued yet.
    #[error("no certificate for {0} was issued yet; the log of the server has the reason")]
    NotIssued(String),
    /// The content of a file cannot be used.
    #[error("{} cannot be used: {cause}", file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// The error of the library that reads the file.
        cause: Box<dyn Error + Send + Sync>,
    },
}
