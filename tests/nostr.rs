//! Real clients against the real binary: what their users do must work, and what comes back must be
//! what went in.

use std::borrow::Cow;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nostr_sdk::prelude::{
    Client, ClientMessage, Event, EventBuilder, Filter, Keys, Kind, RelayMessage,
    RelayPoolNotification, SubscriptionId, Tag, Timestamp,
};
use tokio::sync::broadcast::Receiver;

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A relay on a port and in a directory of its own; it ends with the test.
struct Relay {
    process: Child,
    url: String,
    data: PathBuf,
}

impl Relay {
    fn start(test: &str) -> Self {
        let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nostr").join(test);
        let _ = std::fs::remove_dir_all(&data);
        std::fs::create_dir_all(&data).expect("a temporary directory");
        let mut process = Command::new(env!("CARGO_BIN_EXE_hark"))
            .args(["serve", "--listen", "127.0.0.1:0", "--unlimited", "--data"])
            .arg(&data)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut first = String::new();
        let mut lines = BufReader::new(process.stdout.take().expect("piped"));
        lines.read_line(&mut first).expect("a first line");
        let url = first.trim().strip_prefix("listening on ").unwrap_or_default().to_owned();
        assert!(url.starts_with("ws://127.0.0.1:"), "the first line is {first:?}");
        Self { process, url, data }
    }

    async fn client(&self) -> Client {
        let client = Client::default();
        client.add_relay(&self.url).await.expect("an address");
        client.connect().await;
        client.wait_for_connection(PATIENCE).await;
        client
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
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

/// The SDK has no call for COUNT, so it is sent as a message.
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
    let relay = Relay::start("nostr-sdk");
    let work = async {
        let keys = Keys::generate();
        let publisher = relay.client().await;
        let start = Timestamp::now().as_secs() - 100;
        let odd = "quotes \" \\ / \n\r\t \u{8}\u{c} \u{0}\u{1f} \u{7f} \u{2028} é 🤙 \u{ffff}";
        let notes = ["first", odd, "third"].into_iter().zip(start..);
        let notes: Vec<Event> = notes.map(|(text, at)| note(&keys, at, text)).collect();
        for event in &notes {
            publish(&publisher, event).await;
        }

        // Another client, so that everything comes from the relay.
        let reader = relay.client().await;
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
        let heard = RelayMessage::Event {
            subscription_id: Cow::Borrowed(&id),
            event: Cow::Borrowed(&late),
        };
        while message_of(&mut notifications).await != heard {}

        assert_eq!(count(&reader, filter.clone()).await, 4);
        assert_eq!(count(&reader, filter.until(Timestamp::from(start))).await, 1);
        publisher.shutdown().await;
        reader.shutdown().await;
    };
    tokio::time::timeout(PATIENCE, work).await.expect("it takes a second");
}

#[test]
fn nostr_tools_publishes_subscribes_and_counts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("js");
    assert!(
        folder.join("node_modules").is_dir()
            && Command::new("node").arg("--version").output().is_ok(),
        "nostr-tools from npm is not here: run scripts/test, which installs it, or `npm ci` in {}",
        folder.display()
    );
    let relay = Relay::start("nostr-tools");
    let script = folder.join("nostr-tools.mjs");
    let output = Command::new("node").arg(script).arg(&relay.url).output().expect("node runs");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");

    // What the script says it has published is what `hark query` finds beside the server.
    let said: serde_json::Value = serde_json::from_str(&out).expect("one line of JSON");
    let author = said["author"].as_str().expect("a key");
    let filter = format!(r#"{{"kinds":[1],"authors":["{author}"]}}"#);
    let query = Command::new(env!("CARGO_BIN_EXE_hark"))
        .args(["query", &filter, "--data"])
        .arg(&relay.data)
        .output()
        .expect("the binary runs");
    let found: Vec<serde_json::Value> = String::from_utf8_lossy(&query.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect();
    let ids: Vec<&str> = found.iter().filter_map(|event| event["id"].as_str()).collect();
    let all = said["ids"].as_array().expect("ids");
    let kept = [&all[3], &all[2], &all[0]].map(|id| id.as_str().expect("an id"));
    assert_eq!(ids, kept, "all but the one that was deleted, newest first");
}
