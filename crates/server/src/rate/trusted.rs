//! The keys that a rule of a network trusts, for groups of trusted clients.

use std::sync::Arc;

use hark_codec::record::Key;

/// The trusted keys, which change while the server runs.
pub trait TrustedKeys: Send + Sync {
    /// Whether a key is trusted now.
    fn have(&self, key: &Key) -> bool;

    /// A number that changes whenever another key is trusted or no longer trusted.
    fn generation(&self) -> u64;
}

/// The trusted keys of the server. Without a rule, no key is trusted.
#[derive(Clone, Default)]
pub(super) struct TrustedClients(pub(super) Option<Arc<dyn TrustedKeys>>);

impl TrustedClients {
    pub(super) fn have_some(&self, keys: &[Key]) -> bool {
        self.0.as_ref().is_some_and(|trusted| keys.iter().any(|key| trusted.have(key)))
    }

    pub(super) fn generation(&self) -> u64 {
        self.0.as_ref().map_or(0, |trusted| trusted.generation())
    }
}

impl std::fmt::Debug for TrustedClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TrustedClients").field(&self.0.is_some()).finish()
    }
}
