//! Secure WebSockets of the Waku node, with the certificate of the server.

use hark_testkit::folder::Folder;
use hark_testkit::http::HttpRequest;
use hark_testkit::postgres::Cluster;
use hark_testkit::program::Program;
use hark_testkit::server::free_port;
use hark_testkit::wait::until;
use serde_json::{Value, json};

use super::clients::js_waku_trusting;
use super::{LIMITED, Node, folder, hark};
use crate::tls::Authority;

/// A directory with a certificate for a name.
struct Secured {
    authority: Authority,
    data: Folder,
}

impl Secured {
    fn new(name: &str, host: &str) -> Self {
        let secured = Self { authority: Authority::new(), data: folder(name) };
        secured.write(host);
        secured.data.file("authority.pem", secured.authority.pem());
        secured
    }

    /// Replaces the certificate by a certificate for this name.
    fn write(&self, host: &str) {
        let (certificate, key) = self.authority.sign(host);
        self.data.file("node.pem", certificate);
        self.data.file("node.key", key);
    }

    /// Starts a node that listens on these addresses.
    fn start(&self, listen: &str, args: &[&str], settings: &[(&str, &str)]) -> Node {
        let path = |name: &str| self.data.join(name).display().to_string();
        let (certificate, key) = (path("node.pem"), path("node.key"));
        let mut all = vec![
            ("HARK_TLS_CERTIFICATE", certificate.as_str()),
            ("HARK_TLS_KEY", &key),
            // The relay is behind a proxy.
            ("HARK_TLS_RELAY", "false"),
            ("listen", listen),
        ];
        all.extend_from_slice(settings);
        Node::with(self.data.clone(), args, &all)
    }

    fn hark(&self, args: &[&str]) -> Program {
        let mut command = hark(&self.data);
        command.args(args);
        command
    }

    /// Returns the addresses for browsers according to `hark waku`, and the reason if there are none.
    fn web(&self) -> Value {
        let text = self.hark(&["waku", "--json"]).run_with(b"").text();
        let report: Value = serde_json::from_str(&text).expect("JSON");
        report["web"].clone()
    }
}

/// Returns the address of the secure WebSocket, and its host and port on this machine.
fn secure(node: &Node) -> (&str, String) {
    let address = node.peers.iter().find(|addr| addr.contains("/dns4/")).expect("an address");
    let port = address.split('/').skip_while(|part| *part != "tcp").nth(1).expect("a port");
    (address, format!("127.0.0.1:{port}"))
}

const LISTEN: &str = "/ip4/127.0.0.1/tcp/0,/ip4/127.0.0.1/tcp/0/wss";

#[test]
fn js_waku_lives_on_a_secure_web_socket_of_this_node_alone() {
    let database = Cluster::shared().database("waku secure");
    for (store, form) in [(None, "wss"), (Some(database.url.as_str()), "tls/ws")] {
        let secured = Secured::new("js-waku-secure", "localhost");
        let listen = format!("/ip4/127.0.0.1/tcp/0,/ip4/127.0.0.1/tcp/0/{form}");
        let args = store.map_or_else(Vec::new, |store| vec!["--store", store]);
        let mut node =
            secured.start(&listen, &args, &[("cluster", "2"), ("light_pushes", "[0, 0]")]);
        let (address, _) = secure(&node);
        let id = address.rsplit('/').next().expect("an id");
        assert!(address.starts_with("/dns4/localhost/tcp/"), "{address}");
        assert!(address.ends_with(&format!("/{form}/p2p/{id}")), "{address}");
        let listed = node.get("/debug/v1/info")["listenAddresses"].clone();
        assert_eq!(listed, json!(node.peers));
        assert_eq!(secured.web(), json!({ "addresses": [address], "reason": null }));
        let file = secured.data.join("authority.pem");
        let said = js_waku_trusting("light-client.mjs", &[address, "2", "8", "16"], Some(&file));
        assert_eq!((&said["ok"], &said["health"]), (&json!(true), &json!("MinimallyHealthy")));
        println!("{said}");
        // Identify has the name of the certificate, and not the address of the listener.
        let announced: Vec<&str> = said["addresses"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_str)
            .filter(|addr| addr.contains("/ws") || addr.contains("/wss"))
            .map(|addr| addr.split("/p2p/").next().unwrap_or(addr))
            .collect();
        assert_eq!(announced, [address.split("/p2p/").next().expect("an address")], "{said}");
        node.stop();
    }
}

#[test]
fn secure_web_sockets_have_the_limits_and_bans_of_all_peers() {
    let secured = Secured::new("secure-limits", "localhost");
    let limits = [("connections_per_address_max", "2")];
    let mut node = secured.start(LISTEN, &[LIMITED], &limits);
    let (_, at) = secure(&node);
    let connect = || secured.authority.connect(&at, "localhost");
    // Two clients open TLS, and send nothing. A third is closed before its handshake.
    let mut silent = [connect().expect("connects"), connect().expect("connects")];
    assert!(connect().is_err());
    for silent in &mut silent {
        silent.wait_until_closed();
    }
    until("there is room again", || connect().is_ok());
    // A client without TLS is told.
    until("a request without TLS is answered", || {
        HttpRequest::new("GET", "/").try_send(&at).is_ok_and(|reply| reply.status == 400)
    });
    secured.hark(&["ban", "127.0.0.1"]).run_with(b"").text();
    assert!(connect().is_err());
    secured.hark(&["unban", "127.0.0.1"]).run_with(b"").text();
    until("the ban has ended", || connect().is_ok());
    node.stop();
}

#[test]
fn a_new_certificate_is_used_and_its_names_are_announced() {
    let secured = Secured::new("secure-renewed", "localhost");
    let mut node = secured.start(LISTEN, &[], &[]);
    let (address, at) = secure(&node);
    let mut before = secured.authority.connect(&at, "localhost").expect("connects");
    secured.write("node.localhost");
    assert!(
        secured.hark(&["reload"]).run_with(b"").text().contains("now with a certificate until ")
    );
    drop(secured.authority.connect(&at, "node.localhost").expect("connects"));
    assert!(secured.authority.connect(&at, "localhost").is_err());
    let renamed = address.replace("/localhost/", "/node.localhost/");
    until("the new name is announced", || {
        node.get("/debug/v1/info")["listenAddresses"] == json!([node.peers[0], renamed])
    });
    // A certificate for another machine: no name leads here, and `hark waku` tells why.
    secured.write("node.example");
    secured.hark(&["reload"]).run_with(b"").text();
    until("no address is announced for browsers", || {
        let web = secured.web();
        web["addresses"] == json!([])
            && web["reason"].as_str().is_some_and(|why| why.contains("loopback addresses only"))
    });
    before.wait_until_closed();
    node.stop();
}

#[test]
fn a_node_that_takes_over_listens_on_the_same_secure_web_socket() {
    let secured = Secured::new("secure-takeover", "localhost");
    let ports = [free_port(), free_port(), free_port(), free_port()];
    let listen = format!("/ip4/127.0.0.1/tcp/{},/ip4/127.0.0.1/tcp/{}/wss", ports[0], ports[1]);
    let (relay, rest) = (format!("127.0.0.1:{}", ports[2]), format!("127.0.0.1:{}", ports[3]));
    let settings = [("rest", rest.as_str())];
    let old = secured.start(&listen, &["--listen", &relay], &settings);
    let (_, at) = secure(&old);
    drop(secured.authority.connect(&at, "localhost").expect("connects"));
    secured.write("new.localhost");
    let mut new = secured.start(&listen, &["--listen", &relay, "--takeover"], &settings);
    assert_eq!(new.peers[1], old.peers[1].replace("/localhost/", "/new.localhost/"));
    until("the new process listens", || secured.authority.connect(&at, "new.localhost").is_ok());
    new.stop();
}

#[test]
fn a_secure_web_socket_without_a_certificate_is_refused() {
    let data = folder("secure-refused");
    let mut command = hark(&data);
    command.arg("serve").env("HARK_WAKU_SERVE", "true");
    command.env("HARK_WAKU_LISTEN", "/ip4/127.0.0.1/tcp/0/wss");
    let refusal = command.run_with(b"").refused();
    assert!(refusal.contains("needs a certificate"), "{refusal}");
}
