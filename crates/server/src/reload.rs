//! Lets the binary change the settings of a running server.

use std::sync::Arc;

use hark_archive::retention::{RetentionPolicy, RetentionThread};
use hark_archive::store::SpaceBounds;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::admin::reload::ReloadDesk;
pub use crate::admin::reload::{ReloadError, ReloadRequest};
use crate::door::OpenNetwork;
use crate::settings::{LimitsConflict, Settings, SettingsHandle};
use crate::tls::{TlsEndpoint, TlsError};

/// The retention threads of a server, in the order of its networks. Empty once another process does
/// retention.
pub(crate) type RetentionThreads = Arc<Mutex<Vec<RetentionThread>>>;

/// Changes the settings of a running server, and reports the result to its operators.
pub struct ReloadHandle {
    pub(crate) settings: SettingsHandle,
    pub(crate) networks: Arc<[OpenNetwork]>,
    pub(crate) keepers: RetentionThreads,
    pub(crate) desk: Arc<ReloadDesk>,
    pub(crate) tls: Option<Arc<TlsEndpoint>>,
    pub(crate) requests: Option<mpsc::Receiver<ReloadRequest>>,
}

impl ReloadHandle {
    /// Puts `settings` in force; see [`SettingsHandle::set`].
    pub fn set(&self, settings: Settings) -> Result<(), LimitsConflict> {
        self.settings.set(settings)
    }

    /// Replaces the retention policy of a network's shelf, from the next batch on, and the space
    /// bounds of the shelf's files.
    pub fn set_retention(&self, network: &str, policy: &RetentionPolicy, space: &SpaceBounds) {
        let keepers = self.keepers.lock();
        for (at, OpenNetwork { shelf, .. }) in self.networks.iter().enumerate() {
            if shelf.name() != network {
                continue;
            }
            shelf.store().set_space(space);
            if *shelf.retention() != *policy {
                shelf.set_retention(policy.clone());
                if let Some(keeper) = keepers.get(at) {
                    keeper.change(policy.clone());
                }
            }
        }
    }

    /// Reads the files of the certificate again. Returns the time at which a new certificate
    /// expires, in seconds since 1970, or `None` if the certificate is the same or no door speaks
    /// TLS. If the files cannot be used, the certificate in force stays in force.
    pub fn read_certificate(&self) -> Result<Option<u64>, TlsError> {
        self.tls.as_ref().map_or(Ok(None), |tls| tls.read_again())
    }

    /// Reports to operators that a configuration was read. `refusal` is the reason if the
    /// configuration was refused.
    pub fn report(&self, refusal: Option<String>) {
        self.desk.note(refusal);
    }

    /// Waits for the next request to read the configuration again. Waits forever if no request can
    /// come.
    pub async fn request(&mut self) -> ReloadRequest {
        if let Some(requests) = &mut self.requests
            && let Some(request) = requests.recv().await
        {
            return request;
        }
        std::future::pending().await
    }
}
