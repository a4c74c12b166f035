//! Decides which clients may connect. Every door checks a new connection with this module.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::HeaderMap;

use crate::address::Proxies;
use crate::moderation::{AddressRuling, Moderation};
use crate::roster::{ConnectionForm, Roster, RosterEntry};
use crate::settings::{Settings, SharedSettings};

/// The address lists in force, and the clients that are connected. A change of the lists applies
/// from the next connection on.
#[derive(Clone, Debug)]
pub struct Clients {
    settings: SharedSettings,
    proxies: Arc<Proxies>,
    roster: Arc<Roster>,
    moderation: Moderation,
}

/// The class of a new connection's peer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressClass {
    /// A client that the address lists admit.
    Client,
    /// A trusted proxy. Many clients share this address.
    Proxy,
    /// A client that the address lists reject.
    Denied,
}

impl Clients {
    pub(crate) fn new(settings: SharedSettings, proxies: Proxies, moderation: Moderation) -> Self {
        let roster = Arc::new(Roster::new(&settings));
        Self { settings, proxies: Arc::new(proxies), roster, moderation }
    }

    /// Adds a connection from `peer` to the list of open connections.
    pub(crate) fn list(&self, of: (&'static str, ConnectionForm), peer: IpAddr) -> RosterEntry {
        let is_proxy = self.is_proxy(peer);
        let entry = self.roster.enter(of, (peer, is_proxy));
        // A ban that came into force after the address was checked, but before this entry was
        // listed, has not closed this connection.
        if !is_proxy && let Some(reason) = self.moderation.address_ban(peer) {
            entry.kick(&reason);
        }
        entry
    }

    /// The open connections of all doors.
    pub(crate) fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Whether a trusted proxy has this address.
    pub(crate) fn is_proxy(&self, peer: IpAddr) -> bool {
        self.proxies.trust(peer)
    }

    /// The client address that a trusted proxy names.
    pub(crate) fn named(&self, headers: &HeaderMap) -> Option<IpAddr> {
        self.proxies.client(headers)
    }

    /// Whether the address lists and the bans admit a client at `ip`.
    pub(crate) fn serve(&self, ip: IpAddr) -> bool {
        let addresses = &self.settings.load().addresses;
        match self.moderation.address_ruling(ip) {
            AddressRuling::Banned => false,
            AddressRuling::Allowed => !addresses.denies(ip),
            AddressRuling::Unruled => addresses.serve(ip),
        }
    }

    /// Whether the list of denied addresses or a ban rejects `ip`, which is not a trusted proxy.
    #[cfg(feature = "libp2p")]
    pub(crate) fn denies(&self, ip: IpAddr) -> bool {
        let is_denied = || {
            self.settings.load().addresses.denies(ip) || self.moderation.address_ban(ip).is_some()
        };
        !self.is_proxy(ip) && is_denied()
    }

    /// Returns the class of an address.
    pub(crate) fn class(&self, peer: IpAddr) -> AddressClass {
        if self.is_proxy(peer) {
            AddressClass::Proxy
        } else if self.serve(peer) {
            AddressClass::Client
        } else {
            AddressClass::Denied
        }
    }

    /// Returns the client of an HTTP request: the peer address, or the client that a trusted proxy
    /// names. `None` if the address lists reject the client.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        match self.class(peer) {
            AddressClass::Client => Some(peer),
            AddressClass::Denied => None,
            AddressClass::Proxy => {
                let Some(client) = self.named(headers) else { return Some(peer) };
                self.serve(client).then_some(client)
            }
        }
    }
}

/// Serves all clients, and trusts no proxy.
impl Default for Clients {
    fn default() -> Self {
        let proxies = Proxies { trusted: Vec::new(), ..Proxies::default() };
        let settings = Arc::new(ArcSwap::from_pointee(Settings::default()));
        Self::new(settings, proxies, Moderation::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SettingsHandle;

    #[test]
    fn a_change_of_the_lists_holds_from_the_next_connection_on() {
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let proxies =
            Proxies { trusted: vec!["10.0.0.0/8".parse().unwrap()], ..Proxies::default() };
        let shared: SharedSettings = Arc::default();
        let clients = Clients::new(Arc::clone(&shared), proxies, Moderation::default());
        assert_eq!(clients.class(one), AddressClass::Client);
        let mut settings = Settings::default();
        settings.addresses.deny =
            vec!["192.0.2.0/24".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
        SettingsHandle { shared, unlimited: false }.set(settings).unwrap();
        assert_eq!(clients.class(one), AddressClass::Denied);
        assert_eq!(clients.class("10.0.0.1".parse().unwrap()), AddressClass::Proxy);
        assert_eq!(clients.class("192.0.3.1".parse().unwrap()), AddressClass::Client);
    }
}
