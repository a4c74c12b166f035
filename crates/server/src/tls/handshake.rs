//! The TLS handshakes of clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use rustls::crypto::ring;
use rustls::server::{Acceptor, ResolvesServerCert};
use rustls::{ServerConfig, ServerConnection};
use rustls_acme::is_tls_alpn_challenge;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::acme::AcmeCertificate;
use super::endpoint::{CertificateOrigin, TlsFailure};
use super::files::CertificateFiles;
use super::names::CertificateNames;
use super::{CertificateSource, EncryptedStream, TlsEndpoint, TlsError, TlsOptions};
use crate::blocking;
use crate::last_answer::send_last_answer;
use crate::metrics::ByLabel;
use crate::settings::SharedSettings;
use crate::stop::StopSignal;

/// The first byte of a client's handshake: the type of its record (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Interval between two checks whether the files of the certificate have changed.
const CHECK_EVERY: Duration = Duration::from_mins(1);
/// Maximum number of bytes that TLS buffers for a connection that accepts no bytes: one record.
const UNSENT_BYTES_MAX: usize = 16 << 10;
/// The protocol above TLS.
const HTTP_11: &[u8] = b"http/1.1";
/// The answer to a request without TLS.
const WITHOUT_TLS: &str = "this port speaks TLS; use wss:// or https://\n";

impl TlsEndpoint {
    /// Reads the certificate. Fails if the certificate cannot be used.
    pub(crate) async fn open(
        options: &TlsOptions,
        settings: &SharedSettings,
    ) -> Result<Arc<Self>, TlsError> {
        let (origin, resolver) = match &options.source {
            CertificateSource::Files(paths) => {
                let files = Arc::new(CertificateFiles::open(paths)?);
                let resolver: Arc<dyn ResolvesServerCert> = Arc::clone(&files) as _;
                (CertificateOrigin::Files(files), resolver)
            }
            CertificateSource::Acme(acme) => {
                let certificate = Box::new(AcmeCertificate::open(acme).await?);
                let resolver = certificate.resolver();
                (CertificateOrigin::Acme(certificate), resolver)
            }
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Protocol(Box::new(error)))?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![HTTP_11.to_vec()];
        Ok(Arc::new(Self {
            failed: ByLabel::default(),
            settings: Arc::clone(settings),
            origin,
            config: Arc::new(config),
        }))
    }

    /// Performs the handshake of a connection within the time of `limits.handshake_timeout_ms`.
    /// `None` if the handshake fails; the connection is then closed.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Option<EncryptedStream<TcpStream>> {
        let max = Duration::from_millis(self.settings.load().limits.handshake_timeout_ms);
        let opened = tokio::time::timeout(max, self.negotiate(stream)).await;
        let failure = match opened {
            Ok(Ok(stream)) => return stream,
            Ok(Err(failure)) => failure,
            Err(_) => TlsFailure::Timeout,
        };
        self.failed.of(failure).add(1);
        None
    }

    /// Returns the connection; `None` if the client is the authority, which only checks the name.
    async fn negotiate(
        &self,
        stream: TcpStream,
    ) -> Result<Option<EncryptedStream<TcpStream>>, TlsFailure> {
        let mut first = [0];
        // Nothing is allocated for a client that sends nothing, or something other than TLS.
        if stream.peek(&mut first).await.unwrap_or(0) == 0 {
            return Err(TlsFailure::Gone);
        }
        match first[0] {
            HANDSHAKE_RECORD => {}
            // An HTTP method begins with a capital letter.
            b'A'..=b'Z' => {
                send_last_answer(stream, StatusCode::BAD_REQUEST, "", WITHOUT_TLS).await;
                return Err(TlsFailure::Http);
            }
            _ => return Err(TlsFailure::Protocol),
        }
        // Answers are written whole, so Nagle's algorithm would only cause delay. A failure only
        // delays answers.
        let _ = stream.set_nodelay(true);
        match &self.origin {
            CertificateOrigin::Files(_) => {
                let acceptor = TlsAcceptor::from(Arc::clone(&self.config));
                let accepted = acceptor.accept_with(stream, bound_buffer).await;
                accepted.map(Some).map_err(|error| failure(&error))
            }
            CertificateOrigin::Acme(acme) => {
                let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await;
                let begun = begun.map_err(|error| failure(&error))?;
                if !is_tls_alpn_challenge(&begun.client_hello()) {
                    let config = Arc::clone(&self.config);
                    let accepted = begun.into_stream_with(config, bound_buffer).await;
                    return accepted.map(Some).map_err(|error| failure(&error));
                }
                let checked = begun.into_stream(Arc::clone(&acme.challenge)).await;
                let mut checked = checked.map_err(|error| failure(&error))?;
                // The authority may have closed the connection already.
                let _ = checked.shutdown().await;
                Ok(None)
            }
        }
    }

    /// The time at which the certificate expires, in seconds since 1970.
    pub(crate) fn expires_s(&self) -> u64 {
        match &self.origin {
            CertificateOrigin::Files(files) => files.expires_s(),
            CertificateOrigin::Acme(acme) => acme.expires_s(),
        }
    }

    /// The names of the certificate.
    #[cfg_attr(not(feature = "libp2p"), allow(dead_code))] // for the addresses of peers
    pub(crate) fn names(&self) -> Arc<CertificateNames> {
        match &self.origin {
            CertificateOrigin::Files(files) => files.names(),
            CertificateOrigin::Acme(acme) => acme.names(),
        }
    }

    /// Reads the files again. Returns the time at which a new certificate expires, or `None` if the
    /// files have the certificate in force, or if the server orders its certificate itself.
    pub(crate) fn read_again(&self) -> Result<Option<u64>, TlsError> {
        match &self.origin {
            CertificateOrigin::Files(files) => files.read_again(),
            CertificateOrigin::Acme(_) => Ok(None),
        }
    }

    /// Renews the certificate, or reads the files again whenever they change, until the shutdown.
    pub(crate) async fn watch(self: Arc<Self>, mut stop: StopSignal) {
        let files = match &self.origin {
            CertificateOrigin::Files(files) => files,
            CertificateOrigin::Acme(acme) => return acme.watch(stop).await,
        };
        loop {
            tokio::select! {
                () = stop.serving() => return,
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
            let files = Arc::clone(files);
            if let Err(error) = blocking::run(move || files.read_if_changed()).await {
                tracing::error!(%error, "the files in [tls] were not checked");
            }
        }
    }
}

/// Bounds the bytes that TLS buffers for a connection that accepts no bytes, because no outbox
/// counts these bytes.
fn bound_buffer(connection: &mut ServerConnection) {
    connection.set_buffer_limit(Some(UNSENT_BYTES_MAX));
}

/// The cause of an error during the handshake.
fn failure(error: &io::Error) -> TlsFailure {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => TlsFailure::Gone,
        _ => TlsFailure::Protocol,
    }
}
