//! Bounds of the total memory that many connections use for questions and for incomplete messages.

use hark_testkit::websocket::masked;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::kit::Relay;
use crate::operators::scrape;
use crate::outboxes::until;
use crate::wire::{answer, status, upgrade};

/// At most this many questions of about fifty bytes each fit into a hundred kilobytes.
const FIT: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn questions_of_all_connections_of_an_address_share_its_part_of_the_memory() {
    let relay = Relay::start(|config| {
        config.proxies.trusted.clear();
        config.limits.questions_bytes_max = 400_000;
    })
    .await;
    let (mut open, mut refused) = (0, None);
    let mut clients = [relay.client().await, relay.client().await];
    'all: for client in &mut clients {
        for n in 0..FIT / 2 {
            client.send_text(json!(["REQ", n.to_string(), { "kinds": [1] }])).await;
            let received = client.receive().await;
            if received[0] == "CLOSED" {
                refused = Some(received);
                break 'all;
            }
            open += 1;
        }
    }
    let refused = refused.expect("there are bounds");
    assert!(open > 10, "{open}");
    assert_eq!(
        refused[2],
        "rate-limited: open questions take all the memory there is for them; close some, or try \
         again later"
    );
    assert!(scrape(&relay).await["hark_questions_bytes"] <= 100_000.0);
    let [mut first, mut second] = clients;
    second.send_text(json!(["COUNT", "c", { "kinds": [1] }])).await;
    assert_eq!(second.receive().await[0], "CLOSED", "a COUNT takes memory, too");
    first.send_text(json!(["CLOSE", "0"])).await;
    first.send_text(json!(["CLOSE", "1"])).await;
    first.send_text(json!(["REQ", "again", { "kinds": [1] }])).await;
    assert_eq!(first.receive().await[0], "EOSE", "there is room again");
    drop((first, second));
    until(&relay, "hark_questions_bytes", |bytes| bytes == 0.0).await;
    relay.stop().await;
}

/// Connects a client that sends most of a message of 100 kB and then nothing more.
async fn half(relay: &Relay) -> TcpStream {
    let (head, mut stream) = upgrade(relay, "").await;
    assert_eq!(status(&head), 101);
    assert_eq!(answer(&mut stream).await.0, 0x81, "the challenge");
    stream.write_all(&masked(0x81, &vec![b' '; 100_000])[..90_000]).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_do_not_come_whole_share_memory_and_one_too_many_gets_a_reason() {
    let relay = Relay::start(|config| {
        config.proxies.trusted.clear();
        config.limits.inbound_bytes_max = 1_200_000;
    })
    .await;
    let two = [half(&relay).await, half(&relay).await];
    until(&relay, "hark_inbound_bytes", |bytes| bytes > 170_000.0).await;
    let mut third = half(&relay).await;
    let (first, payload) = answer(&mut third).await;
    assert_eq!((first, &payload[..2]), (0x88, &1013u16.to_be_bytes()[..]));
    assert_eq!(&payload[2..], b"too many messages are under way; try again later");
    assert!(scrape(&relay).await["hark_inbound_bytes"] <= 300_000.0);
    // A client that sends complete messages is served as before.
    let mut other = relay.client().await;
    assert!(other.find_now(&[json!({ "kinds": [1] })]).await.is_empty());
    drop(two);
    until(&relay, "hark_inbound_bytes", |bytes| bytes == 0.0).await;
    relay.stop().await;
}
