//! The addresses on which a relay listens.

use std::net::SocketAddr;
use std::path::Path;

use hark_server::ListenAddress;
use hark_server::ranges::LOOPBACK;
use hark_testkit::folder::Folder;
use hark_testkit::nostr::client::Client;
use hark_testkit::server::free_port;
use hark_testkit::skipped::skip;
use hark_testkit::websocket::upgrade_request;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use crate::kit::{NOW_S, Relay, http, http_as};
use crate::wire::status;

/// Whether this machine has an IPv6 address.
fn has_ipv6() -> bool {
    let bound = std::net::TcpListener::bind("[::1]:0");
    if bound.is_err() {
        skip("this machine has no IPv6");
    }
    bound.is_ok()
}

/// Reads addresses to listen on.
fn listen<const N: usize>(texts: [&str; N]) -> Vec<ListenAddress> {
    texts.map(|text| text.parse().unwrap()).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_address_of_a_name_is_served() {
    if !has_ipv6() {
        return;
    }
    let name = ListenAddress::Host("localhost".to_owned(), 0);
    let resolved = name.resolve().unwrap();
    let relay = Relay::start(|config| config.relay.listen = vec![name]).await;
    assert_eq!(relay.urls.len(), resolved.len(), "{:?}", relay.urls);
    for url in &relay.urls {
        assert_eq!(http(url, "/healthz", "").await.0, 200, "{url}");
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_addresses_are_one_door_with_common_bounds() {
    let relay = Relay::start(|config| {
        // An address that is named twice is one address.
        config.relay.listen = listen(["127.0.0.1:0", "127.0.0.2:0", "127.0.0.1:0"]);
        config.limits.connections_max = 1;
    })
    .await;
    let [one, other] = relay.urls.as_slice() else { panic!("{:?}", relay.urls) };
    assert!(one.starts_with("ws://127.0.0.1:") && other.starts_with("ws://127.0.0.2:"));
    let mut client = Client::connect(one, NOW_S).await;
    let (status, reason) = http(other, "/", "").await;
    assert!(status == 503 && reason.contains("as many connections as it takes"), "{reason}");
    assert_eq!(client.count(&[json!({})]).await, 0);
    let urls = relay.urls.clone();
    drop(client);
    relay.stop().await;
    for url in urls {
        let addr: SocketAddr = url.strip_prefix("ws://").unwrap().parse().unwrap();
        assert!(TcpStream::connect(addr).await.is_err(), "{addr} is still open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_addresses_of_ipv4_and_of_ipv6_have_one_port() {
    if !has_ipv6() {
        return;
    }
    let port = free_port();
    let (ipv4, ipv6) = (format!("0.0.0.0:{port}"), format!("[::]:{port}"));
    for texts in [vec![&*ipv4, &*ipv6], vec![&*ipv6, &*ipv4], vec![&*ipv6]] {
        let texts: Vec<ListenAddress> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let relay = Relay::start(|config| config.relay.listen = texts).await;
        for addr in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
            let answer = http_as(addr.parse().unwrap(), &addr, "/healthz", "").await;
            assert_eq!(answer.0, 200, "{addr} of {:?}", relay.urls);
        }
        relay.stop().await;
    }
}

/// Requests a WebSocket at a Unix socket. Returns the status and the connection.
async fn upgrade_at(path: &Path, header: &str) -> (u16, UnixStream) {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let request = upgrade_request("relay.example", header);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("an answer"));
    }
    (status(&String::from_utf8_lossy(&head)), stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_at_a_unix_socket_names_its_clients_if_it_is_trusted() {
    let folder = Folder::new("relay-unix");
    for is_trusted in [true, false] {
        let path = folder.join("relay.sock");
        let address = format!("unix:{}", path.display());
        let relay = Relay::start(|config| {
            config.relay.listen = listen([&address, "127.0.0.1:0"]);
            config.proxies.trusted = if is_trusted { LOOPBACK.to_vec() } else { Vec::new() };
            config.addresses.deny = vec!["192.0.2.0/24".parse().unwrap()];
            config.limits.connections_per_address_max = 2;
        })
        .await;
        assert_eq!(relay.url, address);
        // Without trust, clients at the socket share the bounds of one address, and the header has
        // no effect.
        let mut clients = Vec::new();
        for client in ["203.0.113.1", if is_trusted { "203.0.113.2" } else { "192.0.2.2" }] {
            let header = format!("X-Forwarded-For: {client}\r\n");
            let (status, stream) = upgrade_at(&path, &header).await;
            assert_eq!(status, 101, "client {client}");
            clients.push(stream);
        }
        let (third, _) = upgrade_at(&path, "X-Forwarded-For: 203.0.113.3\r\n").await;
        assert_eq!(third, if is_trusted { 101 } else { 429 });
        let (denied, _) = upgrade_at(&path, "X-Forwarded-For: 192.0.2.1\r\n").await;
        assert_eq!(denied, if is_trusted { 403 } else { 429 });
        drop(clients);
        for path in ["/", "/counts", "/healthz"] {
            let (status, _) = http(&relay.urls[1], path, "X-Forwarded-For: 192.0.2.1").await;
            assert_eq!(status == 403, is_trusted, "{path} for a denied client: {status}");
            let (status, _) = http(&relay.urls[1], path, "X-Forwarded-For: 192.0.1.1").await;
            assert_eq!(status, 200, "{path} for another client");
        }
        relay.stop().await;
        assert!(!path.exists(), "the file is removed at the end");
    }
}
