//! The keys that a client has proven (NIP-42), and so what it may see and publish.
//!
//! Every connection gets its own challenge when it opens. A signed answer proves a key. Several
//! keys may be proven, one after the other, and each counts until the connection ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hark_archive::limits::Limits;
use hark_archive::{Gate, Key, LabelSet};
use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_codec::nostr::Event;
use parking_lot::Mutex;

use hark_networks::nostr::admit::{AUTH, OwnUrls, plain};

/// What the AUTH answers of all connections are checked against.
pub(crate) struct AuthState {
    /// A random secret of this process. A challenge is made from the secret and a number.
    secret: [u8; 32],
    challenges: AtomicU64,
    own: OwnUrls,
    /// Whether the URL under which clients reach the relay is configured.
    knows_url: bool,
    /// What clients that have proven no key may see.
    strangers: Arc<Gate>,
}

/// The client of one connection, with the keys that it has proven.
pub(crate) struct ClientIdentity {
    challenge: [u8; 64],
    /// The host that the client's request named. `None` if a URL is configured.
    host: Option<Box<str>>,
    state: Arc<AuthState>,
    /// What the proven keys (the gate's readers) may see.
    gate: Mutex<Arc<Gate>>,
}

impl AuthState {
    /// Fails if the system has no random bytes.
    pub(crate) fn new(
        own: OwnUrls,
        knows_url: bool,
        mut private_kinds: Vec<u32>,
    ) -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        private_kinds.sort_unstable();
        let addressed = LabelSet { name: b'p', values: Vec::new() };
        let strangers = Gate { kinds: private_kinds, readers: Vec::new(), addressed };
        Ok(Self {
            secret,
            challenges: AtomicU64::new(0),
            own,
            knows_url,
            strangers: strangers.into(),
        })
    }

    /// The caller of a new connection, whose request named `host`. The name is trusted only if no
    /// URL is configured: an attacker that relays a client's answer could name what was signed.
    pub(crate) fn caller(self: &Arc<Self>, host: Option<&str>) -> ClientIdentity {
        let number = self.challenges.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let challenge = sha256(&[&self.secret[..], &number].concat());
        ClientIdentity {
            challenge: hex::encode_32(&challenge),
            host: host.filter(|_| !self.knows_url).map(|host| authority(host).into()),
            state: Arc::clone(self),
            gate: Mutex::new(Arc::clone(&self.strangers)),
        }
    }
}

impl AuthState {
    /// The private kinds, ascending.
    pub(crate) fn private_kinds(&self) -> &[u32] {
        &self.strangers.kinds
    }
}

impl ClientIdentity {
    /// The challenge that the client is to sign.
    pub(super) fn challenge(&self) -> &str {
        str::from_utf8(&self.challenge).unwrap_or_default()
    }

    /// What the client may see now.
    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate.lock())
    }

    /// Why an answer is refused, whatever its signature. None if it is acceptable.
    pub(super) fn refusal(&self, event: &Event<'_>, limits: &Limits, now_s: u64) -> Option<String> {
        if event.kind() != AUTH {
            return Some(format!("invalid: AUTH takes an event of kind {AUTH}"));
        }
        if event.first_value("challenge") != Some(self.challenge()) {
            return Some("invalid: challenge is not the one of this connection".into());
        }
        if !event.first_value("relay").is_some_and(|url| self.is_us(url)) {
            return Some(format!("invalid: relay is not the URL of this one, {}", self.us()));
        }
        if event.created_at().abs_diff(now_s) > limits.auth_age_s_max {
            let bound = limits.auth_age_s_max;
            return Some(format!("invalid: created_at is more than {bound} s from now"));
        }
        None
    }

    /// The host or URL that an answer of the client must name.
    fn us(&self) -> &str {
        self.host.as_deref().unwrap_or_else(|| self.state.own.first())
    }

    fn is_us(&self, url: &str) -> bool {
        let named = |host: &str| authority(&plain(url)) == host;
        self.state.own.have(url) || self.host.as_deref().is_some_and(named)
    }

    /// Adds a key that signed a valid answer. Fails with a reason if `keys_max` are proven already.
    pub(super) fn prove(&self, key: &Key, keys_max: usize) -> Result<(), String> {
        let mut gate = self.gate.lock();
        let Err(at) = gate.readers.binary_search(key) else { return Ok(()) };
        if gate.readers.len() >= keys_max {
            return Err(format!("restricted: more than {keys_max} keys on one connection"));
        }
        let mut wider = Gate::clone(&gate);
        wider.readers.insert(at, *key);
        // At the same index: hex strings sort like the keys.
        wider.addressed.values.insert(at, hex::encode_32(key)[..].into());
        *gate = wider.into();
        Ok(())
    }
}

/// The host of a plain URL, with its port unless that is a default one.
fn authority(url: &str) -> String {
    let host = url.split('/').next().unwrap_or_default().to_ascii_lowercase();
    let short = host.strip_suffix(":443").or_else(|| host.strip_suffix(":80"));
    short.map_or(host.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_on_trust_only_where_none_is_configured() {
        let state_of = |url: Option<&str>| {
            let own = OwnUrls::new(url.map(str::to_owned));
            Arc::new(AuthState::new(own, url.is_some(), Vec::new()).unwrap())
        };
        let open = state_of(None).caller(Some("Here.example:443"));
        for url in ["wss://here.example/", "ws://HERE.example", "wss://here.example/path"] {
            assert!(open.is_us(url), "{url}");
        }
        assert!(!open.is_us("wss://there.example") && !open.is_us(""));
        let caller = state_of(Some("wss://here.example")).caller(Some("there.example"));
        assert!(caller.is_us("wss://here.example/") && !caller.is_us("wss://there.example"));
        assert!(!state_of(None).caller(None).is_us(""));
    }

    #[test]
    fn keys_are_kept_in_order_up_to_the_bound_and_challenges_differ() {
        let state = Arc::new(AuthState::new(OwnUrls::default(), true, vec![9, 4]).unwrap());
        let caller = state.caller(None);
        assert_ne!(caller.challenge(), state.caller(None).challenge());
        for key in [[7; 32], [1; 32], [7; 32]] {
            assert_eq!(caller.prove(&key, 2), Ok(()));
        }
        assert!(caller.prove(&[2; 32], 2).unwrap_err().starts_with("restricted: "));
        let gate = caller.gate();
        assert_eq!((&gate.kinds[..], &gate.readers[..]), (&[4, 9][..], &[[1; 32], [7; 32]][..]));
        assert!(gate.addressed.values.is_sorted());
        assert!(state.caller(None).gate().readers.is_empty());
    }
}
