//! The choice of a certificate, and of the doors that present this certificate.

use std::path::PathBuf;

/// The certificate of a server, and the doors that present this certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The origin of the certificate.
    pub source: CertificateSource,
    /// Whether the relay speaks TLS.
    pub relay: bool,
    /// Whether the REST doors speak TLS.
    pub rest: bool,
}

/// The origin of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// The operator renews the files.
    Files(CertificatePaths),
    /// The server orders and renews the certificate by ACME (RFC 8555).
    Acme(AcmeOptions),
}

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePaths {
    /// The certificate and its intermediate certificates, in PEM.
    pub certificate: PathBuf,
    /// The private key, in PEM.
    pub key: PathBuf,
}

/// How a certificate is ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeOptions {
    /// The names of the certificate.
    pub domains: Vec<String>,
    /// The URL at which the authority can contact the operator, such as `mailto:me@relay.example`.
    pub contact: Option<String>,
    /// The URL at which the authority describes its service.
    pub directory: String,
    /// The folder of the account's key and of the certificate.
    pub folder: PathBuf,
}
