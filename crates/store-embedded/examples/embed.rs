//! An archive of Nostr events in files, embedded in a program: opens the archive, stores a signed
//! event and finds the event with a filter. README.md of this crate shows the same lines.
//!
//! ```text
//! cargo run -p hark-store-embedded --example embed
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hark_codec::crypto::KeyPair;
use hark_codec::nostr::EventDraft;
use hark_networks::nostr::Nostr;
use hark_networks::{Network as _, NetworkShelf, ReadOptions};
use hark_store_embedded::{DirectoryLock, EmbeddedOptions, EmbeddedStore};

fn main() -> Result<(), Box<dyn Error>> {
    // One process at a time writes to a directory.
    let data = std::env::temp_dir().join(format!("hark-embed-{}", std::process::id()));
    let lock = DirectoryLock::acquire(&data)?;
    let options = EmbeddedOptions::default();
    let store = EmbeddedStore::open(&data.join(Nostr.name()), Nostr.rules(), options)?;
    let shelf = NetworkShelf::new(&Nostr, Arc::new(store));

    let keys = KeyPair::from_secret([7; 32]).ok_or("no secret key")?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let tags: &[&[&str]] = &[&["t", "bread"]];
    let draft = EventDraft { created_at: now_s, kind: 1, tags, content: "Good morning" };
    let mut json = Vec::new();
    draft.sign(&keys, &mut json);
    // When the call returns, the event has been checked and is on disk.
    let results = shelf.put([&json], &ReadOptions { now_s, ..ReadOptions::default() })?;
    assert!(results[0].is_ok());

    let mut found = Vec::new();
    shelf.find(r##"{"kinds":[1],"#t":["bread"]}"##, now_s, |line| found.push(line.to_vec()))?;
    assert_eq!(found, [json]);

    drop((shelf, lock));
    std::fs::remove_dir_all(&data)?;
    Ok(())
}
