//! The relay's own key.

use std::path::Path;

use hark_codec::crypto::KeyPair;
use hark_codec::record::Key;

use crate::key_file::{self, KeyError};

/// The relay's own key, `self` in its NIP-11 document.
#[derive(Debug)]
pub(crate) struct OwnKey {
    keys: KeyPair,
}

impl OwnKey {
    /// Reads the key from its file. A missing file is created with the secret key `new`.
    pub(crate) fn load(path: &Path, new: [u8; 32]) -> Result<Self, KeyError> {
        let keys = key_file::load(path, || new, KeyPair::from_secret)?;
        warn_if_readable(path);
        Ok(Self { keys })
    }

    /// The public key.
    pub(crate) fn public(&self) -> &Key {
        self.keys.public()
    }
}

/// Warns if other users of the machine can read the key.
fn warn_if_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path).map_or(0, |facts| facts.permissions().mode());
    if mode & 0o077 != 0 {
        let file = path.display();
        tracing::warn!(
            "other users of this machine can use the relay's key in {file}; run `chmod 600 {file}`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once() {
        let folder = hark_testkit::disk::scratch("own-key");
        let path = folder.join("relay.key");
        let key = OwnKey::load(&path, [7; 32]).unwrap();
        assert_eq!(OwnKey::load(&path, [8; 32]).unwrap().public(), key.public());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
