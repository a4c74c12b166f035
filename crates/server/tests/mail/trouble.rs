//! Faulty peers, which must not affect other peers.

use std::time::Duration;

use hark_archive::Query;
use hark_codec::whisper::rlp::RlpItems;
use hark_codec::whisper::{Bloom, Envelope, HistoryRequest};
use hark_server::whisper::rlpx::hello::{DisconnectReason, SubProtocol};
use hark_testkit::http::{get, metric};
use hark_testkit::mail::{
    MailClient, SHH, WAKU, envelope, list, new_key, node, number, packet, random, request, string,
};
use hark_testkit::wait::until_async;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::kit::{Mail, NOW_S, PASSWORD, ask, mail, of, refusal};

fn wanted() -> HistoryRequest<'static> {
    HistoryRequest {
        lower: NOW_S - 1_000,
        upper: NOW_S + 1_000,
        bloom: Some(Bloom::FULL),
        batch: true,
        ..HistoryRequest::default()
    }
}

/// The same envelope with an insufficient proof of work.
fn weaker(rlp: &[u8]) -> Vec<u8> {
    let mut weak = Envelope { nonce: 0, ..Envelope::parse(rlp).unwrap() };
    while weak.pow() >= 0.2 {
        weak.nonce += 1;
    }
    let mut out = Vec::new();
    weak.write(&mut out);
    out
}

/// Number of envelopes in the archive.
fn stored(server: &Mail) -> u64 {
    server.store.count(&Query::default()).unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_refused_is_answered_with_the_reason() {
    let server = Mail::start(|peers| peers.rules.bare_range_max_s = Some(86_400)).await;
    let signer = new_key();
    for protocol in [SHH, WAKU] {
        let mut client = MailClient::connect(&server.enode, protocol).await;
        let mut payload = Vec::new();
        wanted().write(std::iter::empty(), &mut payload);
        let range = [&1u32.to_be_bytes()[..], &(2 + 86_400u32).to_be_bytes()].concat();
        let signed = Some(&signer);
        let weak = weaker(&request(&payload, PASSWORD, signed, NOW_S));
        let open = list(&[
            &string(&[7; 32]),
            &number(3),
            &number(2),
            &number(1),
            &string(&[]),
            &string(&Bloom::FULL.0),
            &list(&[]),
        ]);
        for (packet, word) in [
            (request(&payload, "another password", signed, NOW_S), "decrypt"),
            (request(&payload, PASSWORD, None, NOW_S), "not signed"),
            (request(&range, PASSWORD, signed, NOW_S), "query range too big"),
            (request(b"no request", PASSWORD, signed, NOW_S), "request is invalid"),
            (weak, "proof of work"),
            (open, "query range is invalid"),
        ] {
            let refused = refusal(&mut client, &packet).await;
            assert!(refused.contains(word), "{refused}");
        }
        // After all these refusals, a valid request is answered.
        ask(&mut client, &mail(&wanted(), &[])).await;
        // A request without an id cannot be answered, so it ends the connection.
        client.send(packet::REQUEST, b"\xc0").await;
        assert_eq!(client.disconnected().await, DisconnectReason::SubProtocol);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_envelopes_end_no_session_and_what_is_no_envelope_does() {
    let server = Mail::start(|_| {}).await;
    let good = |n: u32| of([9; 4], NOW_S - n, "good");
    let weak = weaker(&of([9; 4], NOW_S, "weak"));
    let old = of([9; 4], NOW_S - 100, "it expired 50 s ago");
    let ahead = of([9; 4], NOW_S + 11, "of the future");
    let mut kept = 0;
    for (n, (bad, is_fault)) in [
        (weak, false),
        (old.clone(), false),
        (ahead, false),
        (b"\xc0".to_vec(), true),
        (of([9; 4], NOW_S - 60, "it expired 10 s ago"), false),
    ]
    .into_iter()
    .enumerate()
    {
        for protocol in [SHH, WAKU] {
            let mut client = MailClient::connect(&server.enode, protocol).await;
            kept += 1;
            client.publish(&[bad.clone(), good(n as u32 * 2 + u32::from(protocol == WAKU))]).await;
            if is_fault {
                assert_eq!(client.disconnected().await, DisconnectReason::SubProtocol, "{n}");
            } else {
                ask(&mut client, &mail(&wanted(), &[])).await;
            }
            assert_eq!(stored(&server), kept);
        }
    }
    // A client of status-go receives the hashes of the envelopes that were not stored.
    let mut client = MailClient::connect(&server.enode, WAKU).await;
    client.publish(std::slice::from_ref(&old)).await;
    let (code, outcomes) = client.receive().await.unwrap();
    assert_eq!(code, packet::OUTCOMES);
    let mut items = RlpItems::of_list(&outcomes).unwrap();
    items.raw().unwrap();
    let mut response = items.list().unwrap();
    response.raw().unwrap();
    let mut fault = response.list().unwrap().list().unwrap();
    assert_eq!(fault.bytes(), Ok(&hark_codec::crypto::keccak256(&old)[..]));
    assert_eq!(fault.uint64(), Ok(21));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_without_a_status_or_a_protocol_is_disconnected() {
    let server = Mail::start(|_| {}).await;
    let other = SubProtocol { name: "eth", version: 63, codes: 17 };
    let mut client = MailClient::greet(&server.enode, other, &new_key()).await.unwrap();
    assert_eq!(client.disconnected().await, DisconnectReason::Useless);
    let mut client = MailClient::greet(&server.enode, SHH, &new_key()).await.unwrap();
    client.publish(&[]).await;
    assert_eq!(client.disconnected().await, DisconnectReason::SubProtocol);
    let mut client = MailClient::greet(&server.enode, SHH, &new_key()).await.unwrap();
    client.send(packet::STATUS, &list(&[&number(5)])).await;
    assert_eq!(client.disconnected().await, DisconnectReason::SubProtocol);
    let mut client = MailClient::connect(&server.enode, WAKU).await;
    client.send(200, &[0xc0]).await;
    assert_eq!(client.disconnected().await, DisconnectReason::Protocol);
    // A server that shuts down sends the reason to its peers.
    let mut client = MailClient::connect(&server.enode, WAKU).await;
    let (reason, ()) = tokio::join!(client.disconnected(), server.stop());
    assert_eq!(reason, DisconnectReason::Quitting);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_that_say_nothing_keep_nobody_out() {
    let server = Mail::with(|config| {
        config.server.unlimited = false;
        // With this timeout, no silent connection is dropped during the test.
        config.peers.times.handshake = Duration::from_hours(1);
    });
    let server = server.await;
    let (_, at) = node(&server.enode);
    let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..1_000 {
        let (mut silent, ended) = (TcpStream::connect(at).await.unwrap(), ended.clone());
        tokio::spawn(async move {
            // The server sends nothing until it closes the connection, perhaps with a reason.
            let _ = silent.read(&mut [0]).await;
            // The test may have ended.
            let _ = ended.send(());
        });
    }
    // An address may have 32 unfinished handshakes, so 968 connections are closed.
    for _ in 0..968 {
        let end = tokio::time::timeout(Duration::from_mins(1), ends.recv()).await;
        assert_eq!(end.expect("a connection is closed"), Some(()));
    }
    let mut client = MailClient::connect(&server.enode, WAKU).await;
    client.publish(&[of([1; 4], NOW_S, "there is room")]).await;
    let (answer, _) = ask(&mut client, &mail(&wanted(), &[])).await;
    assert_eq!(answer.envelopes.len(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_finish_a_handshake_or_says_nothing_is_dropped() {
    let server = Mail::start(|peers| peers.times.handshake = Duration::from_millis(100)).await;
    let (_, at) = node(&server.enode);
    let mut silent = TcpStream::connect(at).await.unwrap();
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0);
    server.stop().await;
    // This timeout leaves the client enough time for the handshake.
    let server = Mail::start(|peers| peers.times.read = Duration::from_secs(1)).await;
    let mut client = MailClient::connect(&server.enode, SHH).await;
    assert_eq!(client.disconnected().await, DisconnectReason::Timeout);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_reading_an_answer_is_dropped_and_others_are_served() {
    let server = Mail::with(|config| {
        config.peers.times.write = Duration::from_secs(3);
        config.server.metrics.listen = Some("127.0.0.1:0".parse().unwrap());
        config.settings.bounds.pow_min = 0.0;
    })
    .await;
    let mut poster = MailClient::connect(&server.enode, WAKU).await;
    // These envelopes have more bytes than the operating system buffers. The data are random, since
    // other data would be compressed.
    for n in 0..60u32 {
        let mut data = vec![0; 512 << 10];
        random(&mut data);
        poster.publish(&[envelope(NOW_S - n, 100, [1; 4], &data, 0.0)]).await;
    }
    ask(&mut poster, &mail(&HistoryRequest { limit: 1, ..wanted() }, &[])).await;
    assert_eq!(stored(&server), 60);
    let mut stalling = MailClient::connect(&server.enode, WAKU).await;
    stalling.send(packet::REQUEST, &mail(&wanted(), &[])).await;
    let (first, _) = stalling.receive().await.unwrap();
    assert_eq!(first, packet::DIRECT);
    // Meanwhile another client gets the whole answer.
    let (answer, _) = ask(&mut poster, &mail(&wanted(), &[])).await;
    assert_eq!(answer.envelopes.len(), 60);
    // The stalling client reads nothing until the server has dropped its connection.
    let metrics = server.metrics.expect("is set").to_string();
    until_async("the stalling client is dropped", async || {
        let at = metrics.clone();
        let page = tokio::task::spawn_blocking(move || get(&at, "/metrics").ok()).await.unwrap();
        metric(&page, "hark_whisper_peers") == Some(1.0)
    })
    .await;
    // Packets that were already sent still arrive, but the answer is incomplete and has no end.
    let mut packets = 1;
    while let Ok((code, _)) = stalling.receive().await {
        assert_eq!(code, packet::DIRECT, "after {packets}");
        packets += 1;
    }
    assert!(packets < 60, "{packets}");
    server.stop().await;
}
