//! A client of mail servers that speaks like the clients of go-ethereum (`shh/6`) and status-go
//! (`waku/1`).

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

use hark_codec::hex;
use hark_codec::whisper::keys::{PublicKey, SecretKey};
use hark_codec::whisper::message::{SealingKey, password_key, seal};
use hark_codec::whisper::rlp::{RlpItems, put_bytes, put_list, put_number};
use hark_codec::whisper::{Bloom, Envelope, Topic};
use hark_server::whisper::rlpx::hello::{DisconnectReason, Hello, SubProtocol, code as base};
use hark_server::whisper::rlpx::{RlpxError, RlpxReader, RlpxStream, RlpxWriter};
use tokio::net::TcpSocket;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// The longest time to wait. Each step of a test needs much less time.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Number of bytes that the operating system buffers for a client that does not read.
const RECEIVED_BYTES_MAX: u32 = 256 << 10;

/// The sub-protocol of go-ethereum's clients.
pub const SHH: SubProtocol = SubProtocol { name: "shh", version: 6, codes: 128 };
/// The sub-protocol of status-go's clients.
pub const WAKU: SubProtocol = SubProtocol { name: "waku", version: 1, codes: 128 };

/// Codes of packets.
#[allow(missing_docs)] // the names say it
pub mod packet {
    pub const STATUS: u64 = 0;
    pub const MESSAGES: u64 = 1;
    pub const POW: u64 = 2;
    pub const BATCH_ACKNOWLEDGED: u64 = 11;
    pub const OUTCOMES: u64 = 12;
    pub const STATUS_UPDATE: u64 = 22;
    pub const SYNC_REQUEST: u64 = 123;
    pub const SYNC_RESPONSE: u64 = 124;
    pub const COMPLETE: u64 = 125;
    pub const REQUEST: u64 = 126;
    pub const DIRECT: u64 = 127;
}

/// Fills a buffer with random bytes that are good enough for tests.
pub fn random(out: &mut [u8]) {
    for chunk in out.chunks_mut(8) {
        let drawn = RandomState::new().build_hasher().finish().to_le_bytes();
        chunk.copy_from_slice(&drawn[..chunk.len()]);
    }
}

/// A new key.
pub fn new_key() -> SecretKey {
    SecretKey::draw(&mut random)
}

/// Reads the address of a node: `enode://`, its key, `@` and its socket address.
pub fn node(enode: &str) -> (PublicKey, SocketAddr) {
    let (digits, at) = enode.strip_prefix("enode://").unwrap().split_once('@').unwrap();
    let mut bytes = Vec::new();
    assert!(hex::decode_into(digits.as_bytes(), &mut bytes));
    (PublicKey::read(&bytes.try_into().unwrap()).unwrap(), at.parse().unwrap())
}

/// The RLP of an envelope, with a proof of work of at least `pow`.
pub fn envelope(sent: u32, ttl: u32, topic: Topic, data: &[u8], pow: f64) -> Vec<u8> {
    let mut envelope = Envelope { expiry: sent + ttl, ttl, topic, data, nonce: 0 };
    envelope.find_nonce(pow);
    let mut rlp = Vec::new();
    envelope.write(&mut rlp);
    rlp
}

/// Makes the packet of a request with this payload.
pub fn request(payload: &[u8], password: &str, signer: Option<&SecretKey>, now_s: u32) -> Vec<u8> {
    let (key, mut data) = (password_key(password.as_bytes()), Vec::new());
    seal(payload, signer, SealingKey::Symmetric(&key), &mut random, &mut data).unwrap();
    envelope(now_s, 50, [0; 4], &data, 0.2)
}

/// An RLP list of items.
pub fn list(items: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    put_list(&mut out, items.iter().map(|item| item.len()).sum());
    for item in items {
        out.extend_from_slice(item);
    }
    out
}

/// An RLP number.
pub fn number(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, number);
    out
}

/// An RLP string.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, bytes);
    out
}

/// Makes the status message of a client that demands no proof of work and whose filter covers all
/// topics.
pub fn status(protocol: SubProtocol) -> Vec<u8> {
    let bloom = string(&Bloom::FULL.0);
    if protocol == SHH {
        return list(&[&number(6), &number(0), &bloom, &number(0)]);
    }
    let limits = list(&[&number(0), &number(0), &number(0)]);
    let pair = |key, value: &[u8]| list(&[&number(key), value]);
    let pow = number(f64::to_bits(0.001));
    let (no, yes) = (number(0), number(1));
    // The pairs are in the order of status-go; the last key is unknown.
    let pairs = [(0, &pow), (1, &bloom), (2, &no), (3, &yes), (4, &limits), (6, &limits), (9, &no)];
    let pairs: Vec<_> = pairs.iter().map(|(key, value)| pair(*key, value)).collect();
    list(&pairs.iter().map(|pair| &pair[..]).collect::<Vec<_>>())
}

/// A client that is connected.
pub struct MailClient {
    reader: RlpxReader<OwnedReadHalf, ()>,
    writer: RlpxWriter<OwnedWriteHalf>,
    offset: u64,
    protocol: SubProtocol,
}

/// An answer to a request.
#[derive(Debug, Default)]
pub struct MailAnswer {
    /// The envelopes' RLP, in order of arrival.
    pub envelopes: Vec<Vec<u8>>,
    /// Number of packets with envelopes.
    pub packets: usize,
    /// The packet that ends the answer.
    pub completion: Vec<u8>,
}

impl MailClient {
    /// Connects, and exchanges status messages.
    pub async fn connect(enode: &str, protocol: SubProtocol) -> Self {
        let mut client = Self::greet(enode, protocol, &new_key()).await.unwrap();
        client.send(packet::STATUS, &status(protocol)).await;
        assert_eq!(client.receive().await.unwrap().0, packet::STATUS);
        client
    }

    /// Connects with a key, and exchanges hello messages.
    pub async fn greet(
        enode: &str,
        protocol: SubProtocol,
        key: &SecretKey,
    ) -> Result<Self, RlpxError> {
        let (id, at) = node(enode);
        let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Without this limit, some systems would buffer tens of megabytes of unread data.
        socket.set_recv_buffer_size(RECEIVED_BYTES_MAX)?;
        let (read, write) = socket.connect(at).await?.into_split();
        let stream = RlpxStream { read, write, message_bytes_max: 2 << 20, allowance: () };
        let hello = Hello::new("test/v1", &[protocol], 0, key.public());
        let mut random = random;
        let connected = stream.connect(key, &id, &hello, &mut random).await?;
        let shared = connected.peer.share(&[protocol]);
        let offset = shared.first().map_or(16, |shared| shared.offset);
        Ok(Self { reader: connected.reader, writer: connected.writer, offset, protocol })
    }

    /// Sends a packet. Does nothing if the connection has ended.
    pub async fn send(&mut self, code: u64, payload: &[u8]) {
        let _ = self.writer.write(self.offset + code, &[payload]).await;
    }

    /// Receives the next packet: its code and content. Returns an error if the server disconnects.
    pub async fn receive(&mut self) -> Result<(u64, Vec<u8>), RlpxError> {
        loop {
            let read = timeout(WAIT_MAX, self.reader.read()).await.expect("a packet");
            let message = read?;
            match message.code {
                base::PING => {
                    let _ = self.writer.write(base::PONG, &[&[0xc0]]).await;
                }
                base::DISCONNECT => {
                    let reason = DisconnectReason::read(message.payload);
                    return Err(RlpxError::Disconnected(reason));
                }
                ..16 => {}
                code => return Ok((code - self.offset, message.payload.to_vec())),
            }
        }
    }

    /// Waits until the server disconnects, and returns why.
    pub async fn disconnected(&mut self) -> DisconnectReason {
        loop {
            match self.receive().await {
                Ok(_) => {}
                Err(RlpxError::Disconnected(reason)) => return reason,
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// Sends these envelopes in one packet.
    pub async fn publish(&mut self, envelopes: &[Vec<u8>]) {
        let envelopes: Vec<_> = envelopes.iter().map(|envelope| &envelope[..]).collect();
        self.send(packet::MESSAGES, &list(&envelopes)).await;
    }

    /// Sends a request and receives the answer.
    pub async fn ask(&mut self, request: &[u8]) -> MailAnswer {
        self.send(packet::REQUEST, request).await;
        let mut answer = MailAnswer::default();
        loop {
            let (code, payload) = self.receive().await.expect("an answer");
            match code {
                packet::DIRECT if self.protocol == SHH => {
                    answer.packets += 1;
                    answer.envelopes.push(payload);
                }
                packet::DIRECT => {
                    answer.packets += 1;
                    let mut items = RlpItems::of_list(&payload).unwrap();
                    while !items.is_empty() {
                        answer.envelopes.push(items.raw().unwrap().to_vec());
                    }
                }
                packet::COMPLETE => {
                    answer.completion = payload;
                    return answer;
                }
                _ => {}
            }
        }
    }
}
