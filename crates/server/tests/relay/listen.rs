//! The addresses on which a relay listens.

use hark_server::ListenAddress;
use hark_testkit::skipped::skip;

use crate::kit::{Relay, http};

#[tokio::test(flavor = "multi_thread")]
async fn every_address_of_a_name_is_served() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip("this machine has no IPv6");
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
