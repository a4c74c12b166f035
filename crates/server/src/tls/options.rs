//! The choice of a certificate, and of the doors that present this certificate.

use std::path::PathBuf;

/// The certificate of a server, and the doors that present this certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The file of the certificate and of the certificates between it and its authority, in PEM.
    pub certificate: PathBuf,
    /// The file of the private key, in PEM.
    pub key: PathBuf,
    /// Whether the REST doors speak TLS as well.
    pub rest: bool,
}
