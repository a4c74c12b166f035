//! The relay's own key, and the events that it signs.

use std::path::Path;

use hark_codec::crypto::KeyPair;
use hark_codec::nostr::{Event, EventArena, EventDraft, EventEncoder};
use hark_codec::record::Key;
use hark_networks::nostr::admit::{OwnUrls, PrivateLabels};

use crate::key_file::{self, KeyError};

/// The relay's own key, `self` in its NIP-11 document.
pub(crate) struct OwnKey {
    keys: KeyPair,
}

impl OwnKey {
    /// Reads the key from its file. A missing file is created with the secret key `new`.
    pub(crate) fn load(path: &Path, new: [u8; 32]) -> Result<Self, KeyError> {
        let keys = key_file::load(path, || new, KeyPair::from_secret)?;
        Ok(Self { keys })
    }

    /// The public key.
    pub(crate) fn public(&self) -> &Key {
        self.keys.public()
    }

    /// Signs an event, and returns its record.
    pub(crate) fn sign(
        &self,
        kind: u16,
        created_at: u64,
        tags: &[Vec<String>],
        content: &str,
    ) -> Vec<u8> {
        let tags: Vec<Vec<&str>> =
            tags.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        let (mut json, mut record) = (Vec::new(), Vec::new());
        let draft = EventDraft { created_at, kind, tags: &tags, content };
        draft.sign(&self.keys, &mut json);
        let mut arena = EventArena::new();
        // Parsing does not fail, because the draft has written the event.
        if let Ok(event) = Event::parse(&json, &mut arena) {
            let private = PrivateLabels::of(&event, &OwnUrls::new([]));
            EventEncoder::default().encode(&event, private.labels(), &mut record);
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_and_signs_valid_events() {
        let folder = hark_testkit::disk::scratch("own-key");
        let path = folder.join("relay.key");
        let key = OwnKey::load(&path, [7; 32]).unwrap();
        assert_eq!(OwnKey::load(&path, [8; 32]).unwrap().public(), key.public());
        let tags = [vec!["-".to_owned()], vec!["d".to_owned(), "a \"b\"".to_owned()]];
        let record = key.sign(33_534, 7, &tags, "");
        let record = hark_archive::Record::new(&record).unwrap();
        let mut arena = EventArena::new();
        let event = Event::parse(record.wire(), &mut arena).unwrap();
        assert!(event.has_valid_id() && event.is_protected() && event.d() == "a \"b\"");
        assert_eq!((event.id(), event.pubkey()), (record.id(), key.public()));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
