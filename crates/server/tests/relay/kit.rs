//! A relay to talk to, and a client that says what it heard.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use hark_archive::admission::nostr::NostrRules;
use hark_archive::clock::Clock;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Store, writer};
use hark_codec::crypto::Keys;
use hark_codec::hex;
use hark_codec::nostr::Draft;
use hark_server::{Config, Server, Shelf};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// The relay's time when a test starts.
pub(crate) const NOW_S: u64 = 1_800_000_000;

pub(crate) struct Relay {
    pub(crate) url: String,
    /// Where its metrics are alone.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn start(change: impl FnOnce(&mut Config)) -> Self {
        Self::on(Arc::new(MemoryStore::new(NostrRules)), change).await
    }

    pub(crate) async fn on(store: Arc<dyn Store>, change: impl FnOnce(&mut Config)) -> Self {
        let clock = Clock::fake(NOW_S);
        let mut config = Config::new("127.0.0.1:0".parse().unwrap());
        change(&mut config);
        let shelf = Shelf {
            store: Arc::clone(&store),
            writer: writer::Options::default(),
            clock: clock.clone(),
            compact: Some(Arc::new(|say| {
                say("half");
                Ok("small now".into())
            })),
        };
        let server = Server::bind(config, shelf).await.unwrap();
        let (url, metrics) = (server.url(), server.metrics_addr());
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            server.run(async { drop(stopped.await) }).await.unwrap();
        });
        Self { url, metrics, store, clock, stop: Some(stop), running }
    }

    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn stop(mut self) {
        self.begin_stop();
        self.running.await.unwrap();
    }

    pub(crate) async fn client(&self) -> Client {
        let (socket, _) = tokio_tungstenite::connect_async(&self.url).await.unwrap();
        let mut client = Client { socket, url: self.url.clone(), challenge: String::new() };
        let greeting = client.hear().await;
        assert_eq!(greeting[0], "AUTH", "{greeting}");
        client.challenge.push_str(greeting[1].as_str().unwrap());
        client
    }
}

pub(crate) struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    url: String,
    /// What the relay wants to have signed.
    pub(crate) challenge: String,
}

impl Client {
    pub(crate) async fn say(&mut self, text: impl ToString) {
        self.socket.send(Message::text(text.to_string())).await.unwrap();
    }

    pub(crate) async fn send(&mut self, message: Message) {
        self.socket.send(message).await.unwrap();
    }

    pub(crate) async fn feed(&mut self, text: impl ToString) {
        self.socket.feed(Message::text(text.to_string())).await.unwrap();
    }

    pub(crate) async fn flush(&mut self) {
        self.socket.flush().await.unwrap();
    }

    pub(crate) async fn hear(&mut self) -> Value {
        loop {
            match self.socket.next().await.unwrap().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("heard {other:?}"),
            }
        }
    }

    /// What closes the connection, everything before it left aside.
    pub(crate) async fn closed(&mut self) -> Option<CloseCode> {
        while let Some(Ok(message)) = self.socket.next().await {
            if let Message::Close(frame) = message {
                return frame.map(|frame| frame.code);
            }
        }
        None
    }

    /// Publishes and returns OK's verdict and reason.
    pub(crate) async fn publish(&mut self, event: &Value) -> (bool, String) {
        self.say(json!(["EVENT", event])).await;
        let ok = self.hear().await;
        assert_eq!((&ok[0], &ok[1]), (&json!("OK"), &event["id"]), "{ok}");
        (ok[2].as_bool().unwrap(), ok[3].as_str().unwrap().to_owned())
    }

    /// An answer to the relay's challenge by somebody.
    pub(crate) fn proof(&self, who: u8) -> Value {
        let tags: [&[&str]; 2] = [&["relay", &self.url], &["challenge", &self.challenge]];
        event(who, NOW_S, 22_242, &tags, "")
    }

    /// Says AUTH with an event and returns OK's verdict and reason.
    pub(crate) async fn auth_with(&mut self, event: &Value) -> (bool, String) {
        self.say(json!(["AUTH", event])).await;
        let ok = self.hear().await;
        assert_eq!((&ok[0], &ok[1]), (&json!("OK"), &event["id"]), "{ok}");
        (ok[2].as_bool().unwrap(), ok[3].as_str().unwrap().to_owned())
    }

    /// Shows to be somebody.
    pub(crate) async fn auth(&mut self, who: u8) {
        let proof = self.proof(who);
        assert_eq!(self.auth_with(&proof).await, (true, String::new()));
    }

    /// Asks and returns the stored answer.
    pub(crate) async fn ask(&mut self, sub: &str, filters: &[Value]) -> Vec<Value> {
        let mut message = vec![json!("REQ"), json!(sub)];
        message.extend_from_slice(filters);
        self.say(json!(message)).await;
        self.stored(sub).await
    }

    /// Events up to EOSE.
    pub(crate) async fn stored(&mut self, sub: &str) -> Vec<Value> {
        self.page(sub).await.0
    }

    /// Events up to EOSE, and what that says about more of them.
    pub(crate) async fn page(&mut self, sub: &str) -> (Vec<Value>, Option<Value>) {
        let mut events = Vec::new();
        loop {
            let mut heard = self.hear().await;
            assert_eq!(heard[1], sub, "{heard}");
            match heard[0].as_str().unwrap() {
                "EVENT" => events.push(heard[2].take()),
                "EOSE" => return (events, heard.get_mut(2).map(Value::take)),
                _ => panic!("heard {heard}"),
            }
        }
    }

    pub(crate) async fn count(&mut self, filters: &[Value]) -> u64 {
        let mut message = vec![json!("COUNT"), json!("n")];
        message.extend_from_slice(filters);
        self.say(json!(message)).await;
        let heard = self.hear().await;
        assert_eq!((&heard[0], &heard[1]), (&json!("COUNT"), &json!("n")), "{heard}");
        heard[2]["count"].as_u64().unwrap()
    }
}

/// Asks for a path over plain HTTP, with a header or none: the status and the body.
pub(crate) async fn http(url: &str, path: &str, header: &str) -> (u16, String) {
    let addr = url.strip_prefix("ws://").unwrap();
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Somebody, by number.
pub(crate) fn keys(who: u8) -> Keys {
    Keys::from_secret([who; 32]).unwrap()
}

pub(crate) fn pubkey(who: u8) -> String {
    String::from_utf8(hex::encode_32(keys(who).public()).to_vec()).unwrap()
}

/// An event of somebody's.
pub(crate) fn event(who: u8, created_at: u64, kind: u16, tags: &[&[&str]], content: &str) -> Value {
    let mut json = Vec::new();
    Draft { created_at, kind, tags, content }.sign(&keys(who), &mut json);
    serde_json::from_slice(&json).unwrap()
}

pub(crate) fn note(who: u8, created_at: u64, content: &str) -> Value {
    event(who, created_at, 1, &[], content)
}

pub(crate) fn contents(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["content"].as_str().unwrap()).collect()
}
