//! The node's key. The node's id is derived from the key.

use std::path::Path;

use libp2p::identity::{Keypair, secp256k1};

use crate::key_file;
pub use crate::key_file::KeyError;

/// Reads the key from its file. Creates a key if there is no file.
pub(super) fn load(path: &Path) -> Result<Keypair, KeyError> {
    let make = || secp256k1::SecretKey::generate().to_bytes();
    let read = |bytes| secp256k1::SecretKey::try_from_bytes(bytes).ok();
    let secret = key_file::load(path, make, read)?;
    Ok(secp256k1::Keypair::from(secret).into())
}
