//! Counts the traffic of a client of PostgreSQL. The client connects to a TCP port of loopback,
//! which forwards everything to a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Maximum number of bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Codes of the messages with which a client may request TLS or GSSAPI encryption before a session.
const ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];

/// Counts of the traffic of all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cases) struct TrafficCounts {
    /// Number of bytes from the server.
    pub(in crate::cases) received_bytes: u64,
    /// Number of bytes to the server.
    pub(in crate::cases) sent_bytes: u64,
    /// Number of statements that were run: Query and Execute messages.
    pub(in crate::cases) statements: u64,
    /// How many times the client began to send: once at the start, and once after each answer.
    pub(in crate::cases) round_trips: u64,
}

impl Add for TrafficCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received_bytes: self.received_bytes + other.received_bytes,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            statements: self.statements + other.statements,
            round_trips: self.round_trips + other.round_trips,
        }
    }
}

impl Sub for TrafficCounts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            received_bytes: self.received_bytes.saturating_sub(other.received_bytes),
            sent_bytes: self.sent_bytes.saturating_sub(other.sent_bytes),
            statements: self.statements.saturating_sub(other.statements),
            round_trips: self.round_trips.saturating_sub(other.round_trips),
        }
    }
}

#[derive(Default)]
struct AtomicCounts {
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    statements: AtomicU64,
    round_trips: AtomicU64,
}

/// A port that forwards connections to a server and counts their traffic. Dropping the value closes
/// the port.
pub(in crate::cases) struct TrafficCounter {
    port: u16,
    counts: Arc<AtomicCounts>,
    /// Dropping this sender stops the thread.
    _stop: oneshot::Sender<()>,
}

impl TrafficCounter {
    /// Opens a port for the server at another port of loopback.
    pub(in crate::cases) fn new(server: u16) -> anyhow::Result<Self> {
        let start = || {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let counts = Arc::new(AtomicCounts::default());
            let (stop, stopped) = oneshot::channel::<()>();
            let shared = Arc::clone(&counts);
            std::thread::Builder::new().name("traffic".into()).spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = stopped => {}
                        () = accept(listener, server, shared) => {}
                    }
                });
            })?;
            anyhow::Ok(Self { port, counts, _stop: stop })
        };
        start().context("no port could be opened to count the traffic to a database")
    }

    pub(in crate::cases) fn port(&self) -> u16 {
        self.port
    }

    pub(in crate::cases) fn counts(&self) -> TrafficCounts {
        TrafficCounts {
            received_bytes: self.counts.received_bytes.load(Ordering::Relaxed),
            sent_bytes: self.counts.sent_bytes.load(Ordering::Relaxed),
            statements: self.counts.statements.load(Ordering::Relaxed),
            round_trips: self.counts.round_trips.load(Ordering::Relaxed),
        }
    }
}

/// Accepts connections until the runtime ends. A connection that cannot be forwarded is closed, and
/// its client reports the error.
async fn accept(listener: std::net::TcpListener, server: u16, counts: Arc<AtomicCounts>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
    while let Ok((client, _)) = listener.accept().await {
        let counts = Arc::clone(&counts);
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else { return };
            if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
                return;
            }
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let waits = Arc::new(AtomicBool::new(false));
            tokio::spawn(receive(from_server, to_client, Arc::clone(&counts), Arc::clone(&waits)));
            send(from_client, to_server, &counts, &waits).await;
        });
    }
}

/// Forwards the client's bytes to the server, until one of the two closes its connection.
async fn send(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    counts: &AtomicCounts,
    waits: &AtomicBool,
) {
    let (mut buffer, mut messages) = (vec![0; READ_BYTES], FrontendMessages::default());
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..read];
        counts.sent_bytes.fetch_add(read as u64, Ordering::Relaxed);
        counts.statements.fetch_add(messages.read(bytes), Ordering::Relaxed);
        if !waits.swap(true, Ordering::Relaxed) {
            counts.round_trips.fetch_add(1, Ordering::Relaxed);
        }
        if to.write_all(bytes).await.is_err() {
            break;
        }
    }
}

/// Forwards the server's bytes to the client, until one of the two closes its connection.
async fn receive(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    counts: Arc<AtomicCounts>,
    waits: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        counts.received_bytes.fetch_add(read as u64, Ordering::Relaxed);
        waits.store(false, Ordering::Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
}

/// Finds the messages in a client's bytes.
#[derive(Default)]
struct FrontendMessages {
    /// Whether the startup message has begun the session. Only later messages have a type.
    begun: bool,
    /// The part of a message's head that has been read.
    head: Vec<u8>,
    /// Number of bytes of the current message that are still to be skipped.
    rest: usize,
}

impl FrontendMessages {
    /// Returns the number of Query and Execute messages whose heads end within these bytes.
    fn read(&mut self, mut bytes: &[u8]) -> u64 {
        let mut statements = 0;
        loop {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            // A head is a type and a length. Before the session, a head is a length and a code.
            let head_bytes = if self.begun { 5 } else { 8 };
            let missing = head_bytes - self.head.len();
            let (more, after) = bytes.split_at(missing.min(bytes.len()));
            self.head.extend_from_slice(more);
            bytes = after;
            if self.head.len() < head_bytes {
                return statements;
            }
            let number = |at: usize| {
                let four = self.head.get(at..).and_then(|rest| rest.first_chunk());
                four.map_or(0, |four| u32::from_be_bytes(*four))
            };
            if self.begun {
                self.rest = (number(1) as usize).saturating_sub(4);
                statements += u64::from(matches!(self.head.first(), Some(b'Q' | b'E')));
            } else {
                self.rest = (number(0) as usize).saturating_sub(8);
                self.begun = !ENCRYPTION.contains(&number(4));
            }
            self.head.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_counted_however_the_bytes_are_divided() {
        let mut sent = Vec::new();
        let mut message = |head: &[u8], length: u32, rest: &[u8]| {
            sent.extend_from_slice(head);
            sent.extend_from_slice(&length.to_be_bytes());
            sent.extend_from_slice(rest);
        };
        message(b"", 8, &ENCRYPTION[0].to_be_bytes());
        message(b"", 12, &[0, 3, 0, 0, b'Q', b'E', 0, 0]);
        message(b"Q", 9, b"BEGIN");
        message(b"P", 8, b"QEQE");
        message(b"E", 4, b"");
        message(b"S", 4, b"");
        for step in 1..sent.len() {
            let mut messages = FrontendMessages::default();
            let found: u64 = sent.chunks(step).map(|bytes| messages.read(bytes)).sum();
            assert_eq!(found, 2, "{step} bytes at a time");
        }
    }
}
