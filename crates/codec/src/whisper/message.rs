//! The message in an envelope's data: encrypted, padded and usually signed (6/WAKU1, and whisperv6
//! of go-ethereum 1.9.20).
//!
//! ```text
//! 0   flags: in the lowest two bits the length n of the next field; 4 if the message is signed
//! 1   n bytes: the payload's length, little endian
//!     the payload
//!     padding: 1 to 256 random bytes, so that the message with its signature has a multiple of 256
//! -65 the signature, if there is one: over Keccak-256 of all bytes before the signature
//! ```
//!
//! These bytes are encrypted for a public key ([`ecies`]), or by AES-256-GCM with a key that sender
//! and recipient know. With AES-256-GCM, the ciphertext is followed by the authentication tag of 16
//! bytes and the nonce of 12 bytes.

use std::ops::Range;

use aes_gcm::{AeadInPlace as _, Aes256Gcm, KeyInit as _};
use sha2::Sha256;

use super::ecies;
use super::keys::{PublicKey, RecoverableSignature, SecretKey};
use crate::crypto::keccak256;

/// A key that sender and recipient both know.
pub type SymmetricKey = [u8; 32];

/// Maximum length of a payload in bytes: the highest number that three bytes can hold.
pub const PAYLOAD_BYTES_MAX: usize = (1 << 24) - 1;

/// Number of rounds of PBKDF2 when a password is turned into a key. The number looks like a
/// misprint of 65,536, but all programs use this number.
const PASSWORD_ROUNDS: u32 = 65_356;
/// The flag bits that give the size of the length field, in bytes. The length field follows the
/// flags and gives the payload's length.
const LENGTH_FLAGS: u8 = 3;
/// The flag of signed messages.
const SIGNED_FLAG: u8 = 4;
const SIGNATURE_BYTES: usize = size_of::<RecoverableSignature>();
/// Messages are padded to a multiple of this number of bytes.
const PADDED_TO: usize = 256;
const TAG_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;

/// Why data cannot be opened with a key, or why a payload cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealedMessageError {
    /// The message is for another key, or was changed after encryption.
    #[error("the message is not for this key, or it was changed")]
    Key,
    /// The message is too short for its signature, its length field or its payload.
    #[error("the message is cut short")]
    Short,
    /// The signature cannot come from any key.
    #[error("the message's signature is not valid")]
    Signature,
    /// See [`PAYLOAD_BYTES_MAX`].
    #[error("the payload has {0} bytes, more than the allowed {PAYLOAD_BYTES_MAX}")]
    Large(usize),
}

/// The key with which a message is opened.
#[derive(Clone, Copy, Debug)]
pub enum OpeningKey<'a> {
    /// A key that the sender also knows.
    Symmetric(&'a SymmetricKey),
    /// The recipient's own key.
    Secret(&'a SecretKey),
}

/// The key with which a message is sealed.
#[derive(Clone, Copy, Debug)]
pub enum SealingKey<'a> {
    /// A key that the recipient also knows.
    Symmetric(&'a SymmetricKey),
    /// The recipient's public key.
    Public(&'a PublicKey),
}

/// A decrypted message. If it has a signature, the signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedMessage {
    plain: Vec<u8>,
    payload: Range<usize>,
    signer: Option<PublicKey>,
}

impl OpenedMessage {
    /// The message's content.
    pub fn payload(&self) -> &[u8] {
        self.plain.get(self.payload.clone()).unwrap_or_default()
    }

    /// The key that has signed the message; `None` if the message is not signed.
    pub fn signer(&self) -> Option<&PublicKey> {
        self.signer.as_ref()
    }
}

/// Derives the key of a password, as wnode and status-go do: PBKDF2 with SHA-256 and no salt. The
/// derivation takes about 20 ms, so callers should do it only once.
pub fn password_key(password: &[u8]) -> SymmetricKey {
    pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password, &[], PASSWORD_ROUNDS)
}

/// Decrypts the data of an envelope, checks it, and recovers the signer's key.
pub fn open(data: &[u8], key: OpeningKey<'_>) -> Result<OpenedMessage, SealedMessageError> {
    let plain = match key {
        OpeningKey::Symmetric(key) => decrypt_symmetric(data, key),
        OpeningKey::Secret(key) => ecies::decrypt(key, data, &[]),
    };
    read(plain.ok_or(SealedMessageError::Key)?)
}

fn decrypt_symmetric(data: &[u8], key: &SymmetricKey) -> Option<Vec<u8>> {
    let (rest, nonce) = data.split_last_chunk::<NONCE_BYTES>()?;
    let (text, tag) = rest.split_last_chunk::<TAG_BYTES>()?;
    let mut plain = text.to_vec();
    let cipher = Aes256Gcm::new(key.into());
    cipher.decrypt_in_place_detached(nonce.into(), &[], &mut plain, tag.into()).ok()?;
    Some(plain)
}

/// Reads a message that was decrypted.
fn read(plain: Vec<u8>) -> Result<OpenedMessage, SealedMessageError> {
    let short = SealedMessageError::Short;
    let flags = *plain.first().ok_or(short)?;
    let (body, signer) = if flags & SIGNED_FLAG == 0 {
        (&plain[..], None)
    } else {
        let split = plain.split_last_chunk::<SIGNATURE_BYTES>();
        // go-ethereum refuses a signed message that has only its flags.
        let (body, signature) = split.filter(|(body, _)| body.len() > 1).ok_or(short)?;
        let signer = PublicKey::recover(&keccak256(body), signature);
        (body, Some(signer.ok_or(SealedMessageError::Signature)?))
    };
    let start = 1 + usize::from(flags & LENGTH_FLAGS);
    let digits = body.get(1..start).ok_or(short)?;
    let len = digits.iter().rev().fold(0, |len, digit| len << 8 | usize::from(*digit));
    let payload = start..start + len;
    if payload.end > body.len() {
        return Err(short);
    }
    Ok(OpenedMessage { plain, payload, signer })
}

/// Encrypts a payload and appends the data of an envelope. The message is signed if `signer` is
/// given. Mail servers ignore requests without a signature. `random` fills a buffer with random
/// bytes.
pub fn seal(
    payload: &[u8],
    signer: Option<&SecretKey>,
    key: SealingKey<'_>,
    random: &mut dyn FnMut(&mut [u8]),
    out: &mut Vec<u8>,
) -> Result<(), SealedMessageError> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(SealedMessageError::Large(payload.len()));
    }
    let plain = padded(payload, signer, random);
    match key {
        SealingKey::Public(key) => ecies::encrypt(key, &plain, &[], random, out),
        SealingKey::Symmetric(key) => {
            let mut nonce = [0; NONCE_BYTES];
            random(&mut nonce);
            let start = out.len();
            out.extend_from_slice(&plain);
            // Encryption fails only above 64 GiB.
            let tag = Aes256Gcm::new(key.into())
                .encrypt_in_place_detached(&nonce.into(), &[], &mut out[start..])
                .map_err(|_| SealedMessageError::Large(payload.len()))?;
            out.extend_from_slice(&tag);
            out.extend_from_slice(&nonce);
        }
    }
    Ok(())
}

/// The bytes of a message before encryption.
fn padded(
    payload: &[u8],
    signer: Option<&SecretKey>,
    random: &mut dyn FnMut(&mut [u8]),
) -> Vec<u8> {
    let len = (payload.len() as u32).to_le_bytes();
    let digits = match payload.len() {
        0..0x100 => 1,
        0x100..0x1_0000 => 2,
        _ => 3,
    };
    let signature_bytes = if signer.is_some() { SIGNATURE_BYTES } else { 0 };
    let used = 1 + digits + payload.len() + signature_bytes;
    let padding = PADDED_TO - used % PADDED_TO;
    let mut plain = Vec::with_capacity(used + padding);
    plain.push(digits as u8 | if signer.is_some() { SIGNED_FLAG } else { 0 });
    plain.extend_from_slice(&len[..digits]);
    plain.extend_from_slice(payload);
    let padding_at = plain.len();
    plain.resize(padding_at + padding, 0);
    random(&mut plain[padding_at..]);
    if let Some(signer) = signer {
        let signature = signer.sign(&keccak256(&plain));
        plain.extend_from_slice(&signature);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    /// Data of envelopes that go-ethereum 1.9.20 (whisperv6) has made. Each line has a name and hex
    /// digits.
    const VECTORS: &str = include_str!("../../tests/whisper-messages.txt");
    const PASSWORD: &[u8] = b"status-offline-inbox";

    fn vector(name: &str) -> Vec<u8> {
        let found = VECTORS.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let mut bytes = Vec::new();
        assert!(hex::decode_into(found.unwrap().as_bytes(), &mut bytes));
        bytes
    }

    fn key(of: &str) -> SecretKey {
        SecretKey::new(keccak256(of.as_bytes())).unwrap()
    }

    fn opened(name: &str) -> OpenedMessage {
        let (symmetric, secret) = (password_key(PASSWORD), key("recipient"));
        let is_symmetric = name.starts_with("sym");
        let key = if is_symmetric {
            OpeningKey::Symmetric(&symmetric)
        } else {
            OpeningKey::Secret(&secret)
        };
        open(&vector(name), key).unwrap()
    }

    #[test]
    fn keys_of_passwords_are_those_of_status_go_and_wnode() {
        for (password, key) in [
            (PASSWORD, "765df27c0765526f920ba742ff4b9452bb0064e016435ffccd81186aa6feaae8"),
            (b"wwww", "448652d595bd6ec00b2a9ea220ad6c26592d9bf4cf79023d3c1b30cb681e6e07"),
        ] {
            assert_eq!(hex::encode_32(&password_key(password)), *key.as_bytes());
        }
    }

    #[test]
    fn what_go_ethereum_has_sealed_is_opened() {
        let sender = key("sender").public();
        let long: Vec<u8> = (0..300u32).map(|at| at as u8).collect();
        for (name, payload, signer, len) in [
            ("symsigned", &b"a request"[..], Some(sender), 256 + 28),
            ("symplain", b"a request", None, 256 + 28),
            ("asymsigned", b"a request", Some(sender), 256 + 113),
            ("asymempty", b"", None, 256 + 113),
            // The sender padded this message to a length that is not a multiple of 256.
            ("symlong", &long, Some(sender), 1 + 2 + 300 + 3 + 65 + 28),
        ] {
            let message = opened(name);
            assert_eq!(message.payload(), payload, "{name}");
            assert_eq!(message.signer(), signer.as_ref(), "{name}");
            assert_eq!(vector(name).len(), len, "{name}");
        }
    }

    #[test]
    fn data_for_another_key_or_changed_data_is_refused() {
        let (symmetric, secret) = (password_key(PASSWORD), key("recipient"));
        for (name, good, bad) in [
            ("symsigned", OpeningKey::Symmetric(&symmetric), OpeningKey::Symmetric(&[1; 32])),
            ("asymsigned", OpeningKey::Secret(&secret), OpeningKey::Secret(&key("sender"))),
        ] {
            let data = vector(name);
            assert_eq!(open(&data, bad), Err(SealedMessageError::Key));
            assert_eq!(open(&data, OpeningKey::Symmetric(&[0; 32])), Err(SealedMessageError::Key));
            for at in (0..data.len()).step_by(3) {
                let mut changed = data.clone();
                changed[at] ^= 0x10;
                assert_eq!(open(&changed, good), Err(SealedMessageError::Key), "{at}");
                assert_eq!(open(&data[..at], good), Err(SealedMessageError::Key), "{at}");
            }
        }
    }

    #[test]
    fn what_is_sealed_here_is_opened_here() {
        let (sender, recipient, symmetric) = (key("sender"), key("recipient"), [7; 32]);
        let public = recipient.public();
        let mut next = 0u8;
        let mut random = |bytes: &mut [u8]| {
            for byte in bytes {
                next = next.wrapping_mul(5).wrapping_add(3);
                *byte = next;
            }
        };
        // With payloads of 254 and 189 bytes, the padding has its maximum length of 256 bytes.
        for len in [0, 1, 188, 189, 190, 253, 254, 255, 256, 65_535, 65_536] {
            let payload = vec![0x5c; len];
            for signer in [None, Some(&sender)] {
                for (with, key, more) in [
                    (SealingKey::Symmetric(&symmetric), OpeningKey::Symmetric(&symmetric), 28),
                    (SealingKey::Public(&public), OpeningKey::Secret(&recipient), 113),
                ] {
                    let mut data = b"before".to_vec();
                    seal(&payload, signer, with, &mut random, &mut data).unwrap();
                    assert_eq!((data.len() - 6 - more) % 256, 0, "{len}");
                    let message = open(&data[6..], key).unwrap();
                    assert_eq!(message.payload(), payload);
                    assert_eq!(message.signer().copied(), signer.map(SecretKey::public));
                }
            }
        }
        let large = vec![0; PAYLOAD_BYTES_MAX + 1];
        let mut out = Vec::new();
        let refused = seal(&large, None, SealingKey::Public(&public), &mut random, &mut out);
        assert_eq!((refused, out.len()), (Err(SealedMessageError::Large(large.len())), 0));
    }

    #[test]
    fn messages_that_end_too_early_are_refused() {
        let signed = |body: &[u8]| [body, &key("sender").sign(&keccak256(body))].concat();
        for (plain, expected) in [
            (vec![], Err(SealedMessageError::Short)),
            (vec![0], Ok(&b""[..])),
            (vec![1], Err(SealedMessageError::Short)),
            (vec![1, 0], Ok(b"")),
            (vec![1, 1], Err(SealedMessageError::Short)),
            (vec![1, 1, 9], Ok(b"\x09")),
            (vec![2, 1, 0, 9], Ok(b"\x09")),
            (vec![2, 1, 1, 9], Err(SealedMessageError::Short)),
            (vec![3, 255, 255, 255, 9], Err(SealedMessageError::Short)),
            (vec![3, 1, 0, 0, 9, 8], Ok(b"\x09")),
            // The other flags have no meaning.
            (vec![0xf9, 1, 9], Ok(b"\x09")),
            (vec![4; 65], Err(SealedMessageError::Short)),
            (vec![5; 66], Err(SealedMessageError::Short)),
            (vec![5; 67], Err(SealedMessageError::Signature)),
            (signed(&[4]), Err(SealedMessageError::Short)),
            (signed(&[4, 9]), Ok(b"")),
            (signed(&[5]), Err(SealedMessageError::Short)),
            (signed(&[5, 1]), Err(SealedMessageError::Short)),
            (signed(&[5, 1, 9]), Ok(b"\x09")),
        ] {
            let read = read(plain.clone());
            let payload = read.as_ref().map(OpenedMessage::payload).map_err(|error| *error);
            assert_eq!(payload, expected, "{plain:?}");
        }
    }
}
