//! Measures, over loopback, how fast a mail server receives envelopes from a peer, and how fast it
//! sends history. Both figures include the encryption of the connection.
//!
//!     hark serve --unlimited --data DIR &         with [whisper] serve = true and pow_min = 0
//!     cargo bench -p hark-server --bench peers -- ENODE [FROM TO BLOOM]
//!
//! ENODE is the address that the server prints. The benchmark publishes 50,000 envelopes. With
//! FROM, TO and BLOOM, it first requests the envelopes between these times that the bloom filter
//! (128 hex digits) covers. It requests these envelopes twice: all at once, like go-ethereum's
//! clients, and page by page, like status-go's clients.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hark_codec::hex;
use hark_codec::whisper::message::{SealingKey, password_key, seal};
use hark_codec::whisper::{Bloom, Completion, HistoryRequest};
use hark_server::whisper::rlpx::hello::SubProtocol;
use hark_testkit::mail::{MailClient, SHH, WAKU, envelope, new_key, packet, random};

const PASSWORD: &[u8] = b"status-offline-inbox";
/// Number of published envelopes, and of envelopes in one packet.
const PUBLISHED: usize = 50_000;
const IN_A_PACKET: usize = 250;

fn now_s() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u32::try_from(since.as_secs()).expect("before 2106")
}

/// Totals of the received answers, and the time to the first packet.
#[derive(Default)]
struct Received {
    envelopes: u64,
    bytes: u64,
    first: Option<Duration>,
}

/// Sends a request with this payload, and returns the content of the packet that ends the answer.
async fn ask(
    client: &mut MailClient,
    payload: &[u8],
    protocol: SubProtocol,
    received: &mut Received,
) -> Vec<u8> {
    let (key, signer, mut data) = (password_key(PASSWORD), new_key(), Vec::new());
    seal(payload, Some(&signer), SealingKey::Symmetric(&key), &mut random, &mut data)
        .expect("is short");
    let request = envelope(now_s(), 50, [0; 4], &data, 0.0);
    let begun = Instant::now();
    client.send(packet::REQUEST, &request).await;
    loop {
        let (code, content) = client.receive().await.expect("an answer");
        received.first.get_or_insert_with(|| begun.elapsed());
        match code {
            packet::DIRECT if protocol == SHH => {
                received.envelopes += 1;
                received.bytes += content.len() as u64;
            }
            packet::DIRECT => {
                let mut items =
                    hark_codec::whisper::rlp::RlpItems::of_list(&content).expect("a list");
                while !items.is_empty() {
                    received.bytes += items.raw().expect("an envelope").len() as u64;
                    received.envelopes += 1;
                }
            }
            packet::COMPLETE => return content,
            _ => {}
        }
    }
}

fn print(what: &str, received: &Received, took: Duration) {
    println!(
        "{what}: {} envelopes, {:.1} MB in {:.0} ms, {:.1} MB/s, {:.0} envelopes/s, first packet after {:.2} ms",
        received.envelopes,
        received.bytes as f64 / 1e6,
        took.as_secs_f64() * 1e3,
        received.bytes as f64 / 1e6 / took.as_secs_f64(),
        received.envelopes as f64 / took.as_secs_f64(),
        received.first.unwrap_or_default().as_secs_f64() * 1e3
    );
}

async fn history(enode: &str, from: u32, to: u32, bloom: Bloom) {
    let mut client = MailClient::connect(enode, SHH).await;
    let mut payload = [from.to_be_bytes(), to.to_be_bytes()].concat();
    payload.extend_from_slice(&bloom.0);
    let (begun, mut received) = (Instant::now(), Received::default());
    ask(&mut client, &payload, SHH, &mut received).await;
    print("shh/6, one answer", &received, begun.elapsed());

    let mut client = MailClient::connect(enode, WAKU).await;
    let mut wanted = HistoryRequest {
        lower: from,
        upper: to,
        bloom: Some(bloom),
        limit: 1_000,
        batch: true,
        ..HistoryRequest::default()
    };
    let (mut received, mut took) = (Received::default(), Duration::ZERO);
    loop {
        let mut payload = Vec::new();
        wanted.write(std::iter::empty(), &mut payload);
        let begun = Instant::now();
        let end = ask(&mut client, &payload, WAKU, &mut received).await;
        took += begun.elapsed();
        match Completion::parse(&end).expect("an end") {
            Completion::Done { cursor: Some(cursor), .. } => wanted.cursor = Some(cursor),
            Completion::Done { .. } => break,
            Completion::Failed { text, .. } => panic!("{text}"),
        }
    }
    print("waku/1, pages of 1,000, with the client's key each time", &received, took);
}

async fn publish(enode: &str) {
    let sent = now_s();
    let data = |n: usize| [&n.to_be_bytes()[..], &[7; 400]].concat();
    let all: Vec<Vec<u8>> =
        (0..PUBLISHED).map(|n| envelope(sent, 600, [1, 2, 3, 4], &data(n), 0.0)).collect();
    let mut client = MailClient::connect(enode, WAKU).await;
    let begun = Instant::now();
    for packets in all.chunks(IN_A_PACKET * 8) {
        for envelopes in packets.chunks(IN_A_PACKET) {
            client.publish(envelopes).await;
        }
        // Each packet is acknowledged once its envelopes are durable.
        let mut acknowledged = 0;
        while acknowledged < packets.chunks(IN_A_PACKET).len() {
            let (code, _) = client.receive().await.expect("an acknowledgement");
            acknowledged += usize::from(code == packet::BATCH_ACKNOWLEDGED);
        }
    }
    let took = begun.elapsed().as_secs_f64();
    println!("published and durable: {:.0} envelopes/s", PUBLISHED as f64 / took);
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let Some(enode) = arguments.next() else {
        println!("the address of a mail server is needed: enode://...");
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("starts");
    if let (Some(from), Some(to), Some(digits)) =
        (arguments.next(), arguments.next(), arguments.next())
    {
        let mut bytes = Vec::new();
        assert!(hex::decode_into(digits.as_bytes(), &mut bytes), "hex digits");
        let bloom = Bloom(bytes.try_into().expect("64 bytes"));
        let (from, to) = (from.parse().expect("seconds"), to.parse().expect("seconds"));
        runtime.block_on(history(&enode, from, to, bloom));
    }
    runtime.block_on(publish(&enode));
}
