//! TLS in a build without the feature `tls`: no endpoint opens, and no connection has TLS.

use std::future::{Ready, ready};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::{PresentedCertificate, TlsEndpoint, TlsError, TlsOptions};
use crate::settings::SharedSettings;
use crate::stop::StopSignal;

/// A connection with TLS. Without the feature, no such connection exists.
pub(crate) type EncryptedStream<S> = S;

impl TlsEndpoint {
    /// Fails, because the program was built without TLS.
    pub(crate) fn open(_: &TlsOptions, _: &SharedSettings) -> Ready<Result<Arc<Self>, TlsError>> {
        ready(Err(TlsError::Unsupported))
    }

    /// Closes the connection.
    pub(crate) fn accept(
        &self,
        _: tokio::net::TcpStream,
    ) -> Ready<Option<EncryptedStream<tokio::net::TcpStream>>> {
        ready(None)
    }

    /// The time at which the certificate expires, in seconds since 1970.
    pub(crate) fn expires_s(&self) -> u64 {
        0
    }

    /// The names of the certificate: none.
    #[cfg(feature = "libp2p")]
    pub(crate) fn names(&self) -> Arc<super::CertificateNames> {
        Arc::default()
    }

    /// Fails, because the program was built without TLS.
    pub(crate) fn read_again(&self) -> Result<Option<u64>, TlsError> {
        Err(TlsError::Unsupported)
    }

    /// Waits for the shutdown.
    pub(crate) async fn watch(self: Arc<Self>, mut stop: StopSignal) {
        stop.serving().await;
    }
}

impl PresentedCertificate {
    /// Whether the certificate is valid for a host name or an IP address.
    pub fn is_for(&self, _: &str) -> bool {
        false
    }
}

/// Fails, because the program was built without TLS.
pub fn connect(
    _: TcpStream,
    _: &str,
) -> io::Result<(impl Read + Write + use<>, PresentedCertificate)> {
    Err::<(TcpStream, _), _>(io::ErrorKind::Unsupported.into())
}

/// Fails, because the program was built without TLS.
pub fn read_certificate(_: &TlsOptions) -> Result<PresentedCertificate, TlsError> {
    Err(TlsError::Unsupported)
}
