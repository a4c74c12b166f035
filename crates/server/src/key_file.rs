//! The file with a key of this server: the key of a node, whose id is derived from the key, or the
//! relay's own key. The key survives a restart.

use std::io::{self, Write as _};
use std::path::Path;

use hark_codec::hex;

/// Why a key is not available.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or created.
    #[error("the key in {0} cannot be read or made: {1}")]
    File(String, io::Error),
    /// The file does not hold a key.
    #[error(
        "{0} holds no key; it must be 64 hex digits. If another key may take its place, delete the file"
    )]
    Key(String),
}

/// Reads the key from a file, or creates the file with the key that `make` returns. `read` converts
/// 32 bytes to a key, and returns `None` for bytes that are not a key.
pub(crate) fn load<K>(
    path: &Path,
    make: impl FnOnce() -> [u8; 32],
    read: impl FnOnce([u8; 32]) -> Option<K>,
) -> Result<K, KeyError> {
    let name = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            write(path, &make()).map_err(|error| KeyError::File(name.clone(), error))?
        }
        Err(error) => return Err(KeyError::File(name, error)),
    };
    warn_if_readable(path);
    let bytes = hex::decode_32(text.trim().to_ascii_lowercase().as_bytes());
    bytes.and_then(read).ok_or(KeyError::Key(name))
}

/// Warns if other users of the machine can read the key.
fn warn_if_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path).map_or(0, |facts| facts.permissions().mode());
    if mode & 0o077 != 0 {
        let file = path.display();
        tracing::warn!(
            "other users of this machine can use the key in {file}; run `chmod 600 {file}`"
        );
    }
}

/// Creates a file that only its owner can read, or empties an existing file. A symbolic link is
/// refused: a link made by the user of a service may lead to any file of this machine.
pub(crate) fn create(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

/// Replaces a small file of this server atomically. Only the owner can read the file.
#[cfg(feature = "libp2p")]
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    create(Path::new(&unfinished))?.write_all(content)?;
    std::fs::rename(&unfinished, path)
}

/// Writes a new key atomically to a file that only its owner can read.
fn write(path: &Path, key: &[u8; 32]) -> io::Result<String> {
    let text = hex::text_32(key);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension("unfinished");
    let mut file = create(&unfinished)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    std::fs::rename(unfinished, path)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_testkit::disk::scratch;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn a_key_is_made_once_and_for_its_owner() {
        let folder = scratch("key");
        let path = folder.join("node.key");
        assert_eq!(load(&path, || [7; 32], Some).unwrap(), [7; 32]);
        assert_eq!(load(&path, || [8; 32], Some).unwrap(), [7; 32]);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(load::<()>(&path, || [8; 32], |_| None), Err(KeyError::Key(_))));
        std::fs::write(&path, "no key").unwrap();
        assert!(matches!(load(&path, || [8; 32], Some), Err(KeyError::Key(_))));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_key_is_written_through_a_symbolic_link() {
        let folder = scratch("key-link");
        std::fs::create_dir(&folder).unwrap();
        let (path, victim) = (folder.join("node.key"), folder.join("victim"));
        std::fs::write(&victim, "kept").unwrap();
        let unfinished = path.with_extension("unfinished");
        symlink(&victim, &unfinished).unwrap();
        assert!(create(&unfinished).is_err());
        assert!(matches!(load(&path, || [7; 32], Some), Err(KeyError::File(..))));
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
        assert!(!path.exists());
        // A link to a missing file is replaced.
        std::fs::remove_file(&unfinished).unwrap();
        let missing = folder.join("missing");
        symlink(&missing, &path).unwrap();
        assert_eq!(load(&path, || [7; 32], Some).unwrap(), [7; 32]);
        assert!(path.symlink_metadata().unwrap().is_file() && !missing.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
