//! Tests a door that implements only a protocol: bounds, rates, history, live records and metrics
//! come from the service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hark_archive::clock::Clock;
use hark_archive::retention::RetentionPolicy;
use hark_archive::store::memory::MemoryStore;
use hark_archive::writer;
use hark_server::limits::{Limits, Rate, RateLimits};
use hark_server::{Server, ServerConfig, StoreLocation, shelf};
use hark_testkit::toy::{Serving, Toy};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(addr: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(addr).await.unwrap()))
    }

    async fn send_text(&mut self, line: &str) {
        self.0.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> String {
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, self.0.read_line(&mut line)).await.unwrap().unwrap();
        line.trim_end().to_owned()
    }

    async fn ask(&mut self, line: &str) -> String {
        self.send_text(line).await;
        self.hear().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_door_that_is_its_protocol_alone_has_all_of_the_service() {
    let few = Some(Rate { per_minute: 1, at_once: 3 });
    let rates =
        RateLimits { events_per_address: few, questions_per_address: few, ..RateLimits::none() };
    let limits = Limits { rates, ..Limits::default() };
    let shelf = shelf::ShelfOptions {
        network: &Toy,
        store: Arc::new(MemoryStore::new(Toy)),
        writer: writer::WriterOptions::default(),
        clock: Clock::System,
        retention: RetentionPolicy::default(),
        compact: None,
        handover: None,
    };
    let listen = "127.0.0.1:0".parse().unwrap();
    let toy = Serving { listen, shelf, store_at: StoreLocation::Process };
    let config = ServerConfig { limits, ..ServerConfig::default() };
    let server = Server::bind(config, vec![Box::new(toy)]).await.unwrap();
    let addr = server.addresses()[0].at.parse().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(async move {
        server.run(async { drop(stopped.await) }).await.unwrap();
    });
    let (mut one, mut live) = (Client::connect(addr).await, Client::connect(addr).await);
    assert!(one.ask("weather 1 rain").await.starts_with("Ok(Stored"));
    assert_eq!(live.ask("+weather").await, "weather 1 rain");
    assert_eq!(live.hear().await, "");
    assert!(one.ask("weather 2 sun").await.starts_with("Ok(Stored"));
    assert_eq!(live.hear().await, "weather 2 sun");
    assert_eq!(one.ask("?weather").await, "weather 2 sun");
    assert_eq!(one.hear().await, "weather 1 rain");
    assert_eq!(one.hear().await, "");
    // The rates of the address allow three records and three questions, and no more.
    assert!(one.ask("weather 3 snow").await.starts_with("Ok(Stored"));
    assert!(one.ask("weather 4 hail").await.contains("rate limit exceeded"));
    assert_eq!(one.ask("?sports").await, "");
    assert!(one.ask("?weather").await.contains("rate limit exceeded"));
    drop(stop);
    running.await.unwrap();
}
