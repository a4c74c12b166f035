//! Events of a check. The id is computed with serde_json and not with Hark's codec, so the two do
//! not share faults.

use hark_codec::crypto::{KeyPair, sha256, sign};
use hark_codec::hex;
use serde_json::{Value, json};

use crate::text;

/// The fields of an event that is not signed yet.
#[derive(Clone, Debug)]
pub(crate) struct EventPlan {
    pub(crate) kind: u64,
    pub(crate) created_at: u64,
    pub(crate) tags: Vec<Vec<String>>,
    pub(crate) content: String,
}

/// A signed event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeEvent {
    pub(crate) id: String,
    pub(crate) pubkey: String,
    pub(crate) created_at: u64,
    pub(crate) kind: u64,
    pub(crate) tags: Vec<Vec<String>>,
    pub(crate) content: String,
    pub(crate) sig: String,
}

impl EventPlan {
    pub(crate) fn new(kind: u64, created_at: u64) -> Self {
        Self { kind, created_at, tags: Vec::new(), content: String::new() }
    }

    /// Adds a tag.
    pub(crate) fn tag(mut self, tag: &[&str]) -> Self {
        self.tags.push(tag.iter().map(|part| (*part).to_owned()).collect());
        self
    }

    /// Sets the content.
    pub(crate) fn content(mut self, content: impl Into<String>) -> Self {
        self.content = content.into();
        self
    }

    /// Signs the event.
    pub(crate) fn sign(self, keys: &KeyPair) -> ProbeEvent {
        let Self { kind, created_at, tags, content } = self;
        let pubkey = text::hex(keys.public());
        let (id, sig) = sign_parts(keys, &json!([0, pubkey, created_at, kind, tags, content]));
        ProbeEvent { id, pubkey, created_at, kind, tags, content, sig }
    }

    /// Signs the event after adding a nonce that gives the id `bits` leading zero bits (NIP-13).
    pub(crate) fn mine(mut self, keys: &KeyPair, bits: u32) -> ProbeEvent {
        if bits == 0 {
            return self.sign(keys);
        }
        let pubkey = text::hex(keys.public());
        let (at, target) = (self.tags.len(), bits.to_string());
        self.tags.push(Vec::new());
        for nonce in 0u64.. {
            self.tags[at] = vec!["nonce".into(), nonce.to_string(), target.clone()];
            let (kind, time) = (self.kind, self.created_at);
            let parts = json!([0, pubkey, time, kind, self.tags, self.content]);
            let id = sha256(parts.to_string().as_bytes());
            if u128::from_be_bytes(*id.first_chunk().unwrap_or(&[0; 16])).leading_zeros() >= bits {
                break;
            }
        }
        self.sign(keys)
    }
}

/// Hashes and signs the serialized parts of an event. Returns the id and the signature in hex.
pub(crate) fn sign_parts(keys: &KeyPair, parts: &Value) -> (String, String) {
    let id = sha256(parts.to_string().as_bytes());
    let sig = hex::encode_64(&sign(keys, &id));
    (text::hex(&id), String::from_utf8_lossy(&sig).into_owned())
}

impl ProbeEvent {
    pub(crate) fn json(&self) -> Value {
        json!({
            "id": self.id,
            "pubkey": self.pubkey,
            "created_at": self.created_at,
            "kind": self.kind,
            "tags": self.tags,
            "content": self.content,
            "sig": self.sig,
        })
    }

    /// The value of the first tag of this name; `None` if the event has no such tag.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let tag = self.tags.iter().find(|tag| tag.first().is_some_and(|found| found == name))?;
        Some(tag.get(1).map_or("", String::as_str))
    }
}
