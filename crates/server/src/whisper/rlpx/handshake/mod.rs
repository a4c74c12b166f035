//! The key exchange that begins a connection. The initiator sends an `auth` packet, and the
//! listener answers with an `ack` packet. The keys of the connection are derived from both packets.
//!
//! Each packet is encrypted for the receiver's own key, and has one of two encodings. Since EIP-8:
//!
//! ```text
//! 0   2 bytes: the length of the rest, big endian
//! 2   ECIES, whose authentication code covers these two bytes: an RLP list, then any padding
//!       auth: signature 65, the initiator's key 64, nonce 32, version
//!       ack:  the listener's ephemeral key 64, nonce 32, version
//! ```
//!
//! Before EIP-8, a packet was ECIES over the same fields at fixed offsets, without a length:
//!
//! ```text
//! auth: signature 65, hash of the ephemeral key 32, the initiator's key 64, nonce 32, 0
//! ack:  ephemeral key 64, nonce 32, 0
//! ```
//!
//! An ack has the same encoding as the auth that it answers. Further items, padding and versions
//! are ignored (EIP-8). The initiator's ephemeral key is not sent, but recovered from the
//! signature. Source: the RLPx specification, with EIP-8.

use hark_codec::crypto::keccak256;
use hark_codec::whisper::ecies;
use hark_codec::whisper::keys::{PublicKey, RecoverableSignature, SecretKey};
use hark_codec::whisper::rlp::{RlpItems, bytes_len, number_len, put_bytes, put_list, put_number};
use sha3::{Digest as _, Keccak256};

/// Length of an auth packet in the encoding before EIP-8, in bytes. An EIP-8 packet is longer.
pub const AUTH_BYTES: usize = AUTH_PLAIN_BYTES + ecies::OVERHEAD;
/// Length of an ack packet in the encoding before EIP-8, in bytes. An EIP-8 packet is longer.
pub const ACK_BYTES: usize = ACK_PLAIN_BYTES + ecies::OVERHEAD;
/// Maximum length of a packet, in bytes. Known programs send less than 700.
pub const PACKET_BYTES_MAX: usize = 2_048;

const AUTH_PLAIN_BYTES: usize = 65 + 32 + 64 + 32 + 1;
const ACK_PLAIN_BYTES: usize = 64 + 32 + 1;
/// Size of the length field of a packet, in bytes.
const LENGTH_BYTES: usize = 2;
/// Padding of a packet, in bytes: `PADDING_MIN` plus a random number below `PADDING_RANGE`. The
/// minimum makes an EIP-8 packet longer than a packet of the old encoding. The random number
/// prevents observers from recognising connections by packet length.
const PADDING_MIN: usize = 100;
const PADDING_RANGE: usize = 128;
/// The version of the handshake.
const VERSION: u64 = 4;

type Nonce = [u8; 32];

/// A function that fills a buffer with random bytes.
pub type RandomSource<'a> = &'a mut dyn FnMut(&mut [u8]);

/// Why a key exchange fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RlpxHandshakeError {
    /// The packet states a length that no packet has.
    #[error("a packet of the handshake has {0} bytes")]
    Length(usize),
    /// The packet is not encrypted for this node's key, or was changed.
    #[error("a packet of the handshake cannot be decrypted")]
    Decryption,
    /// The packet's content is invalid.
    #[error("a packet of the handshake has no keys, nonce or signature where they belong")]
    Content,
}

/// How a packet is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketEncoding {
    /// Fields at fixed offsets.
    Fixed,
    /// The encoding of EIP-8.
    Eip8,
}

/// The state of a packet that may have arrived only in part.
#[derive(Debug, PartialEq, Eq)]
pub enum PacketProgress {
    /// The packet has this total length, and has not arrived completely.
    Needs(usize),
    /// The packet is complete.
    Whole(OpenedPacket),
}

/// The content of a packet, decrypted.
#[derive(Debug, PartialEq, Eq)]
pub struct OpenedPacket {
    encoding: PacketEncoding,
    plain: Vec<u8>,
}

/// Decrypts a packet. `fixed_bytes` is the length of a packet in the old encoding, [`AUTH_BYTES`]
/// or [`ACK_BYTES`]. Call this function with the first `fixed_bytes` bytes, and again with the
/// whole packet if more bytes are needed.
pub fn open(
    key: &SecretKey,
    packet: &[u8],
    fixed_bytes: usize,
) -> Result<PacketProgress, RlpxHandshakeError> {
    // All packets of the old encoding begin with 4. An EIP-8 packet of 1,024 bytes or more may also
    // begin with 4.
    if packet.len() == fixed_bytes
        && packet.first() == Some(&4)
        && let Some(plain) = ecies::decrypt(key, packet, &[])
    {
        let encoding = PacketEncoding::Fixed;
        return Ok(PacketProgress::Whole(OpenedPacket { encoding, plain }));
    }
    let short = RlpxHandshakeError::Length(packet.len());
    let (prefix, body) = packet.split_first_chunk::<LENGTH_BYTES>().ok_or(short)?;
    let bytes = LENGTH_BYTES + usize::from(u16::from_be_bytes(*prefix));
    if bytes <= fixed_bytes || bytes > PACKET_BYTES_MAX || packet.len() > bytes {
        return Err(RlpxHandshakeError::Length(bytes));
    }
    if packet.len() < bytes {
        return Ok(PacketProgress::Needs(bytes));
    }
    let plain = ecies::decrypt(key, body, prefix).ok_or(RlpxHandshakeError::Decryption)?;
    Ok(PacketProgress::Whole(OpenedPacket { encoding: PacketEncoding::Eip8, plain }))
}

/// The content of an auth packet.
struct Auth {
    signature: RecoverableSignature,
    initiator: PublicKey,
    nonce: Nonce,
}

/// The content of an ack packet.
struct Ack {
    ephemeral: PublicKey,
    nonce: Nonce,
}

/// Reads the fields of a packet with `fixed` or `listed`, depending on the packet's encoding.
fn fields<T>(
    packet: &OpenedPacket,
    fixed: impl Fn(&[u8]) -> Option<T>,
    listed: impl Fn(RlpItems<'_>) -> Option<T>,
) -> Result<T, RlpxHandshakeError> {
    let read = match packet.encoding {
        PacketEncoding::Fixed => fixed(&packet.plain),
        // The bytes after the list are padding.
        PacketEncoding::Eip8 => RlpItems::of_sequence(&packet.plain).list().ok().and_then(listed),
    };
    read.ok_or(RlpxHandshakeError::Content)
}

impl Auth {
    fn read(packet: &OpenedPacket) -> Result<Self, RlpxHandshakeError> {
        let fixed = |plain: &[u8]| {
            let (signature, rest) = plain.split_first_chunk()?;
            let (_hash, rest) = rest.split_first_chunk::<32>()?;
            let (initiator, rest) = rest.split_first_chunk()?;
            let nonce = rest.first_chunk()?;
            let initiator = PublicKey::read(initiator)?;
            Some(Self { signature: *signature, initiator, nonce: *nonce })
        };
        let listed = |mut items: RlpItems<'_>| {
            let signature = *items.array().ok()?;
            let initiator = PublicKey::read(items.array().ok()?)?;
            Some(Self { signature, initiator, nonce: *items.array().ok()? })
        };
        fields(packet, fixed, listed)
    }
}

impl Ack {
    fn read(packet: &OpenedPacket) -> Result<Self, RlpxHandshakeError> {
        let fixed = |plain: &[u8]| {
            let (ephemeral, rest) = plain.split_first_chunk()?;
            Some(Self { ephemeral: PublicKey::read(ephemeral)?, nonce: *rest.first_chunk()? })
        };
        let listed = |mut items: RlpItems<'_>| {
            let ephemeral = PublicKey::read(items.array().ok()?)?;
            Some(Self { ephemeral, nonce: *items.array().ok()? })
        };
        fields(packet, fixed, listed)
    }
}

/// Encrypts a list of these strings and the version as a packet in the encoding of EIP-8.
fn seal(to: &PublicKey, strings: &[&[u8]], random: RandomSource<'_>) -> Vec<u8> {
    let mut plain = Vec::new();
    let len = strings.iter().map(|string| bytes_len(string)).sum::<usize>();
    put_list(&mut plain, len + number_len(VERSION));
    for string in strings {
        put_bytes(&mut plain, string);
    }
    put_number(&mut plain, VERSION);
    let mut drawn = [0];
    random(&mut drawn);
    plain.resize(plain.len() + PADDING_MIN + usize::from(drawn[0]) % PADDING_RANGE, 0);
    // The length is far below 2^16.
    let prefix = ((plain.len() + ecies::OVERHEAD) as u16).to_be_bytes();
    let mut packet = prefix.to_vec();
    ecies::encrypt(to, &plain, &prefix, random, &mut packet);
    packet
}

/// The secrets that both sides derive from the key exchange.
pub struct RlpxSecrets {
    /// The key of the frames' ciphers.
    pub(super) aes: [u8; 32],
    /// The key of the cipher in the frames' authentication codes.
    pub(super) mac: [u8; 32],
    /// The state of the authentication code for sent frames.
    pub(super) egress: Keccak256,
    /// The state of the authentication code for received frames.
    pub(super) ingress: Keccak256,
}

/// The inputs that the secrets are derived from.
struct KeyAgreement<'a> {
    /// The shared secret of both ephemeral keys.
    shared: [u8; 32],
    initiator_nonce: &'a Nonce,
    listener_nonce: &'a Nonce,
    auth: &'a [u8],
    ack: &'a [u8],
}

impl KeyAgreement<'_> {
    /// Derives the secrets of one side.
    fn secrets(&self, is_initiator: bool) -> RlpxSecrets {
        let hash = |one: &[u8; 32], other: &[u8; 32]| keccak256(&[*one, *other].concat());
        let nonces = hash(self.listener_nonce, self.initiator_nonce);
        let shared = hash(&self.shared, &nonces);
        let aes = hash(&self.shared, &shared);
        let mac = hash(&self.shared, &aes);
        let state = |nonce, packet: &[u8]| {
            Keccak256::new().chain_update(xor(&mac, nonce)).chain_update(packet)
        };
        let of_initiator = state(self.listener_nonce, self.auth);
        let of_listener = state(self.initiator_nonce, self.ack);
        let (egress, ingress) =
            if is_initiator { (of_initiator, of_listener) } else { (of_listener, of_initiator) };
        RlpxSecrets { aes, mac, egress, ingress }
    }
}

fn xor(one: &[u8; 32], other: &[u8; 32]) -> [u8; 32] {
    std::array::from_fn(|at| one[at] ^ other[at])
}

/// The listener's result of answering an auth packet.
pub struct RlpxAnswer {
    /// The ack packet to send.
    pub ack: Vec<u8>,
    /// The key of the initiator, which is also the initiator's id.
    pub initiator: PublicKey,
    /// The keys of the connection.
    pub secrets: RlpxSecrets,
}

/// Answers an auth packet: `packet` is the received packet, and `opened` is the result of [`open`].
///
/// The auth packet does not prove that the initiator has the secret key of its id. The proof is the
/// first frame.
pub fn answer(
    key: &SecretKey,
    packet: &[u8],
    opened: &OpenedPacket,
    random: RandomSource<'_>,
) -> Result<RlpxAnswer, RlpxHandshakeError> {
    let auth = Auth::read(opened)?;
    let signed = xor(&key.shared_secret(&auth.initiator), &auth.nonce);
    let ephemeral = PublicKey::recover(&signed, &auth.signature);
    let ephemeral = ephemeral.ok_or(RlpxHandshakeError::Content)?;
    let own = SecretKey::draw(random);
    let mut nonce = [0; 32];
    random(&mut nonce);
    let own_public = own.public().bytes();
    let ack = match opened.encoding {
        PacketEncoding::Eip8 => seal(&auth.initiator, &[&own_public, &nonce], random),
        PacketEncoding::Fixed => {
            let mut ack = Vec::new();
            let plain = [&own_public[..], &nonce, &[0]].concat();
            ecies::encrypt(&auth.initiator, &plain, &[], random, &mut ack);
            ack
        }
    };
    let agreement = KeyAgreement {
        shared: own.shared_secret(&ephemeral),
        initiator_nonce: &auth.nonce,
        listener_nonce: &nonce,
        auth: packet,
        ack: &ack,
    };
    let secrets = agreement.secrets(false);
    Ok(RlpxAnswer { initiator: auth.initiator, secrets, ack })
}

/// The initiator's side of a key exchange.
pub struct RlpxInitiator {
    ephemeral: SecretKey,
    nonce: Nonce,
    auth: Vec<u8>,
}

impl RlpxInitiator {
    /// Creates the auth packet for the listener with this key.
    pub fn new(key: &SecretKey, listener: &PublicKey, random: RandomSource<'_>) -> Self {
        let ephemeral = SecretKey::draw(random);
        let mut nonce = [0; 32];
        random(&mut nonce);
        let signature = ephemeral.sign(&xor(&key.shared_secret(listener), &nonce));
        let strings = [&signature[..], &key.public().bytes(), &nonce];
        let auth = seal(listener, &strings, random);
        Self { ephemeral, nonce, auth }
    }

    /// Returns the auth packet to send.
    pub fn auth(&self) -> &[u8] {
        &self.auth
    }

    /// Derives the keys of the connection from an ack packet: `packet` is the received packet, and
    /// `opened` is the result of [`open`].
    pub fn finish(
        &self,
        packet: &[u8],
        opened: &OpenedPacket,
    ) -> Result<RlpxSecrets, RlpxHandshakeError> {
        let ack = Ack::read(opened)?;
        let agreement = KeyAgreement {
            shared: self.ephemeral.shared_secret(&ack.ephemeral),
            initiator_nonce: &self.nonce,
            listener_nonce: &ack.nonce,
            auth: &self.auth,
            ack: packet,
        };
        Ok(agreement.secrets(true))
    }
}

#[cfg(test)]
mod tests;
