//! A mail server for the tests to connect to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hark_archive::clock::Clock;
use hark_archive::effects::KeepAll;
use hark_archive::retention::RetentionPolicy;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Store, writer};
use hark_codec::whisper::message::password_key;
use hark_codec::whisper::{Completion, HistoryCursor, HistoryRequest, Topic};
use hark_networks::whisper::Whisper;
use hark_server::whisper::peers::{PeerTimes, PeersConfig, RequestRules};
use hark_server::whisper::{self, MailConfig, MailService, MailSettings, SharedMailSettings};
use hark_server::{Server, ServerConfig, shelf};
use hark_testkit::folder::Folder;
use hark_testkit::mail::{MailAnswer, MailClient, envelope, new_key, request};
use hark_testkit::wait::until_async;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The server's time when a test starts.
pub(crate) const NOW_S: u32 = 1_800_000_000;
pub(crate) const PASSWORD: &str = "status-offline-inbox";

pub(crate) struct Mail {
    pub(crate) enode: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) settings: SharedMailSettings,
    /// The address of the metrics. `None` if the test has not set an address.
    pub(crate) metrics: Option<SocketAddr>,
    /// The directory of the key.
    _folder: Folder,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

/// The configuration of a mail server.
pub(crate) struct Config {
    pub(crate) peers: PeersConfig,
    pub(crate) server: ServerConfig,
    pub(crate) settings: MailSettings,
}

impl Mail {
    pub(crate) async fn start(change: impl FnOnce(&mut PeersConfig)) -> Self {
        Self::with(|config| change(&mut config.peers)).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(KeepAll));
        let clock = Clock::fake(NOW_S.into());
        let folder = Folder::new("mail");
        let peers = PeersConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            key: folder.join("whisper.key"),
            rules: RequestRules {
                password_key: Some(password_key(PASSWORD.as_bytes())),
                secret_key: None,
                bare_range_max_s: None,
            },
            request_pause: Duration::ZERO,
            trusted: Vec::new(),
            times: PeerTimes::default(),
        };
        let server = ServerConfig { unlimited: true, ..ServerConfig::default() };
        let mut config = Config { peers, server, settings: MailSettings::default() };
        // The minimum proof of work of go-ethereum.
        config.settings.bounds.pow_min = 0.2;
        change(&mut config);
        let Config { peers, server, settings } = config;
        let settings = whisper::shared(settings);
        let config = MailConfig {
            peers: Some(peers),
            settings: Arc::clone(&settings),
            ..MailConfig::default()
        };
        let shelf = shelf::ShelfOptions {
            network: &Whisper,
            store: Arc::clone(&store),
            writer: writer::WriterOptions::default(),
            clock: clock.clone(),
            retention: RetentionPolicy::default(),
            compact: None,
            handover: None,
        };
        let server = Server::bind(server, vec![Box::new(MailService { config, shelf })]);
        let server = server.await.unwrap();
        let (enode, metrics) = (server.addresses()[0].at.clone(), server.metrics_addr());
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            server.run(async { drop(stopped.await) }).await.unwrap();
        });
        Self { enode, store, clock, settings, metrics, _folder: folder, stop: Some(stop), running }
    }

    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        self.running.await.unwrap();
    }
}

/// Waits until the store has `count` envelopes.
pub(crate) async fn until_stored(server: &Mail, count: u64) {
    until_async("all are stored", async || server.store.stats().records == count).await;
}

/// An envelope about a topic, with a text.
pub(crate) fn of(topic: Topic, sent: u32, text: &str) -> Vec<u8> {
    envelope(sent, 50, topic, text.as_bytes(), 0.2)
}

/// A request that the server answers, in the form of status-go.
pub(crate) fn mail(wanted: &HistoryRequest<'_>, topics: &[Topic]) -> Vec<u8> {
    let mut payload = Vec::new();
    wanted.write(topics.iter().copied(), &mut payload);
    request(&payload, PASSWORD, Some(&new_key()), NOW_S)
}

/// Sends a request and returns the envelopes and the cursor of the answer.
pub(crate) async fn ask(
    client: &mut MailClient,
    request: &[u8],
) -> (MailAnswer, Option<HistoryCursor>) {
    let answer = client.ask(request).await;
    match Completion::parse(&answer.completion).unwrap() {
        Completion::Done { request: id, cursor, .. } => {
            assert_eq!(id, hark_codec::crypto::keccak256(request));
            (answer, cursor)
        }
        failed @ Completion::Failed { .. } => panic!("{failed:?}"),
    }
}

/// Sends a request that is refused, and returns the reason.
pub(crate) async fn refusal(client: &mut MailClient, request: &[u8]) -> String {
    let answer = client.ask(request).await;
    assert!(answer.envelopes.is_empty());
    match Completion::parse(&answer.completion).unwrap() {
        Completion::Failed { text, .. } => text.to_owned(),
        done @ Completion::Done { .. } => panic!("{done:?}"),
    }
}
