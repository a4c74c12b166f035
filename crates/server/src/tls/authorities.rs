//! The TLS settings of connections from this server to other servers.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use super::TlsError;

/// Returns TLS settings that verify the other server by the certificate authorities of the system.
/// Reads the files of these authorities.
pub(crate) fn client_config() -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(TlsError::NoAuthorities);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Protocol(Box::new(error)))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
