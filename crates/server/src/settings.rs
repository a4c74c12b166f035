//! The settings that can change while the server runs: limits, client addresses, and thresholds of
//! reports. All settings are replaced at once, and every later read sees the new values.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::address::AddressLists;
use crate::limits::{Limits, RateLimits};
use crate::rate::RateGroups;
use crate::roster::AddressPrivacy;

/// The settings in force.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// All limits.
    pub limits: Limits,
    /// The addresses whose connections are accepted.
    pub addresses: AddressLists,
    /// The clients and kinds with rates of their own.
    pub rate_groups: Arc<RateGroups>,
    /// Questions slower than this are logged. `None` disables the log.
    pub slow_question: Option<Duration>,
    /// A client is logged once this number of its messages and connections were refused within a
    /// minute. `None` disables the log.
    pub refusals_from: Option<u64>,
    /// How logs and lists show the addresses of clients.
    pub addresses_shown: AddressPrivacy,
    /// Time without progress after which `/healthz` reports that the mirror is stuck. `None`
    /// disables the report.
    pub mirror_stuck_after: Option<Duration>,
}

/// The limits contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct LimitsConflict(Vec<String>);

/// The settings in force, shared by all their readers.
pub(crate) type SharedSettings = Arc<ArcSwap<Settings>>;

impl Settings {
    /// Maximum number of connections of a client's address.
    pub(crate) fn connections_of(&self, ip: IpAddr) -> usize {
        self.rate_groups.connections_max(ip, self.limits.connections_per_address_max)
    }

    /// Checks the settings, and removes the rates if the server runs `--unlimited`.
    pub(crate) fn in_force(mut self, unlimited: bool) -> Result<Self, LimitsConflict> {
        let faults = self.limits.faults();
        if !faults.is_empty() {
            return Err(LimitsConflict(faults));
        }
        if unlimited {
            self.limits.rates = RateLimits::none();
            self.rate_groups = Arc::default();
        }
        Ok(self)
    }
}

/// Changes the settings of a running server.
#[derive(Clone)]
pub struct SettingsHandle {
    pub(crate) shared: SharedSettings,
    pub(crate) unlimited: bool,
}

impl SettingsHandle {
    /// Puts `settings` in force. An open connection keeps two bounds as they were when it opened:
    /// the length of a message, and the bytes that may wait for the client. `intake_bytes_max` does
    /// not change until the server ends. Fails, and changes nothing, if the limits contradict each
    /// other.
    pub fn set(&self, mut settings: Settings) -> Result<(), LimitsConflict> {
        let before = self.shared.load();
        settings.limits.intake_bytes_max = before.limits.intake_bytes_max;
        Arc::make_mut(&mut settings.rate_groups).inherit_from(&before.rate_groups);
        self.shared.store(Arc::new(settings.in_force(self.unlimited)?));
        Ok(())
    }
}
