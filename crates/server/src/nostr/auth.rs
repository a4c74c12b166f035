//! The keys that a client has proven (NIP-42), and so what it may see and publish.
//!
//! Every connection gets its own challenge when it opens. A signed answer proves a key. Several
//! keys may be proven, one after the other, and each counts until the connection ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hark_archive::limits::Limits;
use hark_archive::{Gate, Key};
use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_codec::nostr::Event;
use parking_lot::Mutex;

use hark_networks::nostr::admit::{AUTH, plain};

use super::identity::SharedIdentity;

/// What the AUTH answers of all connections are checked against.
pub(crate) struct AuthState {
    /// A random secret of this process. A challenge is made from the secret and a number.
    secret: [u8; 32],
    challenges: AtomicU64,
    identity: SharedIdentity,
}

/// The client of one connection, with the keys that it has proven.
pub(crate) struct ClientIdentity {
    challenge: [u8; 64],
    /// The host that the client's request named. It counts only while no URL is configured: an
    /// attacker that relays a client's answer could name what was signed.
    host: Option<Box<str>>,
    state: Arc<AuthState>,
    /// What the proven keys (the gate's readers) may see.
    gate: Mutex<Arc<Gate>>,
}

impl AuthState {
    /// Fails if the system has no random bytes.
    pub(crate) fn new(identity: SharedIdentity) -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self { secret, challenges: AtomicU64::new(0), identity })
    }

    /// The caller of a new connection, whose request named `host`.
    pub(crate) fn caller(self: &Arc<Self>, host: Option<&str>) -> ClientIdentity {
        let number = self.challenges.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let challenge = sha256(&[&self.secret[..], &number].concat());
        ClientIdentity {
            challenge: hex::encode_32(&challenge),
            host: host.map(|host| authority(host).into()),
            state: Arc::clone(self),
            gate: Mutex::new(Arc::clone(&self.identity.current().strangers)),
        }
    }
}

impl ClientIdentity {
    /// The challenge that the client is to sign.
    pub(super) fn challenge(&self) -> &str {
        str::from_utf8(&self.challenge).unwrap_or_default()
    }

    /// What the client may see now.
    pub(super) fn gate(&self) -> Arc<Gate> {
        let mut gate = self.gate.lock();
        self.follow(&mut gate);
        Arc::clone(&gate)
    }

    /// Gives a gate the kinds that are private now.
    fn follow(&self, gate: &mut Arc<Gate>) {
        let identity = self.state.identity.current();
        if gate.kinds != identity.private_kinds() {
            let kinds = identity.private_kinds().to_vec();
            *gate = Gate { kinds, ..Gate::clone(gate) }.into();
        }
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
    fn us(&self) -> String {
        let identity = self.state.identity.current();
        let host = self.host.as_deref().filter(|_| !identity.knows_url());
        host.unwrap_or_else(|| identity.own_urls.first()).to_owned()
    }

    fn is_us(&self, url: &str) -> bool {
        let identity = self.state.identity.current();
        let host = self.host.as_deref().filter(|_| !identity.knows_url());
        identity.own_urls.have(url) || host.is_some_and(|host| authority(&plain(url)) == host)
    }

    /// Adds a key that signed a valid answer. Fails with a reason if `keys_max` are proven already.
    pub(super) fn prove(&self, key: &Key, keys_max: usize) -> Result<(), String> {
        let mut gate = self.gate.lock();
        self.follow(&mut gate);
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
    use crate::nostr::RelayInfo;

    #[test]
    fn a_name_is_taken_on_trust_only_where_none_is_configured() {
        let state_of = |url: Option<&str>| {
            let info = RelayInfo { url: url.map(str::to_owned), ..RelayInfo::default() };
            Arc::new(AuthState::new(SharedIdentity::new(info, Vec::new())).unwrap())
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
        let identity = SharedIdentity::new(RelayInfo::default(), vec![9, 4]);
        let state = Arc::new(AuthState::new(identity.clone()).unwrap());
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
        // Kinds that become private are so for those who are connected, too.
        identity.set(RelayInfo::default(), vec![30, 4]);
        let gate = caller.gate();
        assert_eq!((&gate.kinds[..], gate.readers.len()), (&[4, 30][..], 2));
        assert_eq!(state.caller(None).gate().kinds, [4, 30]);
    }
}
