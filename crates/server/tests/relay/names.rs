//! Verified names (NIP-05): the domains are a server on this machine with a certificate authority of
//! its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use hark_archive::store::memory::MemoryStore;
use hark_networks::Network as _;
use hark_server::moderation::ModerationNetwork;
use hark_server::nostr::policy::EventPolicy;
use hark_server::nostr::{DomainList, ManagerRole, Managers, NameClient, NameRules, RuleMode};
use hark_testkit::http::metric;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::keys;
use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::wait::until_async;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::kit::{Config, NOW_S, Relay, http};

/// The domains for which the server has a certificate.
const DOMAINS: [&str; 4] = ["one.example", "two.example", "away.example", "long.example"];
const NAME_NEEDED: &str = "restricted: only keys with a verified name (NIP-05) may publish here";

/// A server of domains.
struct DomainServer {
    address: SocketAddr,
    tls: ClientConfig,
    shared: Arc<DomainAnswers>,
}

#[derive(Default)]
struct DomainAnswers {
    /// The answer of each domain: a status line with headers, and a body.
    answers: Mutex<HashMap<String, (String, String)>>,
    /// The heads of all requests.
    requests: Mutex<Vec<String>>,
}

impl DomainServer {
    async fn start() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(DOMAINS.map(str::to_owned)).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(ring::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::default());
        tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(server)), Arc::clone(&shared)));
        Self { address, tls, shared }
    }

    /// Sets the names that a domain lists.
    fn list(&self, domain: &str, names: &[(&str, u8)]) {
        let names: HashMap<_, _> = names.iter().map(|(name, who)| (*name, pubkey(*who))).collect();
        self.answer(domain, "200 OK", &json!({ "names": names }).to_string());
    }

    fn answer(&self, domain: &str, status: &str, body: &str) {
        self.shared.answers.lock().insert(domain.into(), (status.into(), body.into()));
    }

    fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().clone()
    }

    /// Starts a relay whose names are at these domains.
    async fn relay(&self, mode: RuleMode, change: impl FnOnce(&mut Config)) -> Relay {
        Relay::start(|config| {
            config.relay.name_client = NameClient::of_tests(self.address, self.tls.clone());
            config.moderation = Some(Arc::new(MemoryStore::new(ModerationNetwork.rules())));
            config.policy.names.mode = mode;
            change(config);
        })
        .await
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<DomainAnswers>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            // The handshake fails if the domain is not in the certificate.
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { return };
                head.push(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let host = head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
            let answer = shared.answers.lock().get(host).cloned();
            shared.requests.lock().push(head);
            let (status, body) = answer.unwrap_or(("404 Not Found".into(), String::new()));
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            // The relay may close the connection before it has read a long answer.
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        });
    }
}

fn profile(who: u8, at: u64, name: &str) -> Value {
    event(who, at, 0, &[], &json!({ "name": "somebody", "nip05": name }).to_string())
}

async fn accept(client: &mut Client, event: &Value) {
    assert_eq!(client.publish(event).await, (true, String::new()), "{event}");
}

/// Publishes notes until one has an answer that begins with `words`, or is accepted if the words are
/// empty.
async fn until_answered(client: &mut Client, who: u8, words: &str) {
    let mut number = 0;
    until_async(&format!("{who}: {words:?}"), async || {
        number += 1;
        let (accepted, answer) = client.publish(&note(who, NOW_S, &format!("{number}"))).await;
        if words.is_empty() { accepted } else { answer.starts_with(words) }
    })
    .await;
}

/// Waits until the relay has counted checks with this result.
async fn until_counted(relay: &Relay, result: &str, count: u64) {
    let series = format!("hark_name_checks_total{{result=\"{result}\"}}");
    until_async(&series, async || {
        let (_, page) = http(&relay.url, "/metrics", "").await;
        metric(&page, &series).is_some_and(|found| found >= count as f64)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_keys_with_a_verified_name_may_publish() {
    let domains = DomainServer::start().await;
    domains.list("one.example", &[("bob", 1), ("_", 2)]);
    let relay = domains.relay(RuleMode::Require, |_| {}).await;
    let mut client = relay.client().await;
    let (accepted, words) = client.publish(&note(1, NOW_S, "too early")).await;
    assert!(!accepted && words.starts_with(NAME_NEEDED) && words.contains("kind 0"), "{words}");
    accept(&mut client, &profile(1, NOW_S, "Bob@one.example")).await;
    accept(&mut client, &profile(2, NOW_S, "_@one.example")).await;
    for who in [1, 2] {
        until_answered(&mut client, who, "").await;
    }
    let requests = domains.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    let head = &requests[0];
    assert!(head.starts_with("GET /.well-known/nostr.json?name=bob HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nhost: one.example\r\n"), "{head}");
    // The name belongs to another key, and the next name is not listed.
    accept(&mut client, &profile(3, NOW_S, "bob@one.example")).await;
    accept(&mut client, &profile(4, NOW_S, "eve@one.example")).await;
    let needed = "restricted: only keys with a verified name (NIP-05) may publish here, and ";
    for (who, name) in [(3, "bob"), (4, "eve")] {
        let words = format!("{needed}{name}@one.example is not verified");
        until_answered(&mut client, who, &words).await;
    }
    let (_, document) = http(&relay.url, "/", "Accept: application/nostr+json").await;
    assert!(document.contains("\"restricted_writes\":true"), "{document}");
    // A request about its author's own data needs no name, and neither does an AUTH.
    let own = event(5, NOW_S, 62, &[&["relay", "ALL_RELAYS"]], "");
    accept(&mut client, &own).await;
    client.auth(6).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_profile_counts() {
    let domains = DomainServer::start().await;
    domains.list("one.example", &[("bob", 1)]);
    domains.list("two.example", &[("robert", 1)]);
    let relay = domains.relay(RuleMode::Require, |_| {}).await;
    let mut client = relay.client().await;
    accept(&mut client, &profile(1, NOW_S - 9, "bob@one.example")).await;
    until_answered(&mut client, 1, "").await;
    // Another name replaces the name, and a profile without a name ends the verification.
    accept(&mut client, &profile(1, NOW_S - 8, "robert@two.example")).await;
    until_counted(&relay, "verified", 2).await;
    until_answered(&mut client, 1, "").await;
    accept(&mut client, &event(1, NOW_S - 7, 0, &[], "{}")).await;
    until_answered(&mut client, 1, NAME_NEEDED).await;
    accept(&mut client, &profile(1, NOW_S - 6, "bob@one.example")).await;
    until_answered(&mut client, 1, "").await;
    // A deleted profile claims no name.
    let deletion = event(1, NOW_S, 5, &[&["a", &format!("0:{}:", pubkey(1))]], "");
    accept(&mut client, &deletion).await;
    until_answered(&mut client, 1, NAME_NEEDED).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_managers_and_open_kinds_need_no_name() {
    let domains = DomainServer::start().await;
    domains.list("one.example", &[("bob", 1)]);
    let role =
        ManagerRole { id: "guard".into(), methods: Vec::new(), keys: vec![*keys(3).public()] };
    let relay = domains
        .relay(RuleMode::Require, |config| {
            config.policy.allow_keys = None;
            config.policy.open_kinds = vec![3..=3];
            config.policy.addressed_kinds = vec![1059..=1059];
            config.policy.names.managers = Managers {
                admins: [*keys(2).public()].into(),
                roles: vec![role],
                ..Managers::default()
            };
        })
        .await;
    let mut client = relay.client().await;
    for who in [2, 3] {
        accept(&mut client, &note(who, NOW_S, "from a manager")).await;
    }
    accept(&mut client, &event(9, NOW_S, 3, &[], "")).await;
    let wrap = |to: u8| event(9, NOW_S, 1059, &[&["p", &pubkey(to)]], "");
    let (accepted, words) = client.publish(&wrap(1)).await;
    assert!(!accepted && words.starts_with(NAME_NEEDED), "{words}");
    accept(&mut client, &profile(1, NOW_S, "bob@one.example")).await;
    until_answered(&mut client, 1, "").await;
    accept(&mut client, &wrap(1)).await;
    // Members need no name, and a name makes nobody a member.
    let names = relay.policy.load().names.clone();
    let allow_keys = Some([*keys(4).public()].into());
    relay.policy.store(Arc::new(EventPolicy { allow_keys, names, ..EventPolicy::default() }));
    accept(&mut client, &note(4, NOW_S, "from a member")).await;
    let (accepted, words) = client.publish(&note(1, NOW_S, "from a stranger")).await;
    assert!(!accepted && words.starts_with("blocked: "), "{words}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_from_before_is_checked_when_its_author_publishes() {
    let domains = DomainServer::start().await;
    domains.list("one.example", &[("bob", 1)]);
    let relay = domains.relay(RuleMode::Off, |_| {}).await;
    let mut client = relay.client().await;
    accept(&mut client, &profile(1, NOW_S, "bob@one.example")).await;
    accept(&mut client, &note(2, NOW_S, "from anybody")).await;
    let mode = |mode| {
        let names = NameRules { mode, ..NameRules::default() };
        relay.policy.store(Arc::new(EventPolicy { names, ..EventPolicy::default() }));
    };
    // Nobody is refused, and the events without a name are counted. The first event is enough.
    mode(RuleMode::Watch);
    accept(&mut client, &note(1, NOW_S, "from bob")).await;
    until_counted(&relay, "verified", 1).await;
    accept(&mut client, &note(2, NOW_S, "still from anybody")).await;
    let (_, page) = http(&relay.url, "/metrics", "").await;
    assert_eq!(metric(&page, "hark_unnamed_events_total"), Some(2.0), "{page}");
    mode(RuleMode::Require);
    accept(&mut client, &note(1, NOW_S, "from bob again")).await;
    let (accepted, _) = client.publish(&note(2, NOW_S, "not from anybody")).await;
    assert!(!accepted);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_cannot_be_used_verify_nothing_and_are_told() {
    let domains = DomainServer::start().await;
    let good = json!({ "names": { "bob": pubkey(1) } }).to_string();
    let away = "302 Found\r\nLocation: https://one.example/.well-known/nostr.json?name=bob";
    domains.answer("away.example", away, &good);
    domains.answer("one.example", "200 OK", "[]");
    domains.answer("two.example", "200 OK", &good.replace("names", "keys"));
    domains.answer("long.example", "200 OK", &format!("{good}{}", " ".repeat(65_536)));
    let relay = domains
        .relay(RuleMode::Require, |config| {
            assert!(config.policy.names.domains_denied.add("denied.example"));
            let mut allowed = DomainList::default();
            for domain in [&DOMAINS[..], &["denied.example", "no-certificate.example"]].concat() {
                assert!(allowed.add(domain));
            }
            config.policy.names.domains_allowed = Some(allowed);
        })
        .await;
    let mut client = relay.client().await;
    for (at, (domain, reason)) in [
        ("away.example", "HTTP status 302, and redirects are not followed"),
        ("one.example", "not of the form of NIP-05"),
        ("two.example", "not of the form of NIP-05"),
        ("long.example", "more than 65536 bytes"),
        ("no-certificate.example", "no valid certificate"),
        ("denied.example", "names of denied.example do not count here"),
        ("other.example", "names of other.example do not count here"),
    ]
    .into_iter()
    .enumerate()
    {
        accept(&mut client, &profile(1, NOW_S + at as u64, &format!("bob@{domain}"))).await;
        let mut number = 0;
        until_async(domain, async || {
            number += 1;
            let note = note(1, NOW_S, &format!("{domain} {number}"));
            let (accepted, words) = client.publish(&note).await;
            assert!(!accepted && words.starts_with("restricted: "), "{domain}: {words}");
            words.contains(reason)
        })
        .await;
    }
    assert!(domains.requests().iter().all(|head| !head.contains("denied.example")));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_holds_over_restarts_and_until_its_end() {
    let domains = DomainServer::start().await;
    domains.list("one.example", &[("bob", 1)]);
    let kept = Arc::new(MemoryStore::new(ModerationNetwork.rules()));
    let start = async || {
        let moderation = kept.clone();
        domains
            .relay(RuleMode::Require, move |config| {
                config.moderation = Some(moderation);
                config.policy.names.valid_s = 100;
            })
            .await
    };
    let relay = start().await;
    let mut client = relay.client().await;
    accept(&mut client, &profile(1, NOW_S, "bob@one.example")).await;
    until_answered(&mut client, 1, "").await;
    relay.stop().await;
    // The archive of the second relay has no profile.
    let relay = start().await;
    let mut client = relay.client().await;
    accept(&mut client, &note(1, NOW_S, "after a restart")).await;
    relay.clock.set(NOW_S + 99);
    accept(&mut client, &note(1, NOW_S, "shortly before the end")).await;
    relay.clock.set(NOW_S + 100);
    let (accepted, words) = client.publish(&note(1, NOW_S, "after the end")).await;
    assert!(!accepted && words.starts_with(NAME_NEEDED), "{words}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_no_longer_listed_ends_and_a_domain_that_fails_ends_none() {
    let domains = DomainServer::start().await;
    domains.list("one.example", &[("bob", 1)]);
    domains.list("two.example", &[("bob", 2)]);
    let relay = domains.relay(RuleMode::Require, |_| {}).await;
    let mut client = relay.client().await;
    let names = [(1, "bob@one.example"), (2, "bob@two.example")];
    for (who, name) in names {
        accept(&mut client, &profile(who, NOW_S, name)).await;
        until_answered(&mut client, who, "").await;
    }
    domains.list("one.example", &[]);
    domains.answer("two.example", "500 Internal Server Error", "");
    relay.clock.set(NOW_S + 90_000);
    for (who, name) in names {
        accept(&mut client, &profile(who, NOW_S + 2, name)).await;
    }
    until_counted(&relay, "unlisted", 1).await;
    until_counted(&relay, "failed", 1).await;
    until_answered(&mut client, 1, "restricted: ").await;
    until_answered(&mut client, 2, "").await;
    assert_eq!(domains.requests().len(), 4);
    relay.stop().await;
}
