//! Peers send envelopes and request history, by both sub-protocols.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::Write;
use hark_codec::crypto::keccak256;
use hark_codec::whisper::message::{SealingKey, seal};
use hark_codec::whisper::rlp::RlpItems;
use hark_codec::whisper::{Bloom, Completion, Envelope, HistoryRequest, Topic};
use hark_server::limits::Rate;
use hark_server::whisper::MailSettings;
use hark_testkit::mail::{
    MailClient, SHH, WAKU, envelope, list, new_key, number, packet, request, status, string,
};

use crate::kit::{Mail, NOW_S, PASSWORD, ask, mail, of, until_stored};

const TOPICS: [Topic; 2] = [[0x5c, 0x6c, 0x9b, 0x56], [1, 2, 3, 4]];

/// Twenty envelopes, one second apart, with two alternating topics. The last envelope was sent now.
fn twenty() -> Vec<Vec<u8>> {
    (0..20).map(|n| of(TOPICS[n % 2], NOW_S - 19 + n as u32, &format!("envelope {n}"))).collect()
}

/// The payload of requests before RLP was used: two times, and a bloom filter.
fn bare(lower: u32, upper: u32, bloom: &Bloom) -> Vec<u8> {
    [&lower.to_be_bytes()[..], &upper.to_be_bytes(), &bloom.0].concat()
}

fn everything() -> HistoryRequest<'static> {
    HistoryRequest {
        lower: NOW_S - 1_000,
        upper: NOW_S,
        bloom: Some(Bloom::FULL),
        batch: true,
        ..HistoryRequest::default()
    }
}

/// Sends envelopes to the server, and waits until they are archived.
async fn publish(client: &mut MailClient, envelopes: &[Vec<u8>]) {
    client.publish(envelopes).await;
    loop {
        if client.receive().await.unwrap().0 == packet::BATCH_ACKNOWLEDGED {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn go_ethereums_clients_post_and_get_all_back_after_it_expired() {
    let server = Mail::start(|_| {}).await;
    let all = twenty();
    let mut poster = MailClient::connect(&server.enode, SHH).await;
    poster.publish(&all[..15]).await;
    poster.publish(&all[10..]).await;
    // Packets of a peer are processed in order, so this answer comes when all envelopes are
    // durable.
    let (stored, _) = ask(&mut poster, &mail(&everything(), &[])).await;
    assert_eq!(stored.envelopes, all);
    server.clock.set(u64::from(NOW_S) + 3_600);
    let mut reader = MailClient::connect(&server.enode, SHH).await;
    let signer = new_key();
    for (lower, upper, bloom, expected) in [
        (0, u32::MAX, Bloom::FULL, all.clone()),
        (NOW_S - 9, NOW_S - 3, Bloom::FULL, all[10..17].to_vec()),
        (0, u32::MAX, Bloom::of_topic(TOPICS[1]), all.iter().skip(1).step_by(2).cloned().collect()),
        (0, 10, Bloom::FULL, vec![]),
    ] {
        let packet = request(&bare(lower, upper, &bloom), PASSWORD, Some(&signer), NOW_S);
        let (answer, cursor) = ask(&mut reader, &packet).await;
        assert_eq!((answer.envelopes.len(), cursor), (expected.len(), None));
        assert_eq!(answer.envelopes, expected);
        assert_eq!(answer.packets, expected.len(), "each in a packet of its own");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_gos_clients_page_by_topics_limit_and_cursor() {
    let server = Mail::start(|_| {}).await;
    let all = twenty();
    let mut client = MailClient::connect(&server.enode, WAKU).await;
    client.publish(&all).await;
    let (code, outcomes) = client.receive().await.unwrap();
    assert_eq!(code, packet::OUTCOMES);
    let envelopes: Vec<_> = all.iter().map(|envelope| &envelope[..]).collect();
    let batch = keccak256(&list(&envelopes));
    let none = list(&[]);
    assert_eq!(outcomes, list(&[&number(1), &list(&[&string(&batch), &none])]));
    let acknowledged = (packet::BATCH_ACKNOWLEDGED, string(&batch));
    assert_eq!(client.receive().await.unwrap(), acknowledged);
    // Tests requests in the present form, and further below in the form without topics.
    let mut wanted = HistoryRequest { limit: 4, ..everything() };
    let mut got = Vec::new();
    loop {
        let (answer, cursor) = ask(&mut client, &mail(&wanted, &TOPICS[..1])).await;
        assert_eq!(answer.packets, 1);
        match Completion::parse(&answer.completion).unwrap() {
            Completion::Done { last, .. } => {
                assert_eq!(last, keccak256(answer.envelopes.last().unwrap()));
            }
            failed @ Completion::Failed { .. } => panic!("{failed:?}"),
        }
        got.extend(answer.envelopes);
        let Some(cursor) = cursor else { break };
        wanted.cursor = Some(cursor);
    }
    let of_topic: Vec<_> = all.iter().step_by(2).cloned().collect();
    assert_eq!(got, of_topic);
    // Without batches, each envelope is a list of its own.
    let single = HistoryRequest { batch: false, ..everything() };
    let (answer, _) = ask(&mut client, &mail(&single, &[])).await;
    assert_eq!((answer.packets, &answer.envelopes), (20, &all));
    // The fields of a request before topics were added: lower, upper, bloom, limit, cursor, batch.
    let old = list(&[
        &number((NOW_S - 1_000).into()),
        &number(NOW_S.into()),
        &string(&Bloom::of_topic(TOPICS[0]).0),
        &number(3),
        &string(&[]),
        &number(1),
    ]);
    let (answer, cursor) =
        ask(&mut client, &request(&old, PASSWORD, Some(&new_key()), NOW_S)).await;
    assert_eq!((answer.envelopes, cursor.is_some()), (of_topic[..3].to_vec(), true));
    // An answer may be empty.
    let early = HistoryRequest { upper: NOW_S - 900, ..everything() };
    let (answer, cursor) = ask(&mut client, &mail(&early, &[])).await;
    assert_eq!((answer.packets, cursor), (0, None));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_may_be_open_or_for_the_servers_own_key() {
    let secret = new_key();
    let public = secret.public();
    let server = Mail::start(|peers| {
        peers.rules.secret_key = Some(secret);
    })
    .await;
    let all = twenty();
    let mut client = MailClient::connect(&server.enode, WAKU).await;
    publish(&mut client, &all).await;
    let open = list(&[
        &string(&[9; 32]),
        &number((NOW_S - 1_000).into()),
        &number(NOW_S.into()),
        &number(100),
        &string(&[]),
        &string(&Bloom::FULL.0),
        &list(&[&string(&TOPICS[1])]),
    ]);
    let answer = client.ask(&open).await;
    assert_eq!(answer.envelopes.len(), 10);
    let done = Completion::parse(&answer.completion).unwrap();
    assert!(matches!(done, Completion::Done { request, .. } if request == [9; 32]), "{done:?}");
    let (mut payload, mut data) = (Vec::new(), Vec::new());
    everything().write(std::iter::empty(), &mut payload);
    let mut random = hark_testkit::mail::random;
    seal(&payload, Some(&new_key()), SealingKey::Public(&public), &mut random, &mut data).unwrap();
    let (answer, _) = ask(&mut client, &envelope(NOW_S, 50, [0; 4], &data, 0.2)).await;
    assert_eq!(answer.envelopes, all);
    // The key of the password still opens other requests.
    let (answer, _) = ask(&mut client, &mail(&everything(), &[])).await;
    assert_eq!(answer.envelopes.len(), 20);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_server_that_is_trusted_gets_the_same_envelopes() {
    let trusted = new_key();
    let id = trusted.public();
    let server = Mail::start(|peers| peers.trusted.push(id)).await;
    let all = twenty();
    let mut poster = MailClient::connect(&server.enode, WAKU).await;
    publish(&mut poster, &all).await;
    let wanted = |limit, cursor: &[u8]| {
        let (from, to) = (number((NOW_S - 1_000).into()), number(NOW_S.into()));
        let bloom = string(&Bloom::FULL.0);
        list(&[&from, &to, &bloom, &number(limit), &string(cursor)])
    };
    for (key, is_answered) in [(trusted, true), (new_key(), false)] {
        let mut client = MailClient::greet(&server.enode, SHH, &key).await.unwrap();
        client.send(packet::STATUS, &status(SHH)).await;
        assert_eq!(client.receive().await.unwrap().0, packet::STATUS);
        let (mut got, mut cursor) = (Vec::new(), Vec::new());
        for limit in [12, 100] {
            client.send(packet::SYNC_REQUEST, &wanted(limit, &cursor)).await;
            if !is_answered {
                // status-go's call waits for an answer.
                let (code, part) = client.receive().await.unwrap();
                let mut items = RlpItems::of_list(&part).unwrap();
                assert!(code == packet::SYNC_RESPONSE && items.list().unwrap().is_empty());
                assert_eq!((items.bytes(), items.flag()), (Ok(&b""[..]), Ok(false)));
                assert!(items.bytes().unwrap().starts_with(b"the node is not among those"));
                continue;
            }
            loop {
                let (code, part) = client.receive().await.unwrap();
                assert_eq!(code, packet::SYNC_RESPONSE);
                let mut items = RlpItems::of_list(&part).unwrap();
                let mut envelopes = items.list().unwrap();
                while !envelopes.is_empty() {
                    got.push(envelopes.raw().unwrap().to_vec());
                }
                cursor = items.bytes().unwrap().to_vec();
                let is_done = items.flag().unwrap();
                assert_eq!((items.bytes(), items.end()), (Ok(&b""[..]), Ok(())));
                if is_done {
                    break;
                }
            }
            assert_eq!(cursor.len(), if limit == 12 { 36 } else { 0 });
        }
        let (answer, _) = ask(&mut client, &mail(&everything(), &[])).await;
        assert_eq!(answer.envelopes.len(), 20);
        assert_eq!(got, if is_answered { all.clone() } else { vec![] });
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_above_a_thousand_gets_a_thousand_and_a_cursor() {
    let server = Mail::start(|_| {}).await;
    let writes = |n: u64| {
        let envelope = Envelope { expiry: NOW_S, ttl: 50, topic: [1; 4], data: b"one", nonce: n };
        let mut record = Vec::new();
        hark_codec::whisper::record::encode(&envelope, &envelope.hash(), &mut record);
        Write::Put(record.into())
    };
    server.store.commit(&(0..1_203).map(writes).collect::<Vec<_>>()).unwrap();
    for protocol in [SHH, WAKU] {
        let mut client = MailClient::connect(&server.enode, protocol).await;
        // Requests like those of the app of 2019 and of clients of 2020 to 2022, which sent as many
        // zero topics as real topics.
        let zeros = [&[[1; 4]][..], &[[0; 4]; 1_000]].concat();
        let mut wanted = HistoryRequest { limit: 2_000, bloom: None, ..everything() };
        let (answer, cursor) = ask(&mut client, &mail(&wanted, &zeros)).await;
        assert_eq!((answer.envelopes.len(), cursor.is_some()), (1_000, true));
        wanted.cursor = cursor;
        let (answer, cursor) = ask(&mut client, &mail(&wanted, &zeros)).await;
        assert_eq!((answer.envelopes.len(), cursor), (203, None));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_gos_clients_of_shh_are_told_what_became_of_envelopes_and_others_are_not() {
    let server = Mail::start(|_| {}).await;
    let bloom = string(&Bloom::FULL.0);
    for (n, confirms) in [(1, true), (2, false)] {
        let mut client = MailClient::greet(&server.enode, SHH, &new_key()).await.unwrap();
        let own = [&number(6)[..], &number(0), &bloom, &number(0), &number(confirms.into())];
        client.send(packet::STATUS, &list(&own)).await;
        let (code, theirs) = client.receive().await.unwrap();
        let mut items = RlpItems::of_list(&theirs).unwrap();
        for _ in 0..4 {
            items.raw().unwrap();
        }
        assert_eq!((code, items.flag(), items.end()), (packet::STATUS, Ok(true), Ok(())));
        client.publish(&[of([7; 4], NOW_S - n, "text")]).await;
        client.send(packet::REQUEST, &mail(&everything(), &[])).await;
        let mut codes = Vec::new();
        while codes.last() != Some(&packet::COMPLETE) {
            codes.push(client.receive().await.unwrap().0);
        }
        codes.retain(|code| *code < packet::COMPLETE);
        let expected = [packet::OUTCOMES, packet::BATCH_ACKNOWLEDGED];
        assert_eq!(codes, if confirms { &expected[..] } else { &[] });
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minimum_of_work_that_is_changed_is_announced() {
    let server = Mail::start(|peers| peers.times.ping = Duration::from_millis(50)).await;
    let mut clients = Vec::new();
    for protocol in [SHH, WAKU] {
        clients.push(MailClient::connect(&server.enode, protocol).await);
    }
    let mut settings = MailSettings::clone(&server.settings.load());
    settings.bounds.pow_min = 0.5;
    server.settings.store(Arc::new(settings));
    let pow = number(0.5f64.to_bits());
    for (client, expected) in clients.iter_mut().zip([
        (packet::POW, pow.clone()),
        (packet::STATUS_UPDATE, list(&[&list(&[&number(0), &pow])])),
    ]) {
        assert_eq!(client.receive().await.unwrap(), expected);
    }
    // The change is announced once, and the sessions continue.
    for client in &mut clients {
        let (answer, _) = ask(client, &strong(&mail(&everything(), &[]))).await;
        assert!(answer.envelopes.is_empty());
    }
    server.stop().await;
}

/// The same envelope with a stronger proof of work.
fn strong(rlp: &[u8]) -> Vec<u8> {
    let mut envelope = Envelope::parse(rlp).unwrap();
    while envelope.pow() < 0.5 {
        envelope.nonce += 1;
    }
    let mut out = Vec::new();
    envelope.write(&mut out);
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_cut_at_its_rate_and_the_peer_stays() {
    let server = Mail::with(|config| {
        config.server.unlimited = false;
        config.settings.envelopes = Some(Rate { per_minute: 1, at_once: 30 });
    })
    .await;
    let flood: Vec<_> = (0..50).map(|n| of([5; 4], NOW_S, &format!("flood {n}"))).collect();
    let mut client = MailClient::connect(&server.enode, WAKU).await;
    client.publish(&flood).await;
    until_stored(&server, 30).await;
    // The server reports twenty refused envelopes, and still answers requests.
    let (code, outcomes) = client.receive().await.unwrap();
    let mut items = RlpItems::of_list(&outcomes).unwrap();
    items.raw().unwrap();
    let mut response = items.list().unwrap();
    response.raw().unwrap();
    let (mut refused, mut count) = (response.list().unwrap(), 0);
    while !refused.is_empty() {
        refused.raw().unwrap();
        count += 1;
    }
    assert_eq!((code, count), (packet::OUTCOMES, 20));
    let (answer, _) = ask(&mut client, &mail(&everything(), &[])).await;
    assert_eq!(answer.envelopes.len(), 30);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_topics_is_cut_and_known_topics_go_on() {
    let server = Mail::with(|config| {
        config.server.unlimited = false;
        config.settings.new_topics = Some(Rate { per_minute: 1, at_once: 3 });
    })
    .await;
    let mut client = MailClient::connect(&server.enode, SHH).await;
    let flood: Vec<_> = (0..20).map(|n| of([n, 1, 2, 3], NOW_S, "a new topic")).collect();
    client.publish(&flood).await;
    until_stored(&server, 3).await;
    let known: Vec<_> = (0..20).map(|n| of([n % 3, 1, 2, 3], NOW_S, &format!("{n}"))).collect();
    client.publish(&known).await;
    until_stored(&server, 23).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_asks_no_faster_than_it_may_and_others_are_not_concerned() {
    let server = Mail::start(|peers| peers.request_pause = Duration::from_mins(10)).await;
    let key = new_key();
    for (key, is_first) in [(&key, true), (&key, false), (&new_key(), true)] {
        let mut client = MailClient::greet(&server.enode, WAKU, key).await.unwrap();
        client.send(packet::STATUS, &status(WAKU)).await;
        if is_first {
            ask(&mut client, &mail(&everything(), &[])).await;
        }
        // All connections of a peer share one rate.
        let refused = crate::kit::refusal(&mut client, &mail(&everything(), &[])).await;
        assert_eq!(refused, "rate limit exceeded");
    }
    server.stop().await;
}
