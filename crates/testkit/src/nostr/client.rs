//! A client of a relay. The client returns every message. It uses a different WebSocket library
//! from Hark's.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderName;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::event;
use crate::wait::PATIENCE;

/// A client of a relay that has received the relay's challenge.
pub struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    url: String,
    /// The time that the client writes into its answers to challenges.
    now_s: u64,
    /// The relay's challenge, which an AUTH must sign.
    pub challenge: String,
    /// How many times the relay has sent the challenge again.
    pub challenged_again: usize,
}

impl Client {
    /// Connects, and receives the relay's challenge.
    pub async fn connect(url: &str, now_s: u64) -> Self {
        Self::with_headers(url, now_s, &[]).await
    }

    /// Does the same as [`Client::connect`], with additional headers in the request.
    pub async fn with_headers(url: &str, now_s: u64, headers: &[(&str, &str)]) -> Self {
        let mut request = url.into_client_request().unwrap();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let (socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
        let mut client = Self {
            socket,
            url: url.to_owned(),
            now_s,
            challenge: String::new(),
            challenged_again: 0,
        };
        let greeting = client.receive().await;
        assert_eq!(greeting[0], "AUTH", "{greeting}");
        client.challenge.push_str(greeting[1].as_str().unwrap());
        client
    }

    /// Sends text.
    pub async fn send_text(&mut self, text: impl ToString) {
        self.socket.send(Message::text(text.to_string())).await.unwrap();
    }

    /// Sends a message of any type.
    pub async fn send(&mut self, message: Message) {
        self.socket.send(message).await.unwrap();
    }

    /// Queues text. [`Client::flush`] sends all queued text.
    pub async fn feed(&mut self, text: impl ToString) {
        self.socket.feed(Message::text(text.to_string())).await.unwrap();
    }

    /// Sends all queued text.
    pub async fn flush(&mut self) {
        self.socket.flush().await.unwrap();
    }

    /// Receives the next message. Repeated challenges are skipped.
    pub async fn receive(&mut self) -> Value {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.socket.next()).await;
            match next.expect("it says something").unwrap().unwrap() {
                Message::Text(text) => {
                    let message: Value = serde_json::from_str(&text).unwrap();
                    if message[0] != "AUTH" || self.challenge.is_empty() {
                        return message;
                    }
                    assert_eq!(message[1], self.challenge.as_str());
                    self.challenged_again += 1;
                }
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("received {other:?}"),
            }
        }
    }

    /// Waits for the close frame and returns its code. Messages before it are ignored.
    pub async fn closed(&mut self) -> Option<CloseCode> {
        while let Some(Ok(message)) = self.socket.next().await {
            if let Message::Close(frame) = message {
                return frame.map(|frame| frame.code);
            }
        }
        None
    }

    /// Publishes an event, and returns the flag and the reason of the OK.
    pub async fn publish(&mut self, event: &Value) -> (bool, String) {
        self.send_text(json!(["EVENT", event])).await;
        let ok = self.receive().await;
        assert_eq!((&ok[0], &ok[1]), (&json!("OK"), &event["id"]), "{ok}");
        (ok[2].as_bool().unwrap(), ok[3].as_str().unwrap().to_owned())
    }

    /// Returns an answer to the relay's challenge, signed with the key of `who`.
    pub fn proof(&self, who: u8) -> Value {
        let tags: [&[&str]; 2] = [&["relay", &self.url], &["challenge", &self.challenge]];
        event(who, self.now_s, 22_242, &tags, "")
    }

    /// Sends an AUTH with an event, and returns the flag and the reason of the OK.
    pub async fn auth_with(&mut self, event: &Value) -> (bool, String) {
        self.send_text(json!(["AUTH", event])).await;
        let ok = self.receive().await;
        assert_eq!((&ok[0], &ok[1]), (&json!("OK"), &event["id"]), "{ok}");
        (ok[2].as_bool().unwrap(), ok[3].as_str().unwrap().to_owned())
    }

    /// Authenticates with the key of `who`.
    pub async fn auth(&mut self, who: u8) {
        let proof = self.proof(who);
        assert_eq!(self.auth_with(&proof).await, (true, String::new()));
    }

    /// Publishes an event, and panics unless it is accepted.
    pub async fn publish_new(&mut self, event: &Value) {
        assert_eq!(self.publish(event).await, (true, String::new()), "{event}");
    }

    /// Sends a REQ, and returns the stored events.
    pub async fn ask(&mut self, sub: &str, filters: &[Value]) -> Vec<Value> {
        let mut message = vec![json!("REQ"), json!(sub)];
        message.extend_from_slice(filters);
        self.send_text(json!(message)).await;
        self.stored(sub).await
    }

    /// Does the same as [`Client::ask`], and closes the subscription.
    pub async fn find_now(&mut self, filters: &[Value]) -> Vec<Value> {
        let events = self.ask("now", filters).await;
        self.send_text(json!(["CLOSE", "now"])).await;
        events
    }

    /// Receives events up to EOSE.
    pub async fn stored(&mut self, sub: &str) -> Vec<Value> {
        self.page(sub).await.0
    }

    /// Receives events up to EOSE. Returns them with the hint of EOSE about further events.
    pub async fn page(&mut self, sub: &str) -> (Vec<Value>, Option<Value>) {
        let mut events = Vec::new();
        loop {
            let mut received = self.receive().await;
            assert_eq!(received[1], sub, "{received}");
            match received[0].as_str().unwrap() {
                "EVENT" => events.push(received[2].take()),
                "EOSE" => return (events, received.get_mut(2).map(Value::take)),
                _ => panic!("received {received}"),
            }
        }
    }

    /// Sends a COUNT and returns the number.
    pub async fn count(&mut self, filters: &[Value]) -> u64 {
        let mut message = vec![json!("COUNT"), json!("n")];
        message.extend_from_slice(filters);
        self.send_text(json!(message)).await;
        let received = self.receive().await;
        assert_eq!((&received[0], &received[1]), (&json!("COUNT"), &json!("n")), "{received}");
        received[2]["count"].as_u64().unwrap()
    }
}
