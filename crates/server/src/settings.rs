//! What can change while the server runs: its limits, and whose connections it takes. Both are swapped
//! at once, and whoever asks next sees the new ones.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hark_archive::limits::{Limits, Rates};

use crate::clients::Addresses;

/// The settings in force.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Every bound.
    pub limits: Limits,
    /// Whose connections are taken.
    pub addresses: Addresses,
}

/// The settings in force, for all who look at them.
pub(crate) type Shared = Arc<ArcSwap<Settings>>;

impl Settings {
    /// Without rates, if the server runs `--unlimited`.
    pub(crate) fn in_force(mut self, unlimited: bool) -> Result<Self, String> {
        self.limits.check()?;
        if unlimited {
            self.limits.rates = Rates::none();
        }
        Ok(self)
    }
}

/// Changes the settings of a running server.
#[derive(Clone)]
pub struct Reload {
    pub(crate) shared: Shared,
    pub(crate) unlimited: bool,
}

impl Reload {
    /// Puts these in force. What a connection is given when it opens stays as it is until that ends:
    /// the length of a message, and how much may wait for the client. `intake_bytes_max` stays until
    /// the server ends. Where the limits contradict each other nothing changes.
    pub fn set(&self, mut settings: Settings) -> Result<(), String> {
        settings.limits.intake_bytes_max = self.shared.load().limits.intake_bytes_max;
        self.shared.store(Arc::new(settings.in_force(self.unlimited)?));
        Ok(())
    }
}
