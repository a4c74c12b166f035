//! The messages of all connections: hello, disconnect, ping and pong. Also determines the
//! sub-protocols that both sides speak. Source: the devp2p specification (p2p capability, version
//! 5), EIP-8, EIP-706.

use hark_codec::whisper::RlpError;
use hark_codec::whisper::keys::PublicKey;
use hark_codec::whisper::rlp::{
    RlpItems, bytes_len, head_len, number_len, put_bytes, put_list, put_number,
};

/// Version of this node's base protocol. From version 5 on, all messages but the hello are
/// compressed with Snappy (EIP-706).
pub const VERSION: u64 = 5;
/// Maximum length of a hello, in bytes, as in go-ethereum.
pub const HELLO_BYTES_MAX: usize = 2_048;
/// The first message code of sub-protocols. Lower codes belong to the base protocol.
pub const BASE_CODES: u64 = 16;

/// Codes of the base protocol's messages.
pub mod code {
    /// See [`super::Hello`].
    pub const HELLO: u64 = 0;
    /// See [`super::DisconnectReason`].
    pub const DISCONNECT: u64 = 1;
    /// A request for a pong.
    pub const PING: u64 = 2;
    /// The answer to a ping.
    pub const PONG: u64 = 3;
}

/// The content of pings and pongs: an empty list.
pub const NOTHING: [u8; 1] = [0xc0];

/// A sub-protocol that this node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubProtocol {
    /// The name of the sub-protocol, common to both sides.
    pub name: &'static str,
    /// The version.
    pub version: u64,
    /// Number of its message codes.
    pub codes: u64,
}

/// A sub-protocol that both sides speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedProtocol {
    /// The sub-protocol.
    pub protocol: SubProtocol,
    /// The offset of the sub-protocol's message codes on this connection.
    pub offset: u64,
}

/// The hello, each node's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the base protocol.
    pub version: u64,
    /// The program's name and version, for display.
    pub client: String,
    /// Names and versions of the sub-protocols that the node speaks.
    pub capabilities: Vec<(String, u64)>,
    /// The port that the node listens on; 0 if unknown.
    pub port: u64,
    /// The node's id.
    pub id: PublicKey,
}

/// Why a hello cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The hello is not an RLP list of the right items.
    #[error("the hello cannot be read: {0}")]
    Rlp(#[from] RlpError),
    /// The id is not a key.
    #[error("the hello has no valid node id")]
    Id,
}

impl Hello {
    /// Creates this node's hello.
    pub fn new(client: &str, protocols: &[SubProtocol], port: u16, id: PublicKey) -> Self {
        let capabilities = protocols.iter().map(|own| (own.name.to_owned(), own.version));
        Self {
            version: VERSION,
            client: client.into(),
            capabilities: capabilities.collect(),
            port: port.into(),
            id,
        }
    }

    /// Parses a hello. Ignores further items, and capabilities that cannot be parsed.
    pub fn read(payload: &[u8]) -> Result<Self, HelloError> {
        let mut items = RlpItems::of_sequence(payload).list()?;
        let version = items.uint64()?;
        let client = String::from_utf8_lossy(items.bytes()?).into_owned();
        let (mut listed, mut capabilities) = (items.list()?, Vec::new());
        while !listed.is_empty() {
            let mut pair = listed.list()?;
            if let (Ok(name), Ok(version)) = (pair.bytes(), pair.uint64()) {
                capabilities.push((String::from_utf8_lossy(name).into_owned(), version));
            }
        }
        let port = items.uint64()?;
        let id = PublicKey::read(items.array()?).ok_or(HelloError::Id)?;
        Ok(Self { version, client, capabilities, port, id })
    }

    /// Appends the hello.
    pub fn write(&self, out: &mut Vec<u8>) {
        let id = self.id.bytes();
        let pair_len =
            |(name, version): &(String, u64)| bytes_len(name.as_bytes()) + number_len(*version);
        let pairs = self.capabilities.iter().map(pair_len);
        let listed: usize = pairs.map(|len| head_len(len) + len).sum();
        let len = number_len(self.version)
            + bytes_len(self.client.as_bytes())
            + head_len(listed)
            + listed
            + number_len(self.port)
            + bytes_len(&id);
        put_list(out, len);
        put_number(out, self.version);
        put_bytes(out, self.client.as_bytes());
        put_list(out, listed);
        for pair in &self.capabilities {
            put_list(out, pair_len(pair));
            put_bytes(out, pair.0.as_bytes());
            put_number(out, pair.1);
        }
        put_number(out, self.port);
        put_bytes(out, &id);
    }

    /// Returns the sub-protocols that both sides speak, sorted by name, which is also the order of
    /// their message codes. For each name, only the highest version is returned.
    pub fn share(&self, own: &[SubProtocol]) -> Vec<SharedProtocol> {
        let mut own: Vec<_> = own.to_vec();
        own.sort_by_key(|own| (own.name, own.version));
        let both = |own: &SubProtocol| {
            let mut listed = self.capabilities.iter();
            listed.any(|(name, version)| (name.as_str(), *version) == (own.name, own.version))
        };
        let (mut shared, mut offset): (Vec<SharedProtocol>, _) = (Vec::new(), BASE_CODES);
        for protocol in own.into_iter().filter(both) {
            if let Some(lower) = shared.pop_if(|lower| lower.protocol.name == protocol.name) {
                offset = lower.offset;
            }
            shared.push(SharedProtocol { protocol, offset });
            offset += protocol.codes;
        }
        shared
    }
}

/// Why a side ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// A user or a program requested the end.
    Requested,
    /// The connection failed.
    Network,
    /// The peer breaks the protocol.
    Protocol,
    /// The sides have no sub-protocol in common.
    Useless,
    /// The node has the maximum number of peers.
    TooMany,
    /// The sides are already connected.
    Connected,
    /// The version of the base protocol is unknown.
    Version,
    /// The id is not a key.
    Identity,
    /// The node is shutting down.
    Quitting,
    /// The id differs from the id of the key exchange.
    Unexpected,
    /// The node is connected to itself.
    Itself,
    /// The peer does not answer.
    Timeout,
    /// The peer breaks a sub-protocol.
    SubProtocol,
    /// An unknown reason, or none.
    Other,
}

use DisconnectReason as Reason;

/// The reasons with their numbers and texts.
const REASONS: [(Reason, u64, &str); 13] = [
    (Reason::Requested, 0, "disconnect requested"),
    (Reason::Network, 1, "network error"),
    (Reason::Protocol, 2, "breach of protocol"),
    (Reason::Useless, 3, "useless peer"),
    (Reason::TooMany, 4, "too many peers"),
    (Reason::Connected, 5, "already connected"),
    (Reason::Version, 6, "incompatible protocol version"),
    (Reason::Identity, 7, "invalid node identity"),
    (Reason::Quitting, 8, "client quitting"),
    (Reason::Unexpected, 9, "unexpected identity"),
    (Reason::Itself, 10, "connected to itself"),
    (Reason::Timeout, 11, "timeout"),
    (Reason::SubProtocol, 16, "breach of a sub-protocol"),
];

impl DisconnectReason {
    /// Parses a reason: the first item of a list, or a bare number from an older program.
    pub fn read(payload: &[u8]) -> Self {
        let mut items = RlpItems::of_sequence(payload);
        let mut items = if items.next_is_list() { items.list().unwrap_or_default() } else { items };
        let number = items.uint64().ok();
        let known = REASONS.iter().find(|(_, known, _)| Some(*known) == number);
        known.map_or(Self::Other, |(reason, ..)| *reason)
    }

    /// Appends the reason.
    pub fn write(self, out: &mut Vec<u8>) {
        let number = REASONS.iter().find(|(known, ..)| *known == self);
        let number = number.map_or(0, |(_, number, _)| *number);
        put_list(out, number_len(number));
        put_number(out, number);
    }
}

impl std::fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = REASONS.iter().find(|(known, ..)| known == self);
        f.write_str(known.map_or("a reason that is not known", |(_, _, words)| words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_codec::hex;

    const SHH: SubProtocol = SubProtocol { name: "shh", version: 6, codes: 128 };
    const WAKU: SubProtocol = SubProtocol { name: "waku", version: 1, codes: 128 };

    /// An example of EIP-8 with further items. It has version 55, although EIP-8's text says 22.
    #[test]
    fn a_hello_of_the_future_is_read() {
        let digits = "f87137916b6e6574682f76302e39312f706c616e39cdc5836574683dc6846d6f726b1682270f\
                      b840fda1cff674c90c9a197539fe3dfb53086ace64f83ed7c6eabec741f7f381cc803e52ab2cd\
                      55d5569bce4347107a310dfd5f88a010cd2ffd1005ca406f1842877c883666f6f836261720304";
        let mut bytes = Vec::new();
        assert!(hex::decode_into(digits.as_bytes(), &mut bytes));
        let hello = Hello::read(&bytes).unwrap();
        assert_eq!((hello.version, &hello.client[..]), (55, "kneth/v0.91/plan9"));
        let expected = [("eth".to_owned(), 61), ("mork".to_owned(), 22)];
        assert_eq!((&hello.capabilities[..], hello.port), (&expected[..], 9_999));
        assert_eq!(hello.id.bytes()[..4], [0xfd, 0xa1, 0xcf, 0xf6]);
        let mut out = Vec::new();
        hello.write(&mut out);
        assert_eq!(Hello::read(&out), Ok(hello));
        for cut in 0..out.len() {
            assert!(Hello::read(&out[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn message_codes_are_shared_by_name_and_the_highest_version_counts() {
        let mut drawn = 0;
        let key = hark_codec::whisper::keys::SecretKey::draw(&mut |bytes| {
            drawn += 1;
            bytes.fill(drawn);
        });
        let hello = |listed: &[(&str, u64)]| Hello {
            capabilities: listed.iter().map(|(name, version)| ((*name).into(), *version)).collect(),
            ..Hello::new("test", &[], 0, key.public())
        };
        let old = SubProtocol { version: 0, ..WAKU };
        let own = [WAKU, SHH, old];
        let shared = |listed: &[(&str, u64)]| {
            let shared = hello(listed).share(&own);
            shared.iter().map(|it| (it.protocol, it.offset)).collect::<Vec<_>>()
        };
        assert_eq!(shared(&[("waku", 1)]), [(WAKU, 16)]);
        assert_eq!(shared(&[("waku", 0)]), [(old, 16)]);
        assert_eq!(shared(&[("waku", 0), ("waku", 1), ("waku", 2)]), [(WAKU, 16)]);
        let both = [("waku", 1), ("eth", 63), ("waku", 0), ("shh", 6)];
        assert_eq!(shared(&both), [(SHH, 16), (WAKU, 144)]);
        assert_eq!(shared(&[("shh", 5), ("eth", 63)]), []);
    }

    #[test]
    fn reasons_are_read_in_both_forms() {
        for (reason, number, _) in REASONS {
            let mut out = Vec::new();
            reason.write(&mut out);
            assert_eq!(DisconnectReason::read(&out), reason);
            let mut bare = Vec::new();
            put_number(&mut bare, number);
            assert_eq!((DisconnectReason::read(&bare), &out[1..]), (reason, &bare[..]));
        }
        for odd in [&[][..], &[0xc0], &[0xc1, 0x7f], &[0xc1, 0xc0], &[0xc2, 4], &[0x82, 1]] {
            assert_eq!(DisconnectReason::read(odd), DisconnectReason::Other, "{odd:?}");
        }
    }
}
