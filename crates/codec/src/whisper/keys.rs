//! Keys of Ethereum's networks on the curve secp256k1, and signatures from which the signer's key
//! can be recovered. libsecp256k1 does the arithmetic.

use secp256k1::Message;
use secp256k1::ecdsa::{self, RecoveryId};

use crate::crypto::sha256;

/// A signature from which the signer's key can be recovered: r and s in 32 bytes each, big-endian,
/// and the recovery id. The recovery id, a number from 0 to 3, selects one of the possible keys.
pub type RecoverableSignature = [u8; 65];

/// A secret key: a number from 1 to the order of the curve, exclusive.
#[derive(Clone)]
pub struct SecretKey(secp256k1::SecretKey);

/// A public key: a point of the curve. The public key of a node is also its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(secp256k1::PublicKey);

impl SecretKey {
    /// Makes a key from 32 bytes, big endian. Returns `None` for zero and for numbers that are not
    /// below the order of the curve.
    pub fn new(bytes: [u8; 32]) -> Option<Self> {
        secp256k1::SecretKey::from_secret_bytes(bytes).ok().map(Self)
    }

    /// Makes a new key from random bytes. `random` fills a buffer with random bytes.
    pub fn draw(random: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut bytes = [0; 32];
        random(&mut bytes);
        loop {
            // Only about one 32-byte number in 2^127 is not a valid key. An invalid number is
            // hashed, so the loop ends even if `random` always returns zeros.
            match Self::new(bytes) {
                Some(key) => return key,
                None => bytes = sha256(&bytes),
            }
        }
    }

    /// The key's bytes. The caller must keep these bytes secret.
    pub fn bytes(&self) -> [u8; 32] {
        self.0.to_secret_bytes()
    }

    /// The public key of this secret key.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.public_key())
    }

    /// Signs a hash. Signing is deterministic: the same key and hash give the same signature (RFC
    /// 6979).
    pub fn sign(&self, hash: &[u8; 32]) -> RecoverableSignature {
        let message = Message::from_digest(*hash);
        let signature = ecdsa::RecoverableSignature::sign_ecdsa_recoverable(message, &self.0);
        let (id, compact) = signature.serialize_compact();
        let mut bytes = [id.to_u8(); 65];
        bytes[..64].copy_from_slice(&compact);
        bytes
    }

    /// The secret that two keys share: the x coordinate of the product of this secret key and the
    /// other side's public key, in 32 bytes. Both sides compute the same secret. The secret is not
    /// hashed, because each caller derives its own keys.
    pub fn shared_secret(&self, other: &PublicKey) -> [u8; 32] {
        let point = secp256k1::ecdh::shared_secret_point(&other.0, &self.0);
        let mut x = [0; 32];
        x.copy_from_slice(&point[..32]);
        x
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretKey").finish_non_exhaustive()
    }
}

impl PublicKey {
    /// Length of a key, in bytes.
    pub const BYTES: usize = 64;

    /// Reads a key: its coordinates in 32 bytes each, big endian. Returns `None` if no point of the
    /// curve has these coordinates.
    pub fn read(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut uncompressed = [4; 65];
        uncompressed[1..].copy_from_slice(bytes);
        secp256k1::PublicKey::from_byte_array_uncompressed(uncompressed).ok().map(Self)
    }

    /// Reads a compressed key: the byte 2 (y is even) or 3 (y is odd), and the x coordinate.
    pub fn read_compressed(bytes: &[u8; 33]) -> Option<Self> {
        secp256k1::PublicKey::from_byte_array_compressed(*bytes).ok().map(Self)
    }

    /// The key's coordinates in 32 bytes each. Nodes and their URLs (`enode://`) write keys in this
    /// form.
    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let uncompressed = self.0.serialize_uncompressed();
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&uncompressed[1..]);
        bytes
    }

    /// The compressed key; see [`PublicKey::read_compressed`].
    pub fn compressed(&self) -> [u8; 33] {
        self.0.serialize()
    }

    /// The key that has signed a hash. Returns `None` if the signature cannot come from any key.
    pub fn recover(hash: &[u8; 32], signature: &RecoverableSignature) -> Option<Self> {
        let (compact, id) = signature.split_at(64);
        let id = RecoveryId::try_from(i32::from(*id.first()?)).ok()?;
        let signature = ecdsa::RecoverableSignature::from_compact(compact, id).ok()?;
        signature.recover_ecdsa(Message::from_digest(*hash)).ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::keccak256;
    use crate::hex;

    fn key(of: &str) -> SecretKey {
        SecretKey::new(keccak256(of.as_bytes())).unwrap()
    }

    /// Expected values, computed by go-ethereum 1.9.20 (crypto, crypto/ecies).
    #[test]
    fn keys_signatures_and_shared_secrets_are_those_of_go_ethereum() {
        let (sender, recipient) = (key("sender"), key("recipient"));
        let public = "6fbf9a61943cd9b0adf8173dbea381c5c50bab18b19c3e3622ceefda71177f6c\
                      bdd0d41ae3af7989c593d659cb990f40b44773c132a692f6f7a5480bd764a934";
        assert_eq!(hex::encode_64(&sender.public().bytes()), *public.as_bytes());
        let mut compressed = Vec::new();
        hex::encode_into(&recipient.public().compressed(), &mut compressed);
        assert_eq!(
            String::from_utf8(compressed).unwrap(),
            "032d1c5a2337076582654a9efdb83b2d20a327e62f835ac5c1191410397a1b9fb6"
        );
        let shared = "e37cb323afe1dd939d4396cb9c589af4052436f52fd48eb48164a0bb7a2b2292";
        assert_eq!(hex::encode_32(&sender.shared_secret(&recipient.public())), *shared.as_bytes());
        assert_eq!(hex::encode_32(&recipient.shared_secret(&sender.public())), *shared.as_bytes());
        let mut signature = Vec::new();
        hex::encode_into(&sender.sign(&keccak256(b"hash")), &mut signature);
        assert_eq!(
            String::from_utf8(signature).unwrap(),
            "a2d0117abfb27bf61fcd4b06c57e5f076e1413c0346099bd6d0c299a51a71b62\
             35e84fda3b46f8a5c20a4e1f684709d6690cc57765e135da500e7a9fba7afbca\
             00"
        );
    }

    #[test]
    fn the_signer_is_recovered_and_a_change_gives_another_or_none() {
        let (sender, hash) = (key("sender"), keccak256(b"hash"));
        let signature = sender.sign(&hash);
        assert_eq!(PublicKey::recover(&hash, &signature), Some(sender.public()));
        assert_ne!(PublicKey::recover(&keccak256(b"other"), &signature), Some(sender.public()));
        for at in 0..65 {
            let mut changed = signature;
            changed[at] ^= 1;
            assert_ne!(PublicKey::recover(&hash, &changed), Some(sender.public()), "{at}");
        }
        for id in 4..=255 {
            let mut changed = signature;
            changed[64] = id;
            assert_eq!(PublicKey::recover(&hash, &changed), None);
        }
        assert_eq!(PublicKey::recover(&hash, &[0; 65]), None);
        assert_eq!(PublicKey::recover(&hash, &[255; 65]), None);
    }

    #[test]
    fn both_spellings_of_a_key_are_read_and_what_is_no_point_is_not() {
        let public = key("sender").public();
        assert_eq!(PublicKey::read(&public.bytes()), Some(public));
        assert_eq!(PublicKey::read_compressed(&public.compressed()), Some(public));
        let mut changed = public.bytes();
        changed[63] ^= 1;
        assert_eq!(PublicKey::read(&changed), None);
        assert_eq!((PublicKey::read(&[0; 64]), PublicKey::read_compressed(&[0; 33])), (None, None));
    }

    #[test]
    fn a_key_is_drawn_whatever_random_bytes_come() {
        assert!(SecretKey::new([0; 32]).is_none() && SecretKey::new([255; 32]).is_none());
        for byte in [0, 1, 255] {
            let drawn = SecretKey::draw(&mut |bytes| bytes.fill(byte));
            assert_eq!(drawn.bytes() == [byte; 32], byte == 1);
        }
        let secret = SecretKey::new([0xab; 32]).unwrap();
        assert!(!format!("{secret:?}").contains("171"), "{secret:?}");
    }
}
