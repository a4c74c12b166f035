//! Tests of connections over a pipe in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};

use super::hello::SubProtocol;
use super::*;

type Connected = RlpxConnection<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>, Held>;

const SHH: SubProtocol = SubProtocol { name: "shh", version: 6, codes: 128 };
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Records the largest number of bytes in use, and allows at most `max` bytes.
#[derive(Clone, Default)]
struct Held {
    most: Arc<AtomicUsize>,
    max: Option<usize>,
}

impl ReadAllowance for Held {
    fn resize(&mut self, bytes: usize) -> bool {
        self.most.fetch_max(bytes, Ordering::Relaxed);
        self.max.is_none_or(|max| bytes <= max)
    }
}

fn random(out: &mut [u8]) {
    getrandom::fill(out).unwrap();
}

fn stream(
    stream: DuplexStream,
    allowance: Held,
) -> RlpxStream<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>, Held> {
    let (read, write) = split(stream);
    RlpxStream { read, write, message_bytes_max: MESSAGE_BYTES_MAX, allowance }
}

/// Connects a listener and an initiator, whose hellos have these versions.
async fn connected(
    versions: [u64; 2],
    held: Held,
) -> (Result<Connected, RlpxError>, Result<Connected, RlpxError>) {
    let keys = [SecretKey::draw(&mut random), SecretKey::draw(&mut random)];
    let hellos = [0, 1].map(|at| Hello {
        version: versions[at],
        ..Hello::new(["listener", "initiator"][at], &[SHH], 7, keys[at].public())
    });
    let (one, two) = duplex(1 << 16);
    let listener = stream(one, held).accept(&keys[0], &hellos[0], random);
    let peer = keys[0].public();
    let mut drawn = random;
    let initiator = stream(two, Held::default()).connect(&keys[1], &peer, &hellos[1], &mut drawn);
    tokio::join!(listener, initiator)
}

#[tokio::test]
async fn messages_of_all_lengths_arrive_compressed_or_not() {
    for versions in [[5, 5], [5, 4], [4, 5], [5, 22]] {
        let (listener, initiator) = connected(versions, Held::default()).await;
        let (mut listener, mut initiator) = (listener.unwrap(), initiator.unwrap());
        assert_eq!((&listener.peer.client[..], listener.peer.version), ("initiator", versions[1]));
        assert_eq!((&initiator.peer.client[..], initiator.peer.version), ("listener", versions[0]));
        let is_snappy = versions.iter().all(|version| *version >= 5);
        assert_eq!((listener.reader.is_snappy, initiator.writer.is_snappy), (is_snappy, is_snappy));
        for (code, len) in [(0, 0), (16, 1), (127, 15), (128, 16), (300, 70_000), (9, 1 << 20)] {
            let payload: Vec<u8> = (0..len).map(|at: usize| ((at * at) >> 3) as u8).collect();
            let parts: [&[u8]; 2] = payload.split_at(len / 2).into();
            let writing = initiator.writer.write(code, &parts);
            let (written, read) = tokio::join!(writing, listener.reader.read());
            written.unwrap();
            assert_eq!(read.unwrap(), RlpxMessage { code, payload: &payload });
        }
        listener.writer.disconnect(DisconnectReason::Quitting).await.unwrap();
        let read = initiator.reader.read().await.unwrap();
        assert_eq!(read.code, hello::code::DISCONNECT);
        assert_eq!(DisconnectReason::read(read.payload), DisconnectReason::Quitting);
        drop(initiator);
        assert!(matches!(listener.reader.read().await, Err(RlpxError::Io(_))));
    }
}

#[tokio::test]
async fn what_is_too_long_is_refused_before_it_is_read() {
    for (versions, bytes, held_max) in [
        ([5, 5], MESSAGE_BYTES_MAX + 1, READ_BYTES),
        ([4, 4], MESSAGE_BYTES_MAX + 1, MESSAGE_BYTES_MAX + (1 << 10)),
        ([4, 4], MESSAGE_BYTES_MAX + 100, 0),
    ] {
        let held = Held::default();
        let (listener, initiator) = connected(versions, held.clone()).await;
        let (mut listener, mut initiator) = (listener.unwrap(), initiator.unwrap());
        let payload = vec![0; bytes];
        let parts: [&[u8]; 1] = [&payload];
        // A compressed message is short, and arrives whole. An uncompressed message is refused
        // while it is being sent.
        let writing = async {
            let _ = initiator.writer.write(16, &parts).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            read = listener.reader.read() => {
                assert!(matches!(read, Err(RlpxError::TooLong(_, MESSAGE_BYTES_MAX))));
            }
            () = writing => {}
        }
        assert!(held.most.load(Ordering::Relaxed) <= held_max);
    }
}

#[tokio::test]
async fn a_length_that_snappy_cannot_reach_takes_no_memory() {
    let (listener, initiator) = connected([5, 5], Held::default()).await;
    let (mut listener, mut initiator) = (listener.unwrap(), initiator.unwrap());
    initiator.writer.is_snappy = false;
    // A length of 2^20, and one byte.
    initiator.writer.write(16, &[&[0x80, 0x80, 0x40, 0, 1]]).await.unwrap();
    assert!(matches!(listener.reader.read().await, Err(RlpxError::TooLong(0x10_0000, 110))));
    assert_eq!(listener.reader.plain.capacity(), 0);
}

#[tokio::test]
async fn memory_is_asked_for_as_bytes_arrive() {
    let held = Held { max: Some(200_000), ..Held::default() };
    let (listener, initiator) = connected([5, 5], held.clone()).await;
    let (mut listener, mut initiator) = (listener.unwrap(), initiator.unwrap());
    let mut payload = vec![0; 300_000];
    random(&mut payload);
    let parts: [&[u8]; 1] = [&payload];
    tokio::select! {
        _ = initiator.writer.write(16, &parts) => panic!("nobody reads it"),
        read = listener.reader.read() => assert!(matches!(read, Err(RlpxError::Memory))),
    }
    let most = held.most.load(Ordering::Relaxed);
    assert!(most > 200_000 && most < 300_000, "{most}");
}

#[tokio::test]
async fn an_initiator_that_is_somebody_else_is_told_so() {
    let [listener, own, other] = [(); 3].map(|()| SecretKey::draw(&mut random));
    let hello = |key: &SecretKey| Hello::new("test", &[SHH], 0, key.public());
    let (one, two) = duplex(1 << 16);
    let (hello_one, hello_two) = (hello(&listener), hello(&other));
    let accepting = stream(one, Held::default()).accept(&listener, &hello_one, random);
    let peer = listener.public();
    let mut drawn = random;
    let connecting = stream(two, Held::default()).connect(&own, &peer, &hello_two, &mut drawn);
    let (accepted, connected) = tokio::join!(accepting, connecting);
    assert!(matches!(accepted, Err(RlpxError::OtherId)));
    let mut connected = connected.unwrap();
    connected.reader.is_snappy = false;
    let message = connected.reader.read().await.unwrap();
    assert_eq!(DisconnectReason::read(message.payload), DisconnectReason::Unexpected);
    // An initiator with the key of another listener cannot even begin.
    let (one, two) = duplex(1 << 16);
    let accepting = stream(one, Held::default()).accept(&listener, &hello_one, random);
    let peer = other.public();
    let connecting = stream(two, Held::default()).connect(&own, &peer, &hello_two, &mut drawn);
    let (accepted, connected) = tokio::join!(accepting, connecting);
    let refused = RlpxHandshakeError::Decryption;
    assert!(matches!(accepted, Err(RlpxError::Handshake(why)) if why == refused));
    assert!(connected.is_err());
}
