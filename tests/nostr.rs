//! Real clients against the real binary: the actions of their users must work, and events must be
//! returned as published. The modules test each NIP's requirements for a relay, with a client that
//! sees every message.

use std::borrow::Cow;
use std::path::Path;
use std::process::Command;

use hark_testkit::wait::PATIENCE;
use nostr_sdk::prelude::{
    Client, ClientMessage, Event, EventBuilder, EventDeletionRequest, Filter, Keys, Kind,
    RelayMessage, RelayPoolNotification, SubscriptionId, Tag, Timestamp,
};
use tokio::sync::broadcast::Receiver;

use crate::served::{Relay, hark};

mod answers;
mod auth;
mod comparisons;
mod deletion;
mod gate;
mod kit;
mod nip01;
mod plugin;
mod reading;
mod search;

/// Returns a client without a key. The client must not try to authenticate: after a failed
/// authentication, the SDK aborts its fetch.
async fn sdk(relay: &Relay) -> Client {
    let client = Client::default();
    client.automatic_authentication(false);
    connected(relay, client).await
}

async fn sdk_as(relay: &Relay, keys: Keys) -> Client {
    connected(relay, Client::new(keys)).await
}

async fn connected(relay: &Relay, client: Client) -> Client {
    client.add_relay(relay.url()).await.expect("an address");
    client.connect().await;
    client.wait_for_connection(PATIENCE).await;
    client
}

fn note(keys: &Keys, at: u64, content: &str) -> Event {
    EventBuilder::new(Kind::TextNote, content)
        .tags([Tag::hashtag("hark")])
        .custom_created_at(Timestamp::from(at))
        .sign_with_keys(keys)
        .expect("a signature")
}

async fn publish(client: &Client, event: &Event) {
    let sent = client.send_event(event).await.expect("sent");
    assert!(sent.failed.is_empty(), "{:?}", sent.failed);
    assert_eq!(sent.success.len(), 1);
}

/// Counts events. The SDK has no call for COUNT, so COUNT is sent as a raw message.
async fn count(client: &Client, filter: Filter) -> usize {
    let mut notifications = client.notifications();
    let id = SubscriptionId::generate();
    let urls: Vec<_> = client.relays().await.into_keys().collect();
    let message = ClientMessage::count(id.clone(), filter);
    client.send_msg_to(urls, message).await.expect("sent");
    loop {
        if let RelayMessage::Count { subscription_id, count } = message_of(&mut notifications).await
            && *subscription_id == id
        {
            return count;
        }
    }
}

/// The next message of the relay.
async fn message_of(from: &mut Receiver<RelayPoolNotification>) -> RelayMessage<'static> {
    loop {
        if let RelayPoolNotification::Message { message, .. } = from.recv().await.expect("more") {
            return message;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nostr_sdk_publishes_subscribes_and_counts() {
    let relay = Relay::start("nostr-sdk", "");
    let work = async {
        let keys = Keys::generate();
        let publisher = sdk(&relay).await;
        let start = Timestamp::now().as_secs() - 100;
        let odd = "quotes \" \\ / \n\r\t \u{8}\u{c} \u{0}\u{1f} \u{7f} \u{2028} é 🤙 \u{ffff}";
        let notes = ["first", odd, "third"].into_iter().zip(start..);
        let notes: Vec<Event> = notes.map(|(text, at)| note(&keys, at, text)).collect();
        for event in &notes {
            publish(&publisher, event).await;
        }

        // A second client reads, so that all events come from the relay and not from a local cache.
        let reader = sdk(&relay).await;
        let filter = Filter::new().author(keys.public_key()).kind(Kind::TextNote).hashtag("hark");
        let stored = reader.fetch_events(filter.clone(), PATIENCE).await.expect("events");
        let mut expected = notes.clone();
        expected.reverse();
        assert_eq!(stored.into_iter().collect::<Vec<_>>(), expected, "newest first, all equal");
        let two = reader.fetch_events(filter.clone().limit(2), PATIENCE).await;
        assert_eq!(two.expect("events").into_iter().collect::<Vec<_>>(), expected[..2]);

        let mut notifications = reader.notifications();
        let live = reader.subscribe(filter.clone().limit(0), None).await.expect("a subscription");
        let id = live.val;
        while message_of(&mut notifications).await
            != RelayMessage::EndOfStoredEvents(Cow::Borrowed(&id))
        {}
        let late = note(&keys, start + 3, "live");
        publish(&publisher, &late).await;
        let received = RelayMessage::Event {
            subscription_id: Cow::Borrowed(&id),
            event: Cow::Borrowed(&late),
        };
        while message_of(&mut notifications).await != received {}

        assert_eq!(count(&reader, filter.clone()).await, 4);
        assert_eq!(count(&reader, filter.until(Timestamp::from(start))).await, 1);
        publisher.shutdown().await;
        reader.shutdown().await;
    };
    tokio::time::timeout(PATIENCE, work).await.expect("it takes a second");
}

/// The SDK authenticates by itself when the relay requires authentication.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nostr_sdk_authenticates_deletes_and_reads_wraps_as_recipient_only() {
    let relay = Relay::start("nostr-sdk-auth", "");
    let work = async {
        let (recipient, stranger) = (Keys::generate(), Keys::generate());
        let wrap = EventBuilder::new(Kind::GiftWrap, "sealed")
            .tag(Tag::public_key(recipient.public_key()))
            .sign_with_keys(&Keys::generate())
            .expect("a signature");
        let sender = sdk(&relay).await;
        publish(&sender, &wrap).await;
        let filter = Filter::new().kind(Kind::GiftWrap).pubkey(recipient.public_key());
        let by_id = Filter::new().id(wrap.id);

        let mut notifications = sender.notifications();
        let asked = sender.subscribe(filter.clone(), None).await.expect("a subscription");
        let reason = loop {
            if let RelayMessage::Closed { subscription_id, message } =
                message_of(&mut notifications).await
                && *subscription_id == asked.val
            {
                break message;
            }
        };
        assert!(reason.starts_with("auth-required: "), "{reason}");

        let (stranger, reader) =
            (sdk_as(&relay, stranger).await, sdk_as(&relay, recipient.clone()).await);
        let all = async |client: &Client, filter: &Filter| {
            let found = client.fetch_events(filter.clone(), PATIENCE).await.expect("events");
            found.into_iter().collect::<Vec<_>>()
        };
        for filter in [&filter, &by_id] {
            assert!(all(&stranger, filter).await.is_empty());
            assert_eq!(all(&reader, filter).await, std::slice::from_ref(&wrap));
            assert_eq!(count(&reader, filter.clone()).await, 1);
        }
        assert_eq!(count(&stranger, by_id.clone()).await, 0);

        let protected = EventBuilder::text_note("mine").tag(Tag::protected());
        let protected = protected.sign_with_keys(&recipient).expect("a signature");
        let refused = stranger.send_event(&protected).await.expect("sent");
        assert!(refused.success.is_empty(), "{refused:?}");
        publish(&reader, &protected).await;

        let deletion = EventBuilder::delete(EventDeletionRequest::new().id(wrap.id));
        publish(&reader, &deletion.sign_with_keys(&recipient).expect("a signature")).await;
        assert!(all(&reader, &by_id).await.is_empty());
        let again = sender.send_event(&wrap).await.expect("sent");
        assert!(again.success.is_empty(), "{again:?}");
        for client in [sender, stranger, reader] {
            client.shutdown().await;
        }
    };
    tokio::time::timeout(PATIENCE, work).await.expect("it takes a second");
}

/// Runs a script with nostr-tools, which must succeed, and returns its output.
pub(crate) fn nostr_tools(script: &str, relay: &Relay) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("js");
    assert!(
        folder.join("node_modules").is_dir()
            && Command::new("node").arg("--version").output().is_ok(),
        "nostr-tools from npm is not here: run scripts/test, which installs it, or `npm ci` in {}",
        folder.display()
    );
    let script = folder.join(script);
    let output = Command::new("node").arg(script).arg(relay.url()).output().expect("node runs");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    out
}

#[test]
fn nostr_tools_authenticates_deletes_and_reads_wraps_as_recipient_only() {
    nostr_tools("nostr-tools-auth.mjs", &Relay::start("nostr-tools-auth", ""));
}

#[test]
fn nostr_tools_publishes_subscribes_and_counts() {
    let relay = Relay::start("nostr-tools", "");
    let out = nostr_tools("nostr-tools.mjs", &relay);

    // `hark query`, beside the server, finds the events that the script reports as published.
    let said: serde_json::Value = serde_json::from_str(&out).expect("one line of JSON");
    let author = said["author"].as_str().expect("a key");
    let filter = format!(r#"{{"kinds":[1],"authors":["{author}"]}}"#);
    let query =
        hark(&relay.place.data()).args(["query", &filter]).output().expect("the binary runs");
    let found: Vec<serde_json::Value> = String::from_utf8_lossy(&query.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect();
    let ids: Vec<&str> = found.iter().filter_map(|event| event["id"].as_str()).collect();
    let all = said["ids"].as_array().expect("ids");
    let kept = [&all[3], &all[2], &all[0]].map(|id| id.as_str().expect("an id"));
    assert_eq!(ids, kept, "all but the one that was deleted, newest first");
}
