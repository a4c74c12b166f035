//! A certificate that the server orders by ACME (RFC 8555) and renews after two thirds of its
//! lifetime. The authority checks each name by a connection to the relay itself (TLS-ALPN-01, RFC
//! 8737).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig};
use rustls_acme::acme::ACME_TLS_ALPN_NAME;
use rustls_acme::{AcmeConfig, AcmeState, EventError, EventOk, ResolvesServerCertAcme};

use super::acme_folder::AcmeFolder;
use super::authorities::client_config;
use super::names::CertificateNames;
use super::{AcmeOptions, TlsError};
use crate::stop::StopSignal;
use crate::words::moment;

/// While a certificate is in force, an order begins anew after this time without a step, because
/// the library waits forever for an authority that does not answer.
const STEP_MAX: Duration = Duration::from_hours(24);
/// Like [`STEP_MAX`], while no certificate is in force. The pause after failed orders is added.
const FIRST_STEP_MAX: Duration = Duration::from_hours(1);
/// After this number of failed orders in a row, the pause of the library no longer grows: it is
/// 2^16 s, or 18 hours.
const FAILED_MAX: u32 = 16;

type AcmeEvent = Result<EventOk, EventError<io::Error, io::Error>>;

/// A certificate that is ordered and renewed.
pub(super) struct AcmeCertificate {
    options: AcmeOptions,
    client: Arc<ClientConfig>,
    folder: AcmeFolder,
    current: Arc<CurrentCertificate>,
    /// The TLS settings of connections from the authority.
    pub(super) challenge: Arc<ServerConfig>,
    /// The next steps of the order. `None` once [`Self::watch`] carries out these steps.
    state: Mutex<Option<AcmeState<io::Error>>>,
}

/// The certificate in force, and the answer to the authority.
#[derive(Debug)]
struct CurrentCertificate(ArcSwap<ResolvesServerCertAcme>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().resolve(hello)
    }
}

impl AcmeCertificate {
    /// Reads the certificate that was issued last, so that no client notices a takeover. Without
    /// such a certificate, [`Self::watch`] orders the first.
    pub(super) async fn open(options: &AcmeOptions) -> Result<Self, TlsError> {
        let folder = AcmeFolder::new(options);
        folder.create()?;
        // Without this check, each start with an unreadable file would order a new certificate, up
        // to the limit of the authority.
        if let Err(error @ TlsError::Unreadable { .. }) = folder.issued() {
            return Err(error);
        }
        let client = Arc::new(client_config()?);
        let (state, is_deployed) = begin(options, &client, &folder).await;
        let domains = options.domains.join(", ");
        if is_deployed {
            log(&domains, &folder, &Ok(EventOk::DeployedCachedCert));
        } else {
            tracing::info!(
                domains,
                directory = options.directory,
                "the first certificate is ordered; until the authority issues it, clients cannot \
                 connect"
            );
        }
        let current = Arc::new(CurrentCertificate(ArcSwap::new(state.resolver())));
        let mut challenge = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Protocol(Box::new(error)))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as _);
        challenge.alpn_protocols = vec![ACME_TLS_ALPN_NAME.to_vec()];
        Ok(Self {
            options: options.clone(),
            client,
            folder,
            current,
            challenge: Arc::new(challenge),
            state: Mutex::new(Some(state)),
        })
    }

    /// The certificate in force, for the connections of clients.
    pub(super) fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.current) as _
    }

    /// The time at which the certificate expires, in seconds since 1970. 0 without a certificate.
    pub(super) fn expires_s(&self) -> u64 {
        self.folder.expires_s()
    }

    /// The names of the certificate, which are known before the first certificate is issued.
    pub(super) fn names(&self) -> Arc<CertificateNames> {
        let hosts = self.options.domains.clone();
        Arc::new(CertificateNames { hosts, ips: Vec::new() })
    }

    /// Orders the first certificate, and renews the certificate, until another process takes over
    /// or the server shuts down.
    pub(super) async fn watch(&self, mut stop: StopSignal) {
        let Some(mut state) = self.state.lock().take() else { return };
        let domains = self.options.domains.join(", ");
        // Number of orders that have failed in a row.
        let mut failed = 0;
        loop {
            let event = tokio::select! {
                () = stop.accepting() => return,
                event = tokio::time::timeout(self.step_max(failed), state.next()) => event,
            };
            match event {
                Ok(Some(event)) => {
                    let is_failed = matches!(event, Err(EventError::Order(_)));
                    failed = if is_failed { failed + 1 } else { 0 };
                    log(&domains, &self.folder, &event);
                    // The next step writes the new certificate to its file. A takeover waits for
                    // this step, so that the next process has the certificate.
                    if matches!(event, Ok(EventOk::DeployedNewCert))
                        && let Some(stored) = state.next().await
                    {
                        log(&domains, &self.folder, &stored);
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    failed = 0;
                    let (next, is_deployed) =
                        begin(&self.options, &self.client, &self.folder).await;
                    // A certificate in force stays in force if its file cannot be read again.
                    if is_deployed || self.expires_s() == 0 {
                        state = next;
                        self.current.0.store(state.resolver());
                    }
                }
            }
        }
    }

    /// How long to wait for the next step after this number of failed orders.
    fn step_max(&self, failed: u32) -> Duration {
        if self.expires_s() > 0 {
            STEP_MAX
        } else {
            FIRST_STEP_MAX + Duration::from_secs(1 << failed.min(FAILED_MAX))
        }
    }
}

/// Begins the steps of an order or a renewal. Also returns whether the resolver of these steps has
/// a certificate that was issued before.
async fn begin(
    options: &AcmeOptions,
    client: &Arc<ClientConfig>,
    folder: &AcmeFolder,
) -> (AcmeState<io::Error>, bool) {
    let mut state = AcmeConfig::new_with_client_config(&options.domains, Arc::clone(client))
        .contact(&options.contact)
        .directory(&options.directory)
        .cache(folder.clone())
        .state();
    // Without a certificate in the folder, `state.next()` would already begin an order.
    let Ok(Some(issued)) = folder.issued() else { return (state, false) };
    let event = state.next().await;
    if let Some(Err(error)) = &event {
        tracing::error!(%error, "the certificate in the folder acme cannot be used");
    }
    let is_deployed = matches!(event, Some(Ok(EventOk::DeployedCachedCert)));
    if is_deployed {
        folder.put_in_force(&issued);
    }
    (state, is_deployed)
}

fn log(domains: &str, folder: &AcmeFolder, event: &AcmeEvent) {
    match event {
        Ok(EventOk::DeployedCachedCert | EventOk::CertCacheStore) => {
            tracing::info!(
                domains,
                expires = moment(folder.expires_s()),
                "a new certificate is in force"
            );
        }
        Ok(EventOk::DeployedNewCert | EventOk::AccountCacheStore) => {}
        Err(error @ (EventError::CertCacheStore(_) | EventError::AccountCacheStore(_))) => {
            tracing::error!(%error, "the folder acme in the archive's directory cannot be written");
        }
        Err(error) => {
            tracing::error!(
                %error,
                domains,
                "no certificate was issued, and this is tried again; the names must lead to this \
                 server's port 443"
            );
        }
    }
}
