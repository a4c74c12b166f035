//! The clients that are exempt from all rate limits.

use std::collections::HashSet;
use std::net::IpAddr;

use hark_codec::record::Key;
use ipnet::IpNet;

use crate::ranges;

/// Clients exempt from the rate limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparedClients {
    /// Clients at these addresses.
    pub addresses: Vec<IpNet>,
    /// Connections that have proved one of these keys (NIP-42).
    pub keys: HashSet<Key>,
}

impl SparedClients {
    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.keys.is_empty()
    }

    /// Whether a client at `ip` is exempt.
    pub(crate) fn have_address(&self, ip: IpAddr) -> bool {
        ranges::contain(&self.addresses, ip)
    }

    pub(super) fn have(&self, ip: Option<IpAddr>, keys: &[Key]) -> bool {
        ip.is_some_and(|ip| self.have_address(ip)) || keys.iter().any(|key| self.keys.contains(key))
    }
}
