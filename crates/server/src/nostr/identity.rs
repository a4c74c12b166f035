//! The relay's description of itself, and its private kinds. Both can change while the server runs.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};
use hark_archive::{Gate, LabelSet};
use hark_networks::nostr::admit::OwnUrls;
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

/// A shared handle to a relay's identity. The identity can be replaced.
#[derive(Clone)]
pub struct SharedIdentity(Arc<IdentityCell>);

struct IdentityCell {
    current: ArcSwap<RelayIdentity>,
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
        let current = ArcSwap::from_pointee(RelayIdentity::new(info, private_kinds, &[]));
        Self(Arc::new(IdentityCell { current, addrs: OnceLock::new(), changed: Notify::new() }))
    }

    /// Replaces the identity. Open connections use the new identity from their next message on.
    /// Open subscriptions keep the private kinds with which they were opened.
    pub fn set(&self, info: RelayInfo, private_kinds: Vec<u32>) {
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
        let current = self.current();
        self.set(current.info.clone(), current.private_kinds().to_vec());
    }

    /// The identity in force.
    pub(crate) fn current(&self) -> Guard<Arc<RelayIdentity>> {
        self.0.current.load()
    }
}
