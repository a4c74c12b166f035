//! The node's key, from which its id is made.

use std::path::Path;

use libp2p::identity::{Keypair, secp256k1};

use crate::key_file;
pub use crate::key_file::KeyError;

/// Reads the key, or creates one if there is no file.
pub(super) fn load(path: &Path) -> Result<Keypair, KeyError> {
    let make = || secp256k1::SecretKey::generate().to_bytes();
    let read = |bytes| secp256k1::SecretKey::try_from_bytes(bytes).ok();
    let secret = key_file::load(path, make, read)?;
    Ok(secp256k1::Keypair::from(secret).into())
}
