//! The addresses on which a relay listens.

use std::net::SocketAddr;

use hark_server::ListenAddress;
use hark_testkit::nostr::client::Client;
use hark_testkit::server::free_port;
use hark_testkit::skipped::skip;
use serde_json::json;
use tokio::net::TcpStream;

use crate::kit::{NOW_S, Relay, http, http_as};

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
    let (status, reason) = http(other, "/healthz", "").await;
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
