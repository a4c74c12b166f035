//! The relay's description of itself, and its private kinds. Both can change while the server runs.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};
use hark_archive::{Gate, LabelSet};
use hark_codec::hex;
use hark_codec::record::Key;
use hark_networks::nostr::admit::OwnUrls;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::info::{PRIVATE_KINDS, RelayInfo};

/// The identity in force.
pub(crate) struct RelayIdentity {
    /// The relay's description of itself.
    pub(crate) info: RelayInfo,
    /// The URLs that name this relay, and its addresses.
    pub(crate) own_urls: OwnUrls,
    /// The configured URLs, whose hosts name this relay in AUTH.
    pub(crate) hosts: OwnUrls,
    /// The gate of clients that have proven no key. Its kinds are the private kinds, ascending.
    pub(crate) strangers: Arc<Gate>,
}

impl RelayIdentity {
    fn new(info: RelayInfo, mut private_kinds: Vec<u32>, addrs: &[SocketAddr]) -> Self {
        let addrs = addrs.iter().map(|addr| format!("ws://{addr}"));
        let own_urls = OwnUrls::new(info.urls().chain(addrs));
        private_kinds.sort_unstable();
        let addressed = LabelSet { name: b'p', values: Vec::new() };
        let strangers = Gate { kinds: private_kinds, readers: Vec::new(), addressed };
        let hosts = OwnUrls::new(info.urls());
        Self { info, own_urls, hosts, strangers: strangers.into() }
    }

    /// Whether the URL under which clients reach the relay is configured.
    pub(crate) fn knows_url(&self) -> bool {
        self.info.url.is_some()
    }

    /// The private kinds, ascending.
    pub(crate) fn private_kinds(&self) -> &[u32] {
        &self.strangers.kinds
    }
}

/// Changes of the relay's description that managers have made (NIP-86). They override the
/// configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InfoChanges {
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) icon: Option<String>,
}

impl InfoChanges {
    fn apply(&self, mut info: RelayInfo) -> RelayInfo {
        let Self { name, description, icon } = self.clone();
        info.name = name.unwrap_or(info.name);
        info.description = description.unwrap_or(info.description);
        info.icon = icon.or(info.icon);
        info
    }
}

/// The sources of the relay's description of itself.
#[derive(Clone, Default)]
struct DescribedRelay {
    /// The description in the configuration.
    info: RelayInfo,
    /// The changes by managers.
    changes: InfoChanges,
    /// The key with which the relay signs events of its own, if it has a key.
    own_key: Option<Key>,
}

impl DescribedRelay {
    fn info(&self) -> RelayInfo {
        let mut info = self.changes.apply(self.info.clone());
        if let Some(key) = &self.own_key {
            info.self_key = Some(hex::text_32(key));
        }
        info
    }
}

/// A shared handle to a relay's identity. The identity can be replaced.
#[derive(Clone)]
pub struct SharedIdentity(Arc<IdentityCell>);

struct IdentityCell {
    current: ArcSwap<RelayIdentity>,
    /// The lock is held while the identity is replaced.
    described: Mutex<DescribedRelay>,
    /// The addresses of the relay, once they are known.
    addrs: OnceLock<Vec<SocketAddr>>,
    /// Notified when the identity is replaced.
    changed: Notify,
}

impl Default for SharedIdentity {
    fn default() -> Self {
        Self::new(RelayInfo::default(), PRIVATE_KINDS.to_vec())
    }
}

impl std::fmt::Debug for SharedIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let current = self.current();
        f.debug_tuple("SharedIdentity")
            .field(&current.info)
            .field(&current.private_kinds())
            .finish()
    }
}

impl SharedIdentity {
    /// Creates an identity from a description and the private kinds. Only authors and recipients
    /// get events of private kinds.
    pub fn new(info: RelayInfo, private_kinds: Vec<u32>) -> Self {
        let described =
            Mutex::new(DescribedRelay { info: info.clone(), ..DescribedRelay::default() });
        let current = ArcSwap::from_pointee(RelayIdentity::new(info, private_kinds, &[]));
        let (addrs, changed) = (OnceLock::new(), Notify::new());
        Self(Arc::new(IdentityCell { current, described, addrs, changed }))
    }

    /// Replaces the identity. Open connections use the new identity from their next message on.
    /// Open subscriptions keep the private kinds with which they were opened.
    pub fn set(&self, info: RelayInfo, private_kinds: Vec<u32>) {
        let mut described = self.0.described.lock();
        described.info = info;
        self.replace(&described, private_kinds);
    }

    /// Replaces the changes that managers have made to the relay's description.
    pub(crate) fn change_info(&self, changes: InfoChanges) {
        let mut described = self.0.described.lock();
        if described.changes != changes {
            described.changes = changes;
            let private_kinds = self.current().private_kinds().to_vec();
            self.replace(&described, private_kinds);
        }
    }

    /// Sets the relay's own key. `None`: the relay does not sign.
    pub(crate) fn set_own_key(&self, key: Option<&Key>) {
        let mut described = self.0.described.lock();
        if described.own_key.as_ref() != key {
            described.own_key = key.copied();
            let private_kinds = self.current().private_kinds().to_vec();
            self.replace(&described, private_kinds);
        }
    }

    /// The key with which the relay signs events of its own, if it has a key.
    pub(crate) fn own_key(&self) -> Option<Key> {
        self.0.described.lock().own_key
    }

    /// Whether the configuration names this key as the relay's own key.
    pub(crate) fn confirms_key(&self, key: &Key) -> bool {
        let described = self.0.described.lock();
        let named = described.info.self_key.as_ref();
        named.and_then(|digits| hex::decode_32(digits.as_bytes())).as_ref() == Some(key)
    }

    fn replace(&self, described: &DescribedRelay, private_kinds: Vec<u32>) {
        let info = described.info();
        let addrs = self.0.addrs.get().map_or(&[][..], Vec::as_slice);
        self.0.current.store(Arc::new(RelayIdentity::new(info, private_kinds, addrs)));
        self.0.changed.notify_waiters();
    }

    /// Waits until the identity is replaced after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }

    /// Adds the addresses of the relay to its own URLs. Called once, when the relay is opened.
    pub(crate) fn listens_on(&self, addrs: &[SocketAddr]) {
        // The addresses are set once, before any code reads the addresses.
        let _ = self.0.addrs.set(addrs.to_vec());
        let described = self.0.described.lock();
        let private_kinds = self.current().private_kinds().to_vec();
        self.replace(&described, private_kinds);
    }

    /// The identity in force.
    pub(crate) fn current(&self) -> Guard<Arc<RelayIdentity>> {
        self.0.current.load()
    }
}
