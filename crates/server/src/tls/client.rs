//! A client of the server on this machine, which reports the certificate of the server.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

use super::acme_folder::AcmeFolder;
use super::{CertificateSource, PresentedCertificate, TlsError, TlsOptions, certificate};

/// Opens TLS on a connection to the server on this machine. The certificate is not verified, since
/// the client only requests the health of its own server, and reports the certificate.
pub fn connect(
    stream: TcpStream,
    host: &str,
) -> io::Result<(impl Read + Write + use<>, PresentedCertificate)> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(session, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).map_err(refused)?;
    }
    let presented = stream.conn.peer_certificates().and_then(<[_]>::first);
    let presented = presented.and_then(PresentedCertificate::of);
    let presented = presented.ok_or(io::ErrorKind::InvalidData)?;
    Ok((stream, presented))
}

/// Distinguishes a server that refuses the handshake from a server without TLS.
fn refused(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    match cause {
        Some(rustls::Error::AlertReceived(alert)) => io::Error::other(format!(
            "the server refuses TLS ({alert:?}); it may have no certificate yet: see its log"
        )),
        _ => error,
    }
}

/// Reads the certificate as a server does at its start.
pub fn read_certificate(options: &TlsOptions) -> Result<PresentedCertificate, TlsError> {
    match &options.source {
        CertificateSource::Files(paths) => {
            let read = certificate::read(paths)?;
            let presented = read.pair.cert.first().and_then(PresentedCertificate::of);
            presented.ok_or_else(|| TlsError::NoCertificate(paths.certificate.clone()))
        }
        CertificateSource::Acme(acme) => {
            let issued = AcmeFolder::new(acme).issued()?;
            issued.ok_or_else(|| TlsError::NotIssued(acme.domains.join(", ")))
        }
    }
}

/// Accepts every certificate if the server proves that it has the key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
