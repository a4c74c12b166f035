//! ECIES in the form of devp2p and Whisper: encrypts bytes for a public key.
//!
//! ```text
//! 0    4: the point that follows is not compressed
//! 1    64 bytes: the public key of a pair that is made for this message
//! 65   16 bytes: the initialisation vector
//! 81   the ciphertext, as long as the plaintext: AES-128 in counter mode
//! -32  the authentication code of everything from 65 on: HMAC-SHA-256
//! ```
//!
//! A SHA-256 hash over the number 1 in four bytes and the shared secret gives the two keys (the
//! concatenation KDF of NIST SP 800-56A): the first half is the encryption key, and the hash of the
//! second half is the key of the authentication code. See the RLPx specification, and crypto/ecies
//! of go-ethereum.

use aes::Aes128;
use ctr::Ctr128BE;
use ctr::cipher::{KeyIvInit as _, StreamCipher as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use super::keys::{PublicKey, SecretKey};
use crate::crypto::sha256;

/// Length of an encrypted message minus the length of its plaintext, in bytes.
pub const OVERHEAD: usize = VECTOR_AT + VECTOR_BYTES + CODE_BYTES;

/// The first byte of an uncompressed point.
const UNCOMPRESSED: u8 = 4;
const VECTOR_AT: usize = 1 + PublicKey::BYTES;
const VECTOR_BYTES: usize = 16;
const CODE_BYTES: usize = 32;

/// The two keys of a message.
struct MessageSecrets {
    encryption: [u8; 16],
    /// The key of the authentication code, padded with zeros to the length of a SHA-256 block.
    authentication: [u8; 64],
}

impl MessageSecrets {
    fn derive(shared: &[u8; 32]) -> Self {
        let derived =
            Sha256::new().chain_update(1u32.to_be_bytes()).chain_update(shared).finalize();
        let (encryption, authentication) = derived.split_at(16);
        let mut secrets = Self { encryption: [0; 16], authentication: [0; 64] };
        secrets.encryption.copy_from_slice(encryption);
        secrets.authentication[..32].copy_from_slice(&sha256(authentication));
        secrets
    }

    /// Encrypts or decrypts; the operation is the same.
    fn apply(&self, vector: &[u8; VECTOR_BYTES], text: &mut [u8]) {
        Ctr128BE::<Aes128>::new(&self.encryption.into(), vector.into()).apply_keystream(text);
    }

    /// The authentication code over a message's vector and ciphertext, followed by `mac_data`.
    fn code(&self, encrypted: &[u8], mac_data: &[u8]) -> Hmac<Sha256> {
        Hmac::new(&self.authentication.into()).chain_update(encrypted).chain_update(mac_data)
    }
}

/// Encrypts `plain` for a key and appends the message. `mac_data` is authenticated but not part of
/// the message, so both sides must know this value. In RLPx (EIP-8) it is the length of the
/// message; in Whisper it is empty. `random` fills a buffer with random bytes.
pub fn encrypt(
    to: &PublicKey,
    plain: &[u8],
    mac_data: &[u8],
    random: &mut dyn FnMut(&mut [u8]),
    out: &mut Vec<u8>,
) {
    let own = SecretKey::draw(random);
    let secrets = MessageSecrets::derive(&own.shared_secret(to));
    let mut vector = [0; VECTOR_BYTES];
    random(&mut vector);
    out.reserve(plain.len() + OVERHEAD);
    out.push(UNCOMPRESSED);
    out.extend_from_slice(&own.public().bytes());
    let vector_at = out.len();
    out.extend_from_slice(&vector);
    out.extend_from_slice(plain);
    let encrypted = &mut out[vector_at..];
    secrets.apply(&vector, &mut encrypted[VECTOR_BYTES..]);
    let code = secrets.code(encrypted, mac_data).finalize().into_bytes();
    out.extend_from_slice(&code);
}

/// Decrypts a message. Returns `None` if the message is malformed or for another key, or if the
/// message or `mac_data` was changed. The result does not show the reason.
pub fn decrypt(key: &SecretKey, message: &[u8], mac_data: &[u8]) -> Option<Vec<u8>> {
    let (&point, rest) = message.split_first()?;
    let (other, rest) = rest.split_first_chunk()?;
    let other = PublicKey::read(other).filter(|_| point == UNCOMPRESSED)?;
    let (encrypted, code) = rest.split_last_chunk::<CODE_BYTES>()?;
    let (vector, text) = encrypted.split_first_chunk()?;
    let secrets = MessageSecrets::derive(&key.shared_secret(&other));
    // The comparison takes the same time whichever bytes differ.
    secrets.code(encrypted, mac_data).verify(code.into()).ok()?;
    let mut plain = text.to_vec();
    secrets.apply(vector, &mut plain);
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::keccak256;
    use crate::hex;

    fn recipient() -> SecretKey {
        SecretKey::new(keccak256(b"recipient")).unwrap()
    }

    /// The result of `ecies.Encrypt` in go-ethereum 1.9.20. The recipient's secret key is
    /// Keccak-256 of "recipient", and `mac_data` is 0182.
    const ENCRYPTED: &str = "04bc95fd6e95e58f73c6acf5272ffb8156fcfe436c64ad72077c1054a7de713a062aa218a8f03282a312\
        26883eb07ed7745b05be0fbc84f09218417193f190326454c4549a24966e85853c7337b5e3c6e5e6aedb\
        d2eb657d26a042d2530c8334cb2056ae0e0753de8490a12ec37a433ecab645ac87c8d1a9aeedf04068";

    fn encrypted() -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(hex::decode_into(ENCRYPTED.as_bytes(), &mut bytes));
        bytes
    }

    #[test]
    fn what_go_ethereum_has_encrypted_is_decrypted() {
        let message = encrypted();
        assert_eq!(message.len(), 12 + OVERHEAD);
        assert_eq!(decrypt(&recipient(), &message, &[1, 0x82]).unwrap(), b"a plain text");
        assert_eq!(decrypt(&recipient(), &message, &[1, 0x83]), None);
        assert_eq!(decrypt(&recipient(), &message, &[]), None);
        let other = SecretKey::new([1; 32]).unwrap();
        assert_eq!(decrypt(&other, &message, &[1, 0x82]), None);
    }

    #[test]
    fn a_message_that_is_cut_or_changed_anywhere_is_none() {
        let message = encrypted();
        for len in 0..message.len() {
            assert_eq!(decrypt(&recipient(), &message[..len], &[1, 0x82]), None, "{len}");
        }
        for at in 0..message.len() {
            let mut changed = message.clone();
            changed[at] ^= 1;
            assert_eq!(decrypt(&recipient(), &changed, &[1, 0x82]), None, "{at}");
        }
    }

    #[test]
    fn what_is_encrypted_here_is_decrypted_here() {
        let mut drawn = 0;
        let mut random = |bytes: &mut [u8]| {
            for byte in bytes {
                drawn += 1;
                *byte = drawn;
            }
        };
        for len in [0, 1, 16, 17, 1000] {
            let plain = vec![0x5c; len];
            let mut out = b"before".to_vec();
            encrypt(&recipient().public(), &plain, b"outer", &mut random, &mut out);
            assert_eq!(out.len(), 6 + len + OVERHEAD);
            assert_eq!(decrypt(&recipient(), &out[6..], b"outer"), Some(plain));
            assert_eq!(decrypt(&recipient(), &out[6..], b""), None);
        }
    }
}
