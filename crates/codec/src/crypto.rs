//! SHA-256 and Keccak-256 hashes for ids, and BIP-340 Schnorr signatures with libsecp256k1.

use secp256k1::{Keypair, XOnlyPublicKey, schnorr};
use sha2::{Digest, Sha256};
use sha3::Keccak256;

use crate::record::{Id, Key};

/// A BIP-340 signature.
pub type Signature = [u8; 64];

/// SHA-256 of `bytes`.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Keccak-256 of `bytes`. Keccak-256 is the hash function of Ethereum's networks. SHA3-256 pads its
/// input differently, so it is a different function.
pub fn keccak256(bytes: &[u8]) -> [u8; 32] {
    Keccak256::digest(bytes).into()
}

/// Why a signature is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The public key is not the x coordinate of a point on the curve.
    #[error("pubkey is not a point of the curve")]
    Key,
    /// The key has not signed this id.
    #[error("signature does not belong to this id and pubkey")]
    Signature,
}

/// A signature to verify.
#[derive(Clone, Copy, Debug)]
pub struct UnverifiedSignature<'a> {
    /// The id that was signed.
    pub id: &'a Id,
    /// The public key of the alleged signer.
    pub key: &'a Key,
    /// The signature.
    pub signature: &'a Signature,
}

/// Verifies signatures and caches the parsed keys of recent authors, which saves about an eighth of
/// the verification time. Each thread needs its own verifier. Only [`SignatureVerifier::new`]
/// allocates.
///
/// ```
/// use hark_codec::crypto::{KeyPair, SignatureVerifier, VerifyError, sha256, sign};
///
/// let keys = KeyPair::from_secret([7; 32]).ok_or("no secret key")?;
/// let id = sha256(b"bread");
/// let signature = sign(&keys, &id);
/// let mut verifier = SignatureVerifier::new(16);
/// verifier.verify(&id, keys.public(), &signature)?;
/// let other = verifier.verify(&sha256(b"cake"), keys.public(), &signature);
/// assert_eq!(other, Err(VerifyError::Signature));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SignatureVerifier {
    /// A direct-mapped cache: each key has a fixed slot, and a slot stores the last key that was
    /// used. An attacker can choose keys that share a slot; then only the saved time is lost.
    slots: Box<[Option<(Key, XOnlyPublicKey)>]>,
}

impl SignatureVerifier {
    /// Makes a cache of up to `slots` keys (rounded up to a power of two). Each slot takes about
    /// 100 bytes.
    pub fn new(slots: usize) -> Self {
        Self { slots: vec![None; slots.clamp(1, 1 << 20).next_power_of_two()].into() }
    }

    /// Checks that `key` has signed `id`.
    pub fn verify(&mut self, id: &Id, key: &Key, signature: &Signature) -> Result<(), VerifyError> {
        let key = self.parsed(key)?;
        let signature = schnorr::Signature::from_byte_array(*signature);
        schnorr::verify(&signature, id, &key).map_err(|_| VerifyError::Signature)
    }

    /// Verifies many signatures and writes one result for each to `results`, in order. Each
    /// signature is verified separately, because libsecp256k1 cannot verify a batch. For a version
    /// that can, only this function has to change.
    pub fn verify_many(
        &mut self,
        items: &[UnverifiedSignature<'_>],
        results: &mut Vec<Result<(), VerifyError>>,
    ) {
        results.clear();
        results.extend(items.iter().map(|item| self.verify(item.id, item.key, item.signature)));
    }

    fn parsed(&mut self, key: &Key) -> Result<XOnlyPublicKey, VerifyError> {
        let hash =
            u64::from_le_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]);
        let at = hash as usize & (self.slots.len() - 1);
        if let Some((known, parsed)) = &self.slots[at]
            && known == key
        {
            return Ok(*parsed);
        }
        let parsed = XOnlyPublicKey::from_byte_array(*key).map_err(|_| VerifyError::Key)?;
        self.slots[at] = Some((*key, parsed));
        Ok(parsed)
    }
}

/// A secret key and its public key.
#[derive(Clone)]
pub struct KeyPair {
    pair: Keypair,
    public: Key,
}

impl KeyPair {
    /// Makes keys from 32 secret bytes. Returns `None` for zero and for numbers that are not below
    /// the order of the curve.
    pub fn from_secret(secret: [u8; 32]) -> Option<Self> {
        let pair = Keypair::from_secret_bytes(secret).ok()?;
        Some(Self { public: XOnlyPublicKey::from_keypair(&pair).0.to_byte_array(), pair })
    }

    /// The public key.
    pub fn public(&self) -> &Key {
        &self.public
    }
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("public", &self.public).finish_non_exhaustive()
    }
}

/// Signs `id`. Signing is deterministic: the same key and id give the same signature.
pub fn sign(keys: &KeyPair, id: &Id) -> Signature {
    schnorr::sign_no_aux_rand(id, &keys.pair).to_byte_array()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_signed_holds_and_nothing_else() {
        let keys = KeyPair::from_secret([1; 32]).unwrap();
        let other = KeyPair::from_secret([2; 32]).unwrap();
        let (id, wrong_id) = (sha256(b"hark"), sha256(b"Hark"));
        let signature = sign(&keys, &id);
        let mut verifier = SignatureVerifier::new(1);
        let mut broken = signature;
        broken[40] ^= 1;
        let items = [
            UnverifiedSignature { id: &id, key: keys.public(), signature: &signature },
            UnverifiedSignature { id: &wrong_id, key: keys.public(), signature: &signature },
            UnverifiedSignature { id: &id, key: other.public(), signature: &signature },
            UnverifiedSignature { id: &id, key: keys.public(), signature: &broken },
            UnverifiedSignature { id: &id, key: &[255; 32], signature: &signature },
            UnverifiedSignature { id: &id, key: keys.public(), signature: &signature },
        ];
        let mut results = Vec::new();
        verifier.verify_many(&items, &mut results);
        let bad = Err(VerifyError::Signature);
        assert_eq!(results, [Ok(()), bad, bad, bad, Err(VerifyError::Key), Ok(())]);
    }

    #[test]
    fn keccak_is_not_sha3() {
        for (bytes, hash) in [
            (&b""[..], "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
            (b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
        ] {
            assert_eq!(crate::hex::encode_32(&keccak256(bytes)), hash.as_bytes());
        }
    }

    #[test]
    fn no_secret_in_debug_output() {
        let keys = KeyPair::from_secret([0xab; 32]).unwrap();
        assert!(!format!("{keys:?}").contains("171, 171"));
        assert!(KeyPair::from_secret([0; 32]).is_none());
        assert!(KeyPair::from_secret([255; 32]).is_none());
    }
}
