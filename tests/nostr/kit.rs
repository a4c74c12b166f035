//! Clients of the binary, which runs as the server of one test.

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;

use crate::served::Relay;

/// A client that sees every message.
pub(super) async fn connect(relay: &Relay) -> Client {
    Client::connect(&relay.url(), now_s()).await
}
