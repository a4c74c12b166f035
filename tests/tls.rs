//! TLS of the relay's own port, with certificates in files and by ACME.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use hark_testkit::clock::now_s;
use hark_testkit::http::{HttpReply, HttpRequest, get, metric};
use hark_testkit::nostr::{contents, note};
use hark_testkit::runs::is_long;
use hark_testkit::server::Server;
use hark_testkit::wait::{PATIENCE, until_ok};
use hark_testkit::websocket::{first, masked, read_frame, upgrade_request};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use serde_json::{Value, json};

use crate::served::Place;

mod acme;

/// The lines of a configuration with the files that [`Authority::write`] makes. Relative paths are
/// beside the configuration file.
const SETTINGS: &str = "[tls]\ncertificate = \"relay.pem\"\nkey = \"relay.key\"\n";

/// An authority that signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        // OpenSSL takes a certificate with the name of its authority for one that signs itself.
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns a certificate for a name, and the certificate's key, both as PEM.
    pub(crate) fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// Returns the certificate of the authority as PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes a certificate for a name, and its key, into the files of a server.
    fn write(&self, place: &Place, name: &str) {
        let (certificate, key) = self.sign(name);
        place.folder.file("relay.pem", certificate);
        place.folder.file("relay.key", key);
    }

    /// Connects to a server as a client that trusts this authority.
    pub(crate) fn connect(&self, address: &str, name: &str) -> io::Result<Connection> {
        self.connect_by(address, name, &[&TLS13, &TLS12])
    }

    fn connect_by(
        &self,
        address: &str,
        name: &str,
        versions: &[&'static SupportedProtocolVersion],
    ) -> io::Result<Connection> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut stream = StreamOwned::new(session, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Connection(stream))
    }
}

/// A connection with TLS.
pub(crate) struct Connection(StreamOwned<ClientConnection, TcpStream>);

impl Connection {
    /// Waits until the server closes the connection. Panics if the server sends anything.
    pub(crate) fn wait_until_closed(&mut self) {
        match self.0.read(&mut [0]) {
            Ok(read) => assert_eq!(read, 0),
            // The connection may end without the end of TLS.
            Err(error) => assert!(
                [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset]
                    .contains(&error.kind()),
                "{error}"
            ),
        }
    }

    /// Sends a request without a body, and returns the answer.
    fn get(mut self, address: &str, path: &str) -> HttpReply {
        self.0.write_all(&HttpRequest::new("GET", path).bytes(address)).unwrap();
        let mut answer = Vec::new();
        self.0.read_to_end(&mut answer).unwrap();
        HttpReply::parse(&answer).unwrap()
    }

    /// Opens a WebSocket, and receives the relay's challenge.
    fn upgrade(mut self) -> WebSocket {
        self.0.write_all(upgrade_request("relay.example", "").as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        let mut socket = WebSocket(self);
        assert_eq!(socket.receive()[0], "AUTH");
        socket
    }
}

/// A WebSocket with TLS.
struct WebSocket(Connection);

impl WebSocket {
    fn send(&mut self, message: &Value) {
        let frame = masked(first::TEXT, message.to_string().as_bytes());
        self.0.0.write_all(&frame).unwrap();
    }

    fn receive(&mut self) -> Value {
        let (head, payload) = read_frame(&mut self.0.0).unwrap();
        assert_eq!(head, first::TEXT);
        serde_json::from_slice(&payload).unwrap()
    }

    fn publish(&mut self, event: &Value) {
        self.send(&json!(["EVENT", event]));
        let ok = self.receive();
        assert_eq!((&ok[0], &ok[1], &ok[2]), (&json!("OK"), &event["id"], &json!(true)), "{ok}");
    }

    fn ask(&mut self, filter: &Value) -> Vec<Value> {
        self.send(&json!(["REQ", "all", filter]));
        let mut events = Vec::new();
        loop {
            let mut received = self.receive();
            match received[0].as_str() {
                Some("EVENT") => events.push(received[2].take()),
                Some("EOSE") => break,
                _ => panic!("received {received}"),
            }
        }
        self.send(&json!(["CLOSE", "all"]));
        events
    }
}

/// A server with a certificate for relay.example.
fn start(name: &str, settings: &str) -> (Authority, Place, Server) {
    let (authority, place) = (Authority::new(), Place::new(name, &format!("{SETTINGS}{settings}")));
    authority.write(&place, "relay.example");
    let server = place.start();
    (authority, place, server)
}

#[test]
fn clients_publish_and_ask_by_both_versions_of_tls() {
    let (authority, _place, mut server) = start("tls-clients", "");
    let (mut published, now) = (0, now_s());
    for version in [&TLS12, &TLS13] {
        let connection =
            authority.connect_by(&server.address, "relay.example", &[version]).unwrap();
        assert_eq!(connection.0.conn.protocol_version(), Some(version.version));
        assert_eq!(connection.0.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        let mut socket = connection.upgrade();
        for _ in 0..150 {
            published += 1;
            socket.publish(&note(1, now - published, &"x".repeat(30_000)));
        }
        // The answer is much longer than the buffers of TLS and of the sockets.
        let events = socket.ask(&json!({ "limit": 1_000 }));
        assert_eq!(events.len() as u64, published);
        socket.publish(&note(2, now + published, "a short one"));
        assert_eq!(contents(&socket.ask(&json!({ "limit": 1 }))), ["a short one"]);
        published += 1;
    }
    let page = authority.connect(&server.address, "relay.example").unwrap();
    let page = page.get(&server.address, "/").ok();
    assert!(page.contains(&format!("wss://{}", server.address)), "{page}");
    // A client that trusts another authority refuses the server's certificate.
    assert!(Authority::new().connect(&server.address, "relay.example").is_err());
    server.stop();
}

#[test]
fn the_page_health_and_advice_are_there_by_https() {
    let folder = hark_testkit::folder::Folder::new("tls-unix");
    let unix = format!("unix:{}", folder.join("relay.sock").display());
    let settings = "[info]\nname = \"Owl\"\nurl = \"wss://relay.example\"\n";
    let (authority, place) =
        (Authority::new(), Place::new("tls-page", &format!("{SETTINGS}{settings}")));
    authority.write(&place, "relay.example");
    let listen = format!("127.0.0.1:0,{unix}");
    let mut server = Server::start(&mut place.serving(&["--unlimited", "--listen", &listen]));
    let address = server.address.clone();
    let get_page = |path| authority.connect(&address, "relay.example").unwrap().get(&address, path);
    let page = get_page("/").ok();
    assert!(page.contains("Owl"), "{page}");
    let expiry =
        metric(&get_page("/metrics").ok(), "hark_tls_certificate_expiry_timestamp_seconds");
    assert!(expiry.unwrap() > now_s() as f64);
    let healthz = |at: &str| place.command(&["healthz", "--at", at]).run_with(b"").text();
    assert!(healthz(&address).starts_with("ok\n"));
    // A Unix socket has no TLS.
    assert!(healthz(&unix).starts_with("ok\n"));
    let advice = || place.command(&["doctor", "--at", &address]).run_with(b"").stdout;
    let row =
        |rows: String| rows.lines().find(|row| row.contains("certificate")).map(str::to_owned);
    assert!(row(advice()).unwrap().starts_with("ok      certificate    expires at "));
    authority.write(&place, "other.example");
    place.command(&["reload"]).run_with(b"").text();
    let told = row(advice()).unwrap();
    assert!(told.starts_with("wrong   certificate    is not for relay.example"), "{told}");
    server.stop();
    // Without a server, `doctor` reads the files.
    let told = row(advice()).unwrap();
    assert!(told.starts_with("wrong   certificate    is not for relay.example"), "{told}");
}

#[test]
fn a_new_certificate_is_presented_after_a_reload() {
    let (authority, place, mut server) = start("tls-renewed", "");
    let mut before = authority.connect(&server.address, "relay.example").unwrap().upgrade();
    let reload = || place.command(&["reload"]).run_with(b"").text();
    assert!(!reload().contains("certificate"));
    authority.write(&place, "second.example");
    assert!(reload().contains("now with a certificate until "));
    assert!(authority.connect(&server.address, "relay.example").is_err());
    drop(authority.connect(&server.address, "second.example").unwrap());
    // An open connection continues.
    before.publish(&note(1, now_s(), "of the old certificate"));
    authority.write(&place, "third.example");
    server.signal("HUP");
    server.wait_for_log("a new certificate is in force");
    server.wait_for_log("a new certificate is in force");
    drop(authority.connect(&server.address, "third.example").unwrap());
    if is_long() {
        // The files are also read without a request, once a minute.
        authority.write(&place, "fourth.example");
        server.wait_for_log("a new certificate is in force");
        drop(authority.connect(&server.address, "fourth.example").unwrap());
    }
    server.stop();
}

#[test]
fn files_that_cannot_be_used_are_refused_at_the_start_and_change_nothing_later() {
    let (authority, place) = (Authority::new(), Place::new("tls-wrong", SETTINGS));
    let (certificate, key) = authority.sign("relay.example");
    let (_, other_key) = authority.sign("relay.example");
    let wrong = [
        (&certificate, &other_key, "does not belong to the certificate in "),
        (&key, &key, "relay.pem has no certificate in PEM"),
        (&certificate, &certificate, "relay.key has no private key in PEM"),
    ];
    let write = |certificate: &String, key: &String| {
        place.folder.file("relay.pem", certificate);
        place.folder.file("relay.key", key);
    };
    let refused = |said: &str| {
        let refusal = place.serving(&[]).run_with(b"").refused();
        assert!(refusal.contains("cannot serve TLS: ") && refusal.contains(said), "{refusal}");
    };
    refused("relay.pem cannot be read: No such file or directory");
    for (certificate, key, said) in wrong {
        write(certificate, key);
        refused(said);
    }
    write(&certificate, &key);
    let mut server = place.start();
    for (certificate, key, said) in wrong {
        write(certificate, key);
        for _ in 0..2 {
            let reload = place.command(&["reload"]).run_with(b"");
            assert_eq!(reload.code, 1, "{reload:?}");
            let told = reload.stdout;
            let is_told = told.contains("the certificate stays the old one: ");
            assert!(is_told && told.contains(said), "{told}");
        }
        drop(authority.connect(&server.address, "relay.example").unwrap());
    }
    let log = server.log();
    assert_eq!(log.matches("the new certificate cannot be used").count(), wrong.len(), "{log}");
    // The correct files again have the certificate that is already in force.
    write(&certificate, &key);
    assert!(!place.command(&["reload"]).run_with(b"").text().contains("certificate"));
    server.stop();
}

#[test]
fn clients_without_tls_are_answered_or_closed_in_time_and_counted() {
    // Long enough for the handshake of a busy machine.
    let settings = "[limits]\nhandshake_timeout_ms = 4000\n";
    let (authority, _place, mut server) = start("tls-strangers", settings);
    let address = server.address.clone();
    for path in ["/", "/healthz"] {
        let (status, text) = get(&address, path).parts();
        assert_eq!(
            (status, text.as_str()),
            (400, "this port speaks TLS; use wss:// or https://\n")
        );
    }
    // Returns the bytes that the server sends before it closes the connection.
    let send = |bytes: &[u8]| {
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // A reset is an end, too: the server closes without having read everything.
        match socket.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
        answer
    };
    // Silence, and a handshake that ends in the middle of its first record.
    assert_eq!(send(b""), b"");
    assert_eq!(send(&[22, 3, 1, 2, 0, 1]), b"");
    // Other protocols, a record without a handshake, and a record that is too long.
    assert_eq!(send(b"\x00\x01\x02\x03"), b"");
    assert_eq!(send(b"\xff\xff"), b"");
    send(&[&[22, 3, 1, 0, 5][..], b"owls!"].concat());
    send(&[22, 3, 1, 0xff, 0xff, 1, 0, 0, 0]);
    drop(TcpStream::connect(&address).unwrap());
    let page =
        || authority.connect(&address, "relay.example").unwrap().get(&address, "/metrics").ok();
    for (reason, count) in [("http", 2.0), ("timeout", 2.0), ("protocol", 4.0), ("gone", 1.0)] {
        let name = format!("hark_tls_handshakes_failed_total{{reason=\"{reason}\"}}");
        until_ok(|| {
            let counted = metric(&page(), &name);
            if counted == Some(count) { Ok(()) } else { Err(format!("{name}: {counted:?}")) }
        });
    }
    server.stop();
}

#[test]
fn connections_are_served_to_their_end_after_a_takeover() {
    let (authority, place, old) = start("tls-takeover", "");
    let mut before = authority.connect(&old.address, "relay.example").unwrap().upgrade();
    before.publish(&note(1, now_s() - 1, "before"));
    authority.write(&place, "new.example");
    let mut new = place.take_over();
    assert_eq!(new.address, old.address);
    before.publish(&note(1, now_s(), "after"));
    let mut later = authority.connect(&new.address, "new.example").unwrap().upgrade();
    assert_eq!(contents(&later.ask(&json!({}))), ["after", "before"]);
    drop(before);
    new.stop();
}

#[test]
fn rest_has_tls_if_it_is_wished_for() {
    for (rest, scheme) in [("", "http"), ("rest = true\n", "https")] {
        let settings = format!("{rest}[waku]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = []\n");
        let (authority, place) =
            (Authority::new(), Place::new("tls-rest", &format!("{SETTINGS}{settings}")));
        authority.write(&place, "relay.example");
        let printed = format!("waku rest on {scheme}://");
        let is_open = |doors: &hark_testkit::server::Doors| {
            !doors.waku_rest.is_empty()
                || doors.others.iter().any(|line| line.starts_with(&printed))
        };
        let mut server = Server::start_with_doors(&mut place.serving(&["--unlimited"]), is_open);
        let mut others = server.doors.others.iter();
        let secure = others.find_map(|line| line.strip_prefix(&printed));
        match secure {
            Some(address) => {
                let connection = authority.connect(address, "relay.example").unwrap();
                assert_eq!(connection.get(address, "/openapi.json").status, 200);
                assert_eq!(get(address, "/openapi.json").status, 400);
            }
            None => assert_eq!(get(&server.doors.waku_rest, "/openapi.json").status, 200),
        }
        assert_eq!(secure.is_some(), scheme == "https");
        server.stop();
    }
}
