//! TLS to relays: the system's list of authorities decides which certificates are accepted.

use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// The TLS settings of all connections, made once.
static CONFIG: OnceLock<Result<Arc<ClientConfig>, String>> = OnceLock::new();

/// Returns the settings of TLS connections. The error is a text for people.
pub(crate) fn config() -> Result<Arc<ClientConfig>, String> {
    CONFIG.get_or_init(make).clone()
}

fn make() -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(format!(
            "this system has no list of certificate authorities{why}; install one (the package is \
             often called ca-certificates), or name a file in SSL_CERT_FILE"
        ));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
