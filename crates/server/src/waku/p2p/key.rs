//! The node's key, from which its id is made. It is kept in a file, and so outlives a restart.

use std::io::{self, Write as _};
use std::path::Path;

use hark_codec::hex;
use libp2p::identity::{Keypair, secp256k1};

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or created.
    #[error("the node's key in {0} cannot be read or made: {1}")]
    File(String, io::Error),
    /// The file does not hold a key.
    #[error(
        "{0} holds no key; it must be 64 hex digits. If the node may get another id, delete it"
    )]
    Key(String),
}

/// Reads the key, or creates one if there is no file.
pub(super) fn load(path: &Path) -> Result<Keypair, KeyError> {
    let name = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(path).map_err(|error| KeyError::File(name.clone(), error))?
        }
        Err(error) => return Err(KeyError::File(name, error)),
    };
    let secret = hex::decode_32(text.trim().to_ascii_lowercase().as_bytes());
    let secret = secret.and_then(|bytes| secp256k1::SecretKey::try_from_bytes(bytes).ok());
    let secret = secret.ok_or(KeyError::Key(name))?;
    Ok(secp256k1::Keypair::from(secret).into())
}

/// Writes a new key, whole or not at all, to a file that only its owner can read.
fn make(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let secret = secp256k1::SecretKey::generate();
    let text = String::from_utf8_lossy(&hex::encode_32(&secret.to_bytes())).into_owned();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension("unfinished");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    std::fs::rename(unfinished, path)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_testkit::disk::scratch;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_made_once_and_for_its_owner() {
        let folder = scratch("key");
        let path = folder.join("waku.key");
        let first = load(&path).unwrap();
        assert_eq!(load(&path).unwrap().public(), first.public());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "no key").unwrap();
        assert!(matches!(load(&path), Err(KeyError::Key(_))));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
