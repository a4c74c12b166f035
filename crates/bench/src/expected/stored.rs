//! The events of a file that a relay still holds after it has received the whole file. Newer
//! versions replace events (NIP-01), deletion requests remove events (NIP-09), events expire
//! (NIP-40), and ephemeral events are not stored.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::SystemTime;

use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_codec::nostr::Event;
use hark_codec::record::{Id, Key};

use crate::lines::EventFile;

/// Kind of deletion requests.
const DELETION: u16 = 5;
/// Kind of authentication events (NIP-42).
const AUTHENTICATION: u16 = 22_242;

/// The hash of an address: kind, author, and the value of the `d` tag for addressable events.
type AddressHash = [u8; 32];

/// Whether a relay that has received the whole file holds an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventPresence {
    Held,
    /// An older version, if the newest version was deleted by its id or has expired. The order in
    /// which the relay received the events decides which version remains, if any.
    Optional,
    Absent,
}

/// A version of a replaceable event.
#[derive(Clone, Copy, Debug)]
struct NewestVersion {
    created_at: u64,
    id: Id,
    has_expired: bool,
}

/// The facts of a file that decide which of its events exist.
pub(super) struct CorpusState {
    now_s: u64,
    /// The newest version of each address.
    versions: HashMap<AddressHash, NewestVersion>,
    /// Deleted ids, each with the author of the request.
    deleted: HashSet<(Id, Key)>,
    /// Deleted addresses, each with the time up to which versions are deleted.
    deleted_versions: HashMap<AddressHash, u64>,
}

impl CorpusState {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let mut stored = Self {
            now_s: now.as_secs(),
            versions: HashMap::new(),
            deleted: HashSet::new(),
            deleted_versions: HashMap::new(),
        };
        let mut lines = EventFile::open(path)?;
        while let Some(event) = lines.event()? {
            stored.add(&event);
        }
        Ok(stored)
    }

    fn add(&mut self, event: &Event<'_>) {
        if let Some(address) = address(event) {
            let (created_at, id) = (event.created_at(), *event.id());
            let version = NewestVersion { created_at, id, has_expired: self.has_expired(event) };
            let newest = self.versions.entry(address).or_insert(version);
            // Of versions with the same time, the lowest id wins.
            if created_at > newest.created_at || created_at == newest.created_at && id < newest.id {
                *newest = version;
            }
        }
        if event.kind() != DELETION {
            return;
        }
        for (letter, value) in event.labels() {
            if letter == b'e' {
                let id = hex::decode_32(value.as_bytes());
                self.deleted.extend(id.map(|id| (id, *event.pubkey())));
            } else if letter == b'a'
                && let Some(address) = own_address(value, event.pubkey())
            {
                let until = self.deleted_versions.entry(address).or_default();
                *until = (*until).max(event.created_at());
            }
        }
    }

    fn has_expired(&self, event: &Event<'_>) -> bool {
        event.expiration().is_some_and(|expires| expires <= self.now_s)
    }

    /// Whether the relay still holds an event of the file.
    pub(super) fn presence(&self, event: &Event<'_>) -> EventPresence {
        let kind = event.kind();
        let is_ephemeral = (20_000..30_000).contains(&kind) || kind == AUTHENTICATION;
        let is_deleted = |id: &Id| self.deleted.contains(&(*id, *event.pubkey()));
        if is_ephemeral || self.has_expired(event) || kind != DELETION && is_deleted(event.id()) {
            return EventPresence::Absent;
        }
        let Some(address) = address(event) else { return EventPresence::Held };
        let deleted_until = self.deleted_versions.get(&address);
        if deleted_until.is_some_and(|until| event.created_at() <= *until) {
            return EventPresence::Absent;
        }
        match self.versions.get(&address) {
            Some(newest) if newest.id != *event.id() => {
                let is_gone = newest.has_expired || is_deleted(&newest.id);
                if is_gone { EventPresence::Optional } else { EventPresence::Absent }
            }
            _ => EventPresence::Held,
        }
    }
}

/// Returns the address of a replaceable or addressable event.
fn address(event: &Event<'_>) -> Option<AddressHash> {
    match event.kind() {
        0 | 3 | 10_000..20_000 => Some(hash(event.kind(), event.pubkey(), "")),
        30_000..40_000 => Some(hash(event.kind(), event.pubkey(), event.d())),
        _ => None,
    }
}

/// Reads the value of an `a` tag. `None` if the address belongs to another author.
fn own_address(value: &str, author: &Key) -> Option<AddressHash> {
    let mut parts = value.splitn(3, ':');
    let kind: u16 = parts.next()?.parse().ok()?;
    let key = hex::decode_32(parts.next()?.as_bytes())?;
    let d = if (30_000..40_000).contains(&kind) { parts.next()? } else { "" };
    (key == *author).then(|| hash(kind, author, d))
}

fn hash(kind: u16, author: &Key, d: &str) -> AddressHash {
    sha256(&[&kind.to_be_bytes()[..], author, d.as_bytes()].concat())
}
