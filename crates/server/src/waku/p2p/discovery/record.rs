//! Records of nodes (ENR, EIP-778) with Waku's fields: addresses and services (RFC 31/WAKU2-ENR),
//! and shards (RFC 51/WAKU2-RELAY-SHARDING).

use std::fmt;
use std::net::IpAddr;

use enr::k256::ecdsa::SigningKey;
use enr::{Enr, EnrKey, EnrPublicKey as _};
use hark_codec::waku::Shard;
use libp2p::identity::secp256k1;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, identity};

use crate::waku::p2p::addr;

/// The beginning of a record as text.
pub(in crate::waku::p2p) const RECORD_PREFIX: &str = "enr:";
/// Maximum length of a record as text: 300 bytes in base64, after the prefix.
const TEXT_MAX: usize = RECORD_PREFIX.len() + 400;
/// Maximum number of addresses that are read from a record.
const ADDRESSES_MAX: usize = 8;
/// Number of shards in a bit vector.
const VECTOR_SHARDS: u16 = 1_024;

/// The field with the services of a node.
pub(super) const SERVICES_FIELD: &str = "waku2";
/// The field with addresses of a node that consist of more than an IP address and a port.
pub(super) const ADDRESSES_FIELD: &str = "multiaddrs";
/// The field with the shards of a node, as a list.
pub(super) const SHARDS_FIELD: &str = "rs";
/// The field with the shards of a node, as a bit vector.
pub(super) const SHARDS_VECTOR_FIELD: &str = "rsv";

/// A record in the form of the library, which has checked the signature.
pub(super) type SignedRecord = Enr<SigningKey>;

/// The shards of a node: its cluster, and the numbers of its shards in this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::waku) struct RecordShards {
    pub(in crate::waku) cluster: u16,
    pub(in crate::waku) shards: Vec<u16>,
}

/// A record whose signature is valid.
#[derive(Clone)]
pub(in crate::waku) struct NodeRecord {
    signed: SignedRecord,
    /// The node of the record.
    pub(in crate::waku) peer: PeerId,
    /// Addresses for TCP and WebSockets. Each address ends with the node's id.
    pub(in crate::waku) addrs: Vec<Multiaddr>,
    /// `None` if the record has no valid field of shards.
    pub(in crate::waku) shards: Option<RecordShards>,
}

/// Why a record is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// The text is too long for a record.
    #[error("a node record has at most {TEXT_MAX} characters")]
    Long,
    /// The bytes are no record, or the signature is invalid.
    #[error("the node record is invalid: {0}")]
    Invalid(String),
    /// The record has no address for TCP.
    #[error("the node record has no address for TCP")]
    NoAddress,
}

impl NodeRecord {
    /// Reads a record from its text form, `enr:` and base64.
    pub(in crate::waku) fn parse(text: &str) -> Result<Self, RecordFault> {
        if text.len() > TEXT_MAX {
            return Err(RecordFault::Long);
        }
        Self::new(text.parse().map_err(RecordFault::Invalid)?)
    }

    /// Reads a record from its bytes.
    pub(in crate::waku) fn decode(mut bytes: &[u8]) -> Result<Self, RecordFault> {
        let invalid = |error: &dyn fmt::Display| RecordFault::Invalid(error.to_string());
        let signed = <SignedRecord as alloy_rlp::Decodable>::decode(&mut bytes)
            .map_err(|error| invalid(&error))?;
        if !bytes.is_empty() {
            return Err(invalid(&"it has bytes behind its end"));
        }
        Self::new(signed)
    }

    pub(super) fn new(signed: SignedRecord) -> Result<Self, RecordFault> {
        let key = secp256k1::PublicKey::try_from_bytes(&signed.public_key().encode())
            .map_err(|error| RecordFault::Invalid(error.to_string()))?;
        let peer = identity::PublicKey::from(key).to_peer_id();
        let (addrs, shards) = (addresses(&signed, peer), shards(&signed));
        Ok(Self { signed, peer, addrs, shards })
    }

    /// The number that grows with each new version of a node's record.
    pub(in crate::waku) fn seq(&self) -> u64 {
        self.signed.seq()
    }

    /// Encodes the record as bytes.
    pub(in crate::waku) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        alloy_rlp::Encodable::encode(&self.signed, &mut out);
        out
    }

    /// Whether the node may serve one of these shards. A record without shards may be of a node of
    /// any shard.
    pub(in crate::waku) fn may_serve(&self, mut of: impl Iterator<Item = Shard>) -> bool {
        self.shards.as_ref().is_none_or(|own| {
            of.any(|shard| shard.cluster == own.cluster && own.shards.contains(&shard.index))
        })
    }
}

/// The text form.
impl fmt::Display for NodeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.signed.to_base64())
    }
}

impl fmt::Debug for NodeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeRecord({})", self.peer)
    }
}

/// Returns the bytes of a field that is no list.
fn bytes<K: EnrKey>(record: &Enr<K>, field: &str) -> Option<Vec<u8>> {
    record.get_decodable::<bytes::Bytes>(field)?.ok().map(|bytes| bytes.to_vec())
}

/// Returns the addresses of a record, first the addresses of its IP fields.
fn addresses(record: &SignedRecord, peer: PeerId) -> Vec<Multiaddr> {
    let at = |ip: IpAddr, port: u16| Multiaddr::from(ip).with(Protocol::Tcp(port));
    let v4 = record.tcp4_socket().map(|socket| at((*socket.ip()).into(), socket.port()));
    let v6 = record.tcp6_socket().map(|socket| at((*socket.ip()).into(), socket.port()));
    let field = bytes(record, ADDRESSES_FIELD).unwrap_or_default();
    let listed = AddressField(&field);
    let all = v4.into_iter().chain(v6).chain(listed);
    let mut addrs = Vec::new();
    for addr in all.filter_map(|addr| addr.with_p2p(peer).ok()).filter(addr::is_of_tcp) {
        if addrs.len() < ADDRESSES_MAX && !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    addrs
}

/// Iterates over the valid addresses of the field `multiaddrs`: each is preceded by its length in
/// two bytes.
struct AddressField<'a>(&'a [u8]);

impl Iterator for AddressField<'_> {
    type Item = Multiaddr;

    fn next(&mut self) -> Option<Multiaddr> {
        loop {
            let (len, rest) = self.0.split_first_chunk()?;
            let (addr, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
            self.0 = rest;
            if let Ok(addr) = Multiaddr::try_from(addr.to_vec()) {
                return Some(addr);
            }
        }
    }
}

/// Returns the shards of a record. The list is preferred to the bit vector, as in nwaku.
pub(super) fn shards<K: EnrKey>(record: &Enr<K>) -> Option<RecordShards> {
    let list = bytes(record, SHARDS_FIELD).and_then(|bytes| shard_list(&bytes));
    list.or_else(|| shard_vector(&bytes(record, SHARDS_VECTOR_FIELD)?))
}

fn shard_list(bytes: &[u8]) -> Option<RecordShards> {
    let (cluster, rest) = bytes.split_first_chunk()?;
    let (count, rest) = rest.split_first()?;
    let (shards, []) = rest.as_chunks() else { return None };
    let is_whole = shards.len() == usize::from(*count);
    is_whole.then(|| RecordShards {
        cluster: u16::from_be_bytes(*cluster),
        shards: shards.iter().map(|shard| u16::from_be_bytes(*shard)).collect(),
    })
}

fn shard_vector(bytes: &[u8]) -> Option<RecordShards> {
    let (cluster, bits) = bytes.split_first_chunk()?;
    if bits.len() != usize::from(VECTOR_SHARDS / 8) {
        return None;
    }
    let is_set = |shard: &u16| bits[usize::from(shard / 8)] & 1 << (shard % 8) != 0;
    let shards = (0..VECTOR_SHARDS).filter(is_set).collect();
    Some(RecordShards { cluster: u16::from_be_bytes(*cluster), shards })
}

/// Encodes shards for a record: the name of the field and its bytes. Up to 63 shards are encoded as
/// a list, as in nwaku. Shards above 1,023 are only in a list.
pub(super) fn encode_shards(cluster: u16, shards: &[u16]) -> (&'static str, Vec<u8>) {
    let mut out = cluster.to_be_bytes().to_vec();
    if shards.len() < 64 {
        out.push(shards.len() as u8);
        out.extend(shards.iter().flat_map(|shard| shard.to_be_bytes()));
        return (SHARDS_FIELD, out);
    }
    let mut bits = [0; VECTOR_SHARDS as usize / 8];
    for shard in shards.iter().filter(|shard| **shard < VECTOR_SHARDS) {
        bits[usize::from(shard / 8)] |= 1 << (shard % 8);
    }
    out.extend(bits);
    (SHARDS_VECTOR_FIELD, out)
}

/// Encodes addresses for the field `multiaddrs`.
pub(super) fn encode_addresses<'a>(addrs: impl Iterator<Item = &'a Multiaddr>) -> Vec<u8> {
    let mut out = Vec::new();
    for addr in addrs {
        let bytes = addr.to_vec();
        out.extend((bytes.len() as u16).to_be_bytes());
        out.extend(bytes);
    }
    out
}
