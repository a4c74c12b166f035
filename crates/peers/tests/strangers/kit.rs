//! A relay that follows a script, and an archive in memory.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Query, Record, Store, Write};
use hark_networks::nostr::Nostr;
use hark_networks::nostr::rules::NostrRules;
use hark_networks::{Network as _, ReadOptions};
use hark_peers::{
    ClientOptions, Direction, EventIntake, EventWriter, IntakeOptions, LocalEnd, LocalFeed,
    PeerClient, PeerError, RelayAddress, RelayStream, StreamEnds, StreamOptions, StreamStatus,
    SyncMeter, SyncOptions, SyncReport, SyncTotals, WriteOutcome, sync,
};
use hark_testkit::nostr;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// This archive, in which no events are hidden.
fn local_end(store: &Arc<MemoryStore>) -> LocalEnd {
    LocalEnd { network: &Nostr, store: Arc::clone(store) as _, hidden: None }
}

/// A signed event.
pub(crate) fn signed(n: u64, created_at: u64, kind: u16) -> Value {
    nostr::event(1 + (n % 5) as u8, created_at, kind, &[], &format!("event {n}"))
}

/// A signed note that only its author may publish (NIP-70).
pub(crate) fn protected(n: u64, created_at: u64) -> Value {
    nostr::event(1 + (n % 5) as u8, created_at, 1, &[&["-"]], &format!("event {n}"))
}

/// A signed note.
pub(crate) fn event(n: u64, created_at: u64) -> Value {
    signed(n, created_at, 1)
}

/// Starts a relay that answers each message by the script. Returns the relay's address.
pub(crate) async fn play(
    script: impl Fn(&Value) -> Vec<String> + Send + Sync + 'static,
) -> RelayAddress {
    play_on(false, None, script).await
}

/// Like [`play`], with TCP_NODELAY. Without this option, the second message of an answer would wait
/// some 40 ms for the acknowledgement of the first message.
pub(crate) async fn play_quickly(
    script: impl Fn(&Value) -> Vec<String> + Send + Sync + 'static,
) -> RelayAddress {
    play_on(true, None, script).await
}

/// Like [`play`], with a limit for messages: a longer message ends the connection.
pub(crate) async fn play_bounded(
    message_bytes_max: usize,
    script: impl Fn(&Value) -> Vec<String> + Send + Sync + 'static,
) -> RelayAddress {
    play_on(false, Some(message_bytes_max), script).await
}

async fn play_on(
    is_quick: bool,
    message_bytes_max: Option<usize>,
    script: impl Fn(&Value) -> Vec<String> + Send + Sync + 'static,
) -> RelayAddress {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ws://{}", listener.local_addr().unwrap());
    let script = Arc::new(script);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let script = Arc::clone(&script);
            stream.set_nodelay(is_quick).unwrap();
            tokio::spawn(async move {
                let config = WebSocketConfig::default().max_message_size(message_bytes_max);
                let socket = tokio_tungstenite::accept_async_with_config(stream, Some(config));
                let mut socket = socket.await.unwrap();
                while let Some(Ok(message)) = socket.next().await {
                    let Message::Text(text) = message else { continue };
                    for answer in script(&serde_json::from_str(&text).unwrap()) {
                        // The client may have disconnected.
                        if socket.send(Message::text(answer)).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    address.parse().unwrap()
}

/// Starts a relay that sends `first`, and then `then` again and again. Returns the relay's address.
pub(crate) async fn pour(first: Message, then: Message) -> RelayAddress {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ws://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let mut sent = socket.send(first).await;
        while sent.is_ok() {
            sent = socket.send(then.clone()).await;
        }
    });
    address.parse().unwrap()
}

/// An archive in memory.
pub(crate) struct Here {
    store: Arc<MemoryStore>,
    intake: Mutex<Option<EventIntake>>,
    meter: Arc<SyncMeter>,
    pub(crate) client: ClientOptions,
    pub(crate) query: Query,
}

struct Writer(Arc<MemoryStore>);

impl EventWriter for Writer {
    fn put(&mut self, records: Vec<Box<[u8]>>) -> Result<Vec<WriteOutcome>, String> {
        let writes: Vec<Write> = records.into_iter().map(Write::Put).collect();
        let done = self.0.commit(&writes).map_err(|error| error.to_string())?;
        Ok(done.outcomes.into_iter().map(Ok).collect())
    }
}

fn read() -> ReadOptions {
    ReadOptions { record_bytes_max: 1 << 17, now_s: 1, ..ReadOptions::default() }
}

impl Here {
    pub(crate) fn with(events: &[Value]) -> Self {
        let store = Arc::new(MemoryStore::new(NostrRules));
        let mut reader = Nostr.lines().reader(&read());
        for event in events {
            let mut record = Vec::new();
            reader.read(event.to_string().as_bytes(), &|_| false, &mut record).unwrap();
            store.commit(&[Write::Put(record.into())]).unwrap();
        }
        let options = IntakeOptions {
            network: &Nostr,
            read: read(),
            known: Some(Arc::clone(&store) as _),
            rules: Arc::new(|_, _, _| None),
            requests: Arc::new(|_| false),
            batch_records: 64,
            feed: None,
            stored: None,
        };
        let intake = EventIntake::start(options, Box::new(Writer(Arc::clone(&store)))).unwrap();
        let client =
            ClientOptions { patience: Duration::from_millis(700), ..ClientOptions::default() };
        let (intake, meter) = (Mutex::new(Some(intake)), Arc::default());
        Self { store, intake, meter, client, query: Query::default() }
    }

    pub(crate) async fn sync(
        &self,
        address: &RelayAddress,
        direction: Direction,
    ) -> Result<SyncReport, PeerError> {
        let client = PeerClient::connect(address, self.client.clone()).await?;
        let local = local_end(&self.store);
        let options = SyncOptions::new(direction, self.query.clone(), vec![4]);
        let queue = self.intake.lock().as_ref().expect("is open").queue();
        sync(&client, &options, &local, queue, &self.meter).await
    }

    /// A stream that receives events from a relay, and its state.
    pub(crate) fn stream(&self, address: &RelayAddress) -> (RelayStream, Arc<StreamStatus>) {
        let store = Arc::clone(&self.store);
        let ends = StreamEnds {
            network: &Nostr,
            open: Arc::new(move || Ok(local_end(&store))),
            feed: Arc::<LocalFeed>::default(),
            intake: self.intake.lock().as_ref().expect("is open").queue(),
            waits: Arc::default(),
        };
        let options = StreamOptions {
            direction: Direction::Down,
            query: self.query.clone(),
            private_kinds: vec![4],
            send_protected: false,
            catch_up_s: None,
            events_per_s_max: None,
            plugin_down: None,
            plugin_up: None,
            client: self.client.clone(),
        };
        let status = Arc::<StreamStatus>::default();
        let address = address.clone();
        (RelayStream { address, options, ends, status: Arc::clone(&status) }, status)
    }

    /// Publishes events of the archive, in this order, to the streams that send the events.
    pub(crate) fn publish(feed: &LocalFeed, events: &[Value]) {
        let mut reader = Nostr.lines().reader(&read());
        for event in events {
            let mut record = Vec::new();
            reader.read(event.to_string().as_bytes(), &|_| false, &mut record).unwrap();
            feed.publish(&Record::new(&record).unwrap());
        }
    }

    /// Waits until everything is written, and returns the counts.
    pub(crate) fn finish(&self) -> SyncTotals {
        let intake = self.intake.lock().take();
        if let Some(intake) = intake {
            intake.finish().unwrap();
        }
        self.meter.totals()
    }
}

/// Returns the number of events in the archive.
pub(crate) fn held(here: &Here) -> u64 {
    here.store.stats().records
}
