//! This node's own record, signed anew when the node's addresses change.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use enr::k256::ecdsa::SigningKey;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;

use super::record::{
    ADDRESSES_FIELD, NodeRecord, SERVICES_FIELD, SignedRecord, encode_addresses, encode_shards,
};
use crate::public_address::is_public;
use crate::waku::config::NodeConfig;
use crate::waku::p2p::addr::{ip, is_local_name};
use crate::waku::p2p::error::NetworkError;

/// Services in the field `waku2` of a record, one bit each (RFC 31/WAKU2-ENR).
const RELAY: u8 = 1;
const STORE: u8 = 1 << 1;
const FILTER: u8 = 1 << 2;
const LIGHT_PUSH: u8 = 1 << 3;
const SYNC: u8 = 1 << 4;

/// The contents of this node's record, apart from its addresses.
pub(in crate::waku::p2p) struct OwnRecord {
    key: SigningKey,
    cluster: u16,
    shards: Vec<u16>,
    services: u8,
    /// Whether addresses of this machine and of private networks are in the record.
    has_private: bool,
    /// The port of discv5.
    pub(super) udp: Option<u16>,
    /// The sequence number of the last signed record.
    seq: u64,
}

impl OwnRecord {
    /// Prepares the record of a node with this key.
    pub(in crate::waku::p2p) fn new(
        key: &Keypair,
        node: &NodeConfig,
        has_private: bool,
    ) -> Result<Self, NetworkError> {
        let failed = |error: &dyn std::fmt::Display| NetworkError::Start(error.to_string());
        let key = key.clone().try_into_secp256k1().map_err(|error| failed(&error))?;
        let key =
            SigningKey::from_slice(&key.secret().to_bytes()).map_err(|error| failed(&error))?;
        let relay = if node.forward { RELAY | LIGHT_PUSH } else { 0 };
        let (cluster, shards) = (node.cluster, node.shards.clone());
        let services = relay | STORE | FILTER | SYNC;
        Ok(Self { key, cluster, shards, services, has_private, udp: None, seq: 0 })
    }

    /// Returns the node's secret key.
    pub(super) fn secret_key(&self) -> [u8; 32] {
        self.key.to_bytes().into()
    }

    /// Signs a record with the addresses among `reached` that other nodes can use. A record has at
    /// most 300 bytes, so the last addresses may be left out.
    pub(in crate::waku::p2p) fn sign(&mut self, reached: &[Multiaddr]) -> Option<NodeRecord> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.seq = now.max(self.seq + 1);
        let usable: Vec<Multiaddr> = reached
            .iter()
            .map(without_id)
            .filter(|addr| self.has_private || !begins_with_private(addr))
            .collect();
        let v4 = usable.iter().find_map(|addr| plain(addr).filter(|(ip, _)| ip.is_ipv4()));
        let v6 = usable.iter().find_map(|addr| plain(addr).filter(|(ip, _)| ip.is_ipv6()));
        let in_fields: Vec<_> = v4.into_iter().chain(v6).collect();
        let others: Vec<_> = usable
            .iter()
            .filter(|addr| plain(addr).is_none_or(|at| !in_fields.contains(&at)))
            .collect();
        let signed = (0..=others.len()).rev().find_map(|count| {
            let mut builder = SignedRecord::builder();
            builder.seq(self.seq);
            for (ip, port) in &in_fields {
                builder.ip(*ip);
                if ip.is_ipv4() {
                    builder.tcp4(*port)
                } else {
                    builder.tcp6(*port)
                };
            }
            if let Some(udp) = self.udp {
                // The UDP port is also set without any TCP address, because such a node takes part
                // in discv5, too.
                if in_fields.iter().all(|(ip, _)| ip.is_ipv4()) {
                    builder.udp4(udp)
                } else {
                    builder.udp4(udp).udp6(udp)
                };
            }
            let (field, bytes) = encode_shards(self.cluster, &self.shards);
            builder.add_value(field, &bytes.as_slice());
            builder.add_value(SERVICES_FIELD, &[self.services].as_slice());
            if count > 0 {
                let bytes = encode_addresses(others[..count].iter().copied());
                builder.add_value(ADDRESSES_FIELD, &bytes.as_slice());
            }
            builder.build(&self.key).ok()
        })?;
        NodeRecord::new(signed).ok()
    }
}

/// Returns an address without the id of its node.
fn without_id(addr: &Multiaddr) -> Multiaddr {
    addr.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect()
}

/// Whether an address begins with an IP address that is not public, or with a name of this machine.
fn begins_with_private(addr: &Multiaddr) -> bool {
    match addr.iter().next() {
        Some(Protocol::Dns(host) | Protocol::Dns4(host) | Protocol::Dns6(host)) => {
            is_local_name(&host)
        }
        _ => ip(addr).is_some_and(|ip| !is_public(ip)),
    }
}

/// Returns the IP address and the port of an address, if the address has no other parts.
fn plain(addr: &Multiaddr) -> Option<(IpAddr, u16)> {
    let at = ip(addr)?;
    match addr.iter().skip(1).collect::<Vec<_>>().as_slice() {
        [Protocol::Tcp(port)] => Some((at, *port)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(shards: Vec<u16>) -> (OwnRecord, libp2p::PeerId) {
        let key = Keypair::generate_secp256k1();
        let node = NodeConfig { cluster: 16, shards, forward: true, ..NodeConfig::default() };
        (OwnRecord::new(&key, &node, false).unwrap(), key.public().to_peer_id())
    }

    fn addrs(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_record_has_the_addresses_that_others_can_use_and_comes_back() {
        let (mut own, peer) = own(vec![0, 32, 64]);
        let reached = addrs(&[
            "/ip4/127.0.0.1/tcp/60000",
            "/ip4/10.0.0.7/tcp/60000",
            "/ip4/8.8.8.8/tcp/60000",
            "/ip4/8.8.4.4/tcp/60001",
            "/ip6/2606:4700::1111/tcp/60002",
            "/dns4/node.example/tcp/443/wss",
        ]);
        let record = own.sign(&reached).unwrap();
        let text = record.to_string();
        let back = NodeRecord::parse(&text).unwrap();
        assert_eq!((back.peer, back.seq()), (peer, record.seq()));
        let shown: Vec<String> = back.addrs.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                format!("/ip4/8.8.8.8/tcp/60000/p2p/{peer}"),
                format!("/ip6/2606:4700::1111/tcp/60002/p2p/{peer}"),
                format!("/ip4/8.8.4.4/tcp/60001/p2p/{peer}"),
                format!("/dns4/node.example/tcp/443/wss/p2p/{peer}"),
            ]
        );
        let shards = back.shards.clone().unwrap();
        assert_eq!((shards.cluster, shards.shards), (16, vec![0, 32, 64]));
        let shard = |cluster, index| hark_codec::waku::Shard { cluster, index };
        assert!(back.may_serve([shard(16, 5), shard(16, 32)].into_iter()));
        assert!(!back.may_serve([shard(16, 5), shard(1, 32)].into_iter()));
        // The next record has a greater sequence number, even within the same second.
        assert!(own.sign(&reached).unwrap().seq() > record.seq());
        // A changed byte breaks the signature, and an additional byte at the end is refused.
        let mut bytes = record.encode();
        assert_eq!(NodeRecord::decode(&bytes).unwrap().peer, peer);
        bytes.push(0);
        assert!(NodeRecord::decode(&bytes).is_err());
        bytes.pop();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(NodeRecord::decode(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn many_shards_are_a_bit_vector_and_addresses_that_do_not_fit_are_left_out() {
        let (mut own, _) = own((0..100).collect());
        let names: Vec<String> = (0..9)
            .map(|at| format!("/dns4/node-{at}.of-a-rather-long-name.example/tcp/443/wss"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let record = own.sign(&addrs(&names)).unwrap();
        let back = NodeRecord::decode(&record.encode()).unwrap();
        assert_eq!(back.shards.unwrap().shards, (0..100).collect::<Vec<u16>>());
        assert!(back.addrs.is_empty(), "the bit vector leaves no room: {:?}", back.addrs);
        own.shards = vec![7];
        let record = own.sign(&addrs(&names)).unwrap();
        assert!((1..9).contains(&record.addrs.len()), "{:?}", record.addrs);
        assert!(record.encode().len() <= 300);
    }

    #[test]
    fn a_record_of_nwaku_is_read() {
        // The first entry node of The Waku Network, as of August 2026.
        let record = NodeRecord::parse(
            "enr:-QESuED0qW1BCmF-oH_ARGPr97Nv767bl_43uoy70vrbah3EaCAdK3Q0iRQ6wkSTTpdrg_dU_NC2ydO8leSl\
             RpBX4pxiAYJpZIJ2NIJpcIRA4VDAim11bHRpYWRkcnO4XAArNiZub2RlLTAxLmRvLWFtczMud2FrdS5zYW5kYm94\
             LnN0YXR1cy5pbQZ2XwAtNiZub2RlLTAxLmRvLWFtczMud2FrdS5zYW5kYm94LnN0YXR1cy5pbQYfQN4DgnJzkwAB\
             CAAAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQOTd-h5owwj-cx7xrmbvQKU8CV3Fomfdvcv1MBc-67T5oN0Y3CC\
             dl-DdWRwgiMohXdha3UyDw",
        );
        let record = record.unwrap();
        let shown: Vec<String> = record.addrs.iter().map(ToString::to_string).collect();
        let peer = record.peer;
        assert_eq!(
            shown,
            [
                format!("/ip4/64.225.80.192/tcp/30303/p2p/{peer}"),
                format!("/dns4/node-01.do-ams3.waku.sandbox.status.im/tcp/30303/p2p/{peer}"),
                format!("/dns4/node-01.do-ams3.waku.sandbox.status.im/tcp/8000/wss/p2p/{peer}"),
            ]
        );
        let shards = record.shards.unwrap();
        assert_eq!((shards.cluster, shards.shards), (1, (0..8).collect()));
    }
}
