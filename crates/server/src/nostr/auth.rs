//! The keys that a client has proven to own (NIP-42). These keys decide which events the client may
//! see and publish.
//!
//! Every connection gets its own challenge when it opens. A signed answer proves a key. Several
//! keys may be proven, one after the other, and each stays proven until the connection ends.
//!
//! A client's answer names a relay, and only the operator's settings decide which names belong to
//! this relay. The client's `Host` header proves nothing: another relay could forward an answer
//! signed by one of its users, and send its own name in `Host`.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};

use hark_archive::{Gate, Key};
use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_codec::nostr::Event;
use parking_lot::Mutex;

use hark_networks::nostr::admit::{AUTH, authority};
use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use super::identity::SharedIdentity;
use crate::limits::Limits;

/// The state for checking the AUTH answers of all connections.
pub(crate) struct AuthState {
    /// A random secret of this process. Each challenge is derived from this secret and a counter.
    secret: [u8; 32],
    challenges: AtomicU64,
    identity: SharedIdentity,
}

/// The client of one connection, with the keys that it has proven.
pub(crate) struct ClientIdentity {
    challenge: [u8; 64],
    /// Whether the challenge was sent again.
    is_repeated: AtomicBool,
    /// The server's address on this connection. `None` behind a proxy, because the client does not
    /// know this address.
    local: Option<SocketAddr>,
    state: Arc<AuthState>,
    /// The gate, which decides which events the client may see. The gate's readers are the proven
    /// keys.
    gate: Mutex<Arc<Gate>>,
}

impl AuthState {
    /// Creates the state. Fails if the system has no random bytes.
    pub(crate) fn new(identity: SharedIdentity) -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self { secret, challenges: AtomicU64::new(0), identity })
    }

    /// Creates the identity of a new connection's client. `local` is the server's address on the
    /// connection, or `None` behind a proxy.
    pub(crate) fn caller(self: &Arc<Self>, local: Option<SocketAddr>) -> ClientIdentity {
        let number = self.challenges.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let challenge = sha256(&[&self.secret[..], &number].concat());
        ClientIdentity {
            challenge: hex::encode_32(&challenge),
            is_repeated: AtomicBool::new(false),
            local,
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

    /// Returns the challenge, to be sent again with the first refusal that demands authentication.
    /// Without the repetition, a client that starts to listen only after the connection is open
    /// could miss the challenge.
    pub(super) fn repeated_challenge(&self, refusal: &NostrRefusal) -> Option<&str> {
        let is_due = refusal.verdict == NostrVerdict::AuthRequired
            && !self.is_repeated.swap(true, Ordering::Relaxed);
        is_due.then(|| self.challenge())
    }

    /// The gate that decides which events the client may see now.
    pub(super) fn gate(&self) -> Arc<Gate> {
        let mut gate = self.gate.lock();
        self.follow(&mut gate);
        Arc::clone(&gate)
    }

    /// Replaces the private kinds of a gate by the kinds that are private now.
    fn follow(&self, gate: &mut Arc<Gate>) {
        let identity = self.state.identity.current();
        if gate.kinds != identity.private_kinds() {
            let kinds = identity.private_kinds().to_vec();
            *gate = Gate { kinds, ..Gate::clone(gate) }.into();
        }
    }

    /// Returns the reason for refusing an AUTH answer, without checking the signature. `None` if
    /// the answer is acceptable.
    pub(super) fn refusal(
        &self,
        event: &Event<'_>,
        limits: &Limits,
        now_s: u64,
    ) -> Option<NostrRefusal> {
        if event.kind() != AUTH {
            return Some(
                NostrVerdict::Invalid.because(format!("AUTH requires an event of kind {AUTH}")),
            );
        }
        if event.first_value("challenge") != Some(self.challenge()) {
            return Some(
                NostrVerdict::Invalid.because("challenge is not the one of this connection"),
            );
        }
        if !event.first_value("relay").is_some_and(|url| self.is_us(url)) {
            return Some(self.not_us());
        }
        if event.created_at().abs_diff(now_s) > limits.auth_age_s_max {
            let bound = limits.auth_age_s_max;
            return Some(
                NostrVerdict::Invalid
                    .because(format!("created_at is more than {bound} s from now")),
            );
        }
        None
    }

    /// The reason for refusing an answer that names another relay.
    fn not_us(&self) -> NostrRefusal {
        let identity = self.state.identity.current();
        if identity.knows_url() {
            let us = identity.own_urls.first();
            return NostrVerdict::Invalid
                .because(format!("relay is not the URL of this one, {us}"));
        }
        SAID.call_once(|| tracing::warn!("an AUTH was refused: {NO_URL}"));
        let local = self.local.map(|local| format!(", or ws://{local}")).unwrap_or_default();
        NostrVerdict::Invalid.because(format!(
            "relay must be the URL of this one, which its operator has not set{local}"
        ))
    }

    /// Whether a URL names this relay: by the host of a configured URL, or by the address that the
    /// client is connected to.
    fn is_us(&self, url: &str) -> bool {
        self.state.identity.current().hosts.have_host_of(url)
            || self.local.is_some_and(|local| names(url, local))
    }

    /// Adds a key that signed a valid answer. Fails with a reason if `keys_max` keys are proven
    /// already.
    pub(super) fn prove(&self, key: &Key, keys_max: usize) -> Result<(), NostrRefusal> {
        let mut gate = self.gate.lock();
        self.follow(&mut gate);
        let Err(at) = gate.readers.binary_search(key) else { return Ok(()) };
        if gate.readers.len() >= keys_max {
            return Err(NostrVerdict::Restricted
                .because(format!("more than {keys_max} keys on one connection")));
        }
        let mut wider = Gate::clone(&gate);
        wider.readers.insert(at, *key);
        // The hex strings are in the same order as the keys, so the index is the same.
        wider.addressed.values.insert(at, hex::encode_32(key)[..].into());
        *gate = wider.into();
        Ok(())
    }
}

/// Advice for an operator who has configured no URL.
pub(super) const NO_URL: &str = "[info] url is not set: clients can authenticate (NIP-42) only by \
     the address of this server itself, and requests to vanish (NIP-62) that name this relay are \
     refused; set it to the URL at which clients reach the relay, such as wss://relay.example";

/// Whether a refused AUTH was logged.
static SAID: Once = Once::new();

/// Whether a URL names the address `local`: literally, or as localhost if it is a loopback address.
pub(super) fn names(url: &str, local: SocketAddr) -> bool {
    let Some(asked) = authority(url) else { return false };
    let ip = local.ip().to_canonical();
    if let Ok(asked) = asked.parse::<SocketAddr>() {
        return asked.ip().to_canonical() == ip && asked.port() == local.port();
    }
    // `authority` leaves out a default port.
    let (host, port) = match asked.strip_prefix("localhost:") {
        Some(port) => ("localhost", port.parse().ok()),
        None => (asked.as_str(), [80, 443].into_iter().find(|port| *port == local.port())),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_here =
        bare.map_or(host == "localhost" && ip.is_loopback(), |it| it.to_canonical() == ip);
    is_here && port == Some(local.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::RelayInfo;

    #[test]
    fn the_operator_and_the_connection_name_this_relay_and_nobody_else() {
        let state_of = |url: Option<&str>| {
            let info = RelayInfo { url: url.map(str::to_owned), ..RelayInfo::default() };
            Arc::new(AuthState::new(SharedIdentity::new(info, Vec::new())).unwrap())
        };
        let local = |addr: &str| Some(addr.parse().unwrap());
        let open = state_of(None);
        for (addr, url, is_us) in [
            ("127.0.0.1:7777", "ws://127.0.0.1:7777/path", true),
            ("127.0.0.1:7777", "ws://LOCALHOST:7777", true),
            ("127.0.0.1:7777", "ws://localhost", false),
            ("127.0.0.1:7777", "ws://127.0.0.1:7778", false),
            ("127.0.0.1:80", "ws://localhost/", true),
            ("127.0.0.1:443", "wss://127.0.0.1/", true),
            ("[::ffff:127.0.0.1]:80", "ws://127.0.0.1/", true),
            ("[::1]:7777", "ws://[::1]:7777/", true),
            ("[::1]:80", "ws://[::1]", true),
            ("192.0.2.7:7777", "ws://192.0.2.7:7777", true),
            ("192.0.2.7:7777", "ws://localhost:7777", false),
            ("192.0.2.7:7777", "ws://192.0.2.8:7777", false),
            ("192.0.2.7:7777", "wss://evil.example", false),
            ("192.0.2.7:80", "ws://evil.example/192.0.2.7", false),
            ("192.0.2.7:7777", "", false),
        ] {
            assert_eq!(open.caller(local(addr)).is_us(url), is_us, "{addr} {url}");
        }
        // A client of a proxy does not know this server's address.
        assert!(!open.caller(None).is_us("ws://127.0.0.1:7777") && !open.caller(None).is_us(""));
        let named = state_of(Some("wss://here.example/chat")).caller(None);
        for url in ["wss://here.example/", "WSS://Here.Example:443/chat/?x=1", "ws://here.example"]
        {
            assert!(named.is_us(url), "{url}");
        }
        assert!(!named.is_us("wss://there.example/here.example"));
    }

    #[test]
    fn the_challenge_comes_again_with_the_first_demand_for_it() {
        let state = AuthState::new(SharedIdentity::default()).unwrap();
        let caller = Arc::new(state).caller(None);
        let [other, demand] =
            [NostrVerdict::Blocked, NostrVerdict::AuthRequired].map(|it| it.because("who?"));
        assert_eq!(caller.repeated_challenge(&other), None);
        assert_eq!(caller.repeated_challenge(&demand), Some(caller.challenge()));
        assert_eq!(caller.repeated_challenge(&demand), None);
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
        let refused = caller.prove(&[2; 32], 2).unwrap_err();
        assert_eq!(refused.verdict, NostrVerdict::Restricted);
        let gate = caller.gate();
        assert_eq!((&gate.kinds[..], &gate.readers[..]), (&[4, 9][..], &[[1; 32], [7; 32]][..]));
        assert!(gate.addressed.values.is_sorted());
        assert!(state.caller(None).gate().readers.is_empty());
        // Kinds that become private are private for open connections, too.
        identity.set(RelayInfo::default(), vec![30, 4]);
        let gate = caller.gate();
        assert_eq!((&gate.kinds[..], gate.readers.len()), (&[4, 30][..], 2));
        assert_eq!(state.caller(None).gate().kinds, [4, 30]);
    }
}
