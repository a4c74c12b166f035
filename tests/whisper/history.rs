//! Answers of both stores to random requests, in every form, compared with a search through a list
//! of all envelopes.

use std::fmt::Write as _;

use hark_codec::crypto::keccak256;
use hark_codec::record::Id;
use hark_codec::whisper::{Bloom, Completion, Envelope, HistoryCursor, HistoryRequest, Topic};
use hark_testkit::digits::digits;
use hark_testkit::postgres::Cluster;
use hark_testkit::random::Random;

use super::rest::frames;
use super::{MailNode, RLP, folder};
use crate::served::hark;

const SENT: u32 = 1_554_076_800;

/// The test's record of an envelope. The derived order of envelopes compares the time first, and
/// then the hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    sent: u32,
    hash: Id,
    topic: Topic,
    rlp: Vec<u8>,
}

/// Makes topics. Many topics set several bits in one byte, a case that programs and EIP-627 treat
/// differently.
fn topic(number: usize) -> Topic {
    let near = [8, 9, 10, 200, 17, 16, 3];
    [near[number % 7], near[number / 7 % 7], near[number / 49 % 7], (number % 8) as u8]
}

/// Draws envelopes, and returns them with their lines for an import.
fn draw(random: &mut Random, count: u64) -> (Vec<Known>, String) {
    let (mut all, mut lines) = (Vec::new(), String::new());
    for nonce in 0..count {
        // A few topics have most envelopes, and many envelopes share a time.
        let number = random.below(60).min(random.below(60));
        let sent = SENT + random.below(200) as u32;
        let (topic, data) = (topic(number), vec![7; random.below(60)]);
        let envelope = Envelope { expiry: sent + 50, ttl: 50, topic, data: &data, nonce };
        let (hash, mut rlp) = (envelope.hash(), Vec::new());
        envelope.write(&mut rlp);
        let expiry = envelope.expiry;
        writeln!(
            lines,
            "{{\"expiry\":{expiry},\"ttl\":50,\"topic\":\"{}\",\"data\":\"{}\",\"nonce\":{nonce}}}",
            digits(&topic),
            digits(&data)
        )
        .expect("is text");
        all.push(Known { sent, hash, topic, rlp });
    }
    all.sort();
    (all, lines)
}

/// A drawn request.
struct Drawn {
    bytes: Vec<u8>,
    newest_first: bool,
}

/// Writes a request in one of the forms that clients have sent.
fn written(random: &mut Random, of: &HistoryRequest<'_>, topics: &[Topic]) -> Vec<u8> {
    let bloom = of.bloom.map_or(Vec::new(), |bloom| bloom.0.to_vec());
    let mut bytes = Vec::new();
    if topics.is_empty() && random.below(3) == 0 {
        for number in [of.lower, of.upper] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(&bloom);
        bytes.extend_from_slice(&of.limit.to_be_bytes());
        bytes.extend(of.cursor.iter().flat_map(HistoryCursor::bytes));
    } else {
        of.write(topics.iter().copied(), &mut bytes);
    }
    bytes
}

/// Requests all pages from a server, and returns all envelopes.
fn answered(
    node: &MailNode,
    random: &mut Random,
    of: &HistoryRequest<'_>,
    topics: &[Topic],
    newest_first: bool,
) -> Vec<Vec<u8>> {
    let (mut of, mut found) = (*of, Vec::new());
    loop {
        let drawn = Drawn { bytes: written(random, &of, topics), newest_first };
        let order = if drawn.newest_first { "newest" } else { "oldest" };
        let request = format!("POST /whisper/messages?order={order}");
        let answer = node.ask(&request, &[RLP], &drawn.bytes);
        assert_eq!(answer.status, 200, "{of:?}: {}", answer.text());
        let (page, end) = frames(&answer.body);
        assert!(of.limit == 0 || page.len() <= of.limit as usize);
        let last = page.last().map_or([0; 32], |last| keccak256(last));
        found.extend(page);
        match Completion::parse(&end).expect("an end") {
            Completion::Done { request, last: said, cursor } => {
                assert_eq!((request, said), (keccak256(&drawn.bytes), last));
                let Some(cursor) = cursor else { return found };
                of.cursor = Some(cursor);
            }
            Completion::Failed { text, .. } => panic!("{text}"),
        }
    }
}

/// Sends random requests, and compares the answers with `all`.
fn compare(node: &MailNode, random: &mut Random, all: &[Known], rounds: usize) {
    for round in 0..rounds {
        let wanted: Vec<Topic> = (0..random.below(7)).map(|_| topic(random.below(64))).collect();
        let of_topic = if random.below(2) == 0 { Bloom::of_topic } else { Bloom::of_topic_or };
        let mut bloom = Bloom::default();
        for topic in &wanted {
            bloom.add(&of_topic(*topic));
        }
        if random.below(10) == 0 {
            bloom = Bloom::FULL;
        }
        let by_topics = !wanted.is_empty() && random.below(2) == 0;
        let (one, two) = (SENT + random.below(220) as u32, SENT + random.below(220) as u32);
        let (lower, upper) = (one.min(two), one.max(two));
        let limit = *random.pick(&[0, 1, 7, 40, 1_000]);
        let of =
            HistoryRequest { lower, upper, bloom: Some(bloom), limit, ..HistoryRequest::default() };
        let newest_first = random.below(3) == 0;
        let topics: &[Topic] = if by_topics { &wanted } else { &[] };
        let found = answered(node, random, &of, topics, newest_first);
        let matches = |known: &&Known| {
            (lower..=upper).contains(&known.sent)
                && if by_topics {
                    wanted.contains(&known.topic)
                } else {
                    bloom.covers(&Bloom::of_topic(known.topic))
                }
        };
        let mut expected: Vec<&Known> = all.iter().filter(matches).collect();
        if newest_first {
            expected.sort_by_key(|known| (std::cmp::Reverse(known.sent), known.hash));
        }
        let expected: Vec<_> = expected.into_iter().map(|known| known.rlp.clone()).collect();
        assert!(
            found == expected,
            "round {round}, {of:?} {topics:02x?} newest first {newest_first}: {} of {}",
            found.len(),
            expected.len()
        );
    }
}

#[test]
fn both_stores_answer_random_requests_like_a_list() {
    let database = Cluster::shared().database("whisper history");
    for store in ["embedded", &*database.url] {
        let mut random = Random::new(29);
        let (mut all, lines) = draw(&mut random, 3_000);
        let data = folder("history");
        let file = data.join("lines");
        std::fs::write(&file, lines).expect("is written");
        let mut import = hark(&data);
        // Small segments, so that there are several segments and a head.
        import.args(["--store", store, "import", "--network", "whisper"]).arg(&file);
        let imported = import.env("HARK_ARCHIVE_SEAL_RECORDS", "400").output().expect("runs");
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        let settings = [("retention_days", "0"), ("HARK_ARCHIVE_SEAL_RECORDS", "400")];
        let mut node = MailNode::on(data, &["--store", store], &settings);
        compare(&node, &mut random, &all, 150);
        // After a restart and a deletion, answers are the same except for the deleted envelopes.
        node.stop();
        let gone = all[1_700].topic;
        let filter = format!(
            "{{\"topics\":[\"{:02x}{:02x}{:02x}{:02x}\"]}}",
            gone[0], gone[1], gone[2], gone[3]
        );
        let mut delete = hark(&node.data);
        delete.args(["--store", store, "delete", "--network", "whisper", "--yes", &filter]);
        assert!(delete.status().expect("runs").success());
        all.retain(|known| known.topic != gone);
        let node = MailNode::on(node.data.clone(), &["--store", store], &settings);
        compare(&node, &mut random, &all, 60);
    }
}
