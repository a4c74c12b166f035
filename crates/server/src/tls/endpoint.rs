//! The state of TLS that all doors share.

#[cfg(feature = "tls")]
use std::sync::Arc;

#[cfg(feature = "tls")]
use super::acme::AcmeCertificate;
#[cfg(feature = "tls")]
use super::files::CertificateFiles;
use crate::metrics::{ByLabel, MetricLabel, labels};
#[cfg(feature = "tls")]
use crate::settings::SharedSettings;

labels! {
    /// Why a TLS handshake failed.
    TlsFailure {
        /// The handshake took too long.
        Timeout = "timeout",
        /// The client closed the connection.
        Gone = "gone",
        /// The client sent HTTP without TLS.
        Http = "http",
        /// The client and the server do not agree on a version or another parameter of TLS, or the
        /// client sent something other than TLS.
        Protocol = "protocol",
    }
}

/// The origin of the certificate in force.
#[cfg(feature = "tls")]
pub(super) enum CertificateOrigin {
    Files(Arc<CertificateFiles>),
    Acme(Box<AcmeCertificate>),
}

/// TLS of a server: its certificate and its counters.
pub(crate) struct TlsEndpoint {
    /// Number of handshakes that failed, by cause.
    pub(crate) failed: ByLabel<TlsFailure>,
    /// The bounds of the server, which include the time of a handshake.
    #[cfg(feature = "tls")]
    pub(super) settings: SharedSettings,
    #[cfg(feature = "tls")]
    pub(super) origin: CertificateOrigin,
    #[cfg(feature = "tls")]
    pub(super) config: Arc<rustls::ServerConfig>,
}
