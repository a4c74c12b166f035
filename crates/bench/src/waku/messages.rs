//! The messages for a node: published one by one, or written as the lines of a file.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use hark_codec::hex;
use hark_codec::waku::Message;

use crate::args::WakuGenArgs;
use crate::generate;
use crate::meter::ProgressMeter;
use crate::random::Random;

/// The time that a generated history spans.
const SPAN: Duration = Duration::from_hours(7 * 24);

/// A message without its time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MessageDraft {
    pub(crate) topic: String,
    payload: Vec<u8>,
}

impl MessageDraft {
    /// Draws a message with `bytes` of payload, under one of `topics` content topics.
    pub(crate) fn draw(random: &mut Random, topics: usize, bytes: usize) -> Self {
        let topic = format!("/bench/1/t{:04}/proto", random.zipf(topics));
        let mut payload = Vec::with_capacity(bytes + 32);
        while payload.len() < bytes {
            payload.extend_from_slice(&random.bytes());
        }
        payload.truncate(bytes);
        Self { topic, payload }
    }

    /// Appends the message as JSON, with this time in ns since 1970.
    pub(crate) fn write_json(&self, time_ns: i64, out: &mut Vec<u8>) {
        let payload = base64_simd::STANDARD.encode_to_string(&self.payload);
        // Neither payload nor topic contains anything to escape.
        out.extend_from_slice(b"{\"payload\":\"");
        out.extend_from_slice(payload.as_bytes());
        out.extend_from_slice(b"\",\"contentTopic\":\"");
        out.extend_from_slice(self.topic.as_bytes());
        // Writing to memory does not fail.
        let _ = write!(out, "\",\"version\":0,\"timestamp\":{time_ns},\"ephemeral\":false}}");
    }

    /// Returns the message with this time, in ns since 1970.
    pub(crate) fn message(&self, time_ns: i64) -> Message<'_> {
        Message {
            payload: &self.payload,
            content_topic: &self.topic,
            timestamp: Some(time_ns),
            ..Message::default()
        }
    }

    /// Returns the hash of the message in the format of nodes: `0x` and hex digits.
    pub(crate) fn hash(&self, time_ns: i64, pubsub_topic: &str) -> String {
        let hash = hex::encode_32(&self.message(time_ns).hash(pubsub_topic));
        format!("0x{}", String::from_utf8_lossy(&hash))
    }
}

/// Returns the current time, in ns since 1970.
pub(crate) fn now_ns() -> anyhow::Result<i64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    i64::try_from(now.as_nanos()).context("the clock is wrong")
}

/// `hark bench waku gen`.
pub(crate) fn write(args: &WakuGenArgs) -> anyhow::Result<ExitCode> {
    let to = match args.to {
        Some(to) => i64::try_from(to).context("--to lies too far ahead")?,
        None => now_ns()?,
    };
    anyhow::ensure!(
        u128::from(to.unsigned_abs()) > SPAN.as_nanos(),
        "--to {to} is less than a week after 1970: it is a time in nanoseconds, as in \
         --to 1700000000000000000"
    );
    let bytes = generate::create(&args.out, |out| {
        let mut meter = ProgressMeter::start("writing", args.messages);
        let (mut random, mut line, mut bytes) = (Random::new(args.seed), Vec::new(), 0);
        for number in 0..args.messages {
            line.clear();
            write_line(args, &mut random, time_of(number, args.messages, to), &mut line);
            out.write(&line)?;
            bytes += line.len() as u64;
            meter.at(number);
        }
        meter.finish();
        Ok(bytes)
    })?;
    generate::print_summary(&args.out, args.messages, "messages", bytes, args.seed);
    Ok(ExitCode::SUCCESS)
}

/// Returns the time of message `number` of `of`. The last message has the time `to`, and all are
/// evenly spaced.
fn time_of(number: u64, of: u64, to: i64) -> i64 {
    let before = SPAN.as_nanos() * u128::from(of - 1 - number) / u128::from(of);
    to - before as i64
}

fn write_line(args: &WakuGenArgs, random: &mut Random, time_ns: i64, line: &mut Vec<u8>) {
    let draft = MessageDraft::draw(random, args.topics, args.payload_bytes);
    let pubsub_topic = &args.pubsub_topic;
    let hash = draft.hash(time_ns, pubsub_topic);
    line.extend_from_slice(b"{\"messageHash\":\"");
    line.extend_from_slice(hash.as_bytes());
    line.extend_from_slice(b"\",\"message\":");
    draft.write_json(time_ns, line);
    line.extend_from_slice(b",\"pubsubTopic\":");
    hark_codec::nostr::json::write_string(line, pubsub_topic);
    line.extend_from_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TO: i64 = 1_700_000_000_000_000_000;

    fn args(seed: u64) -> WakuGenArgs {
        WakuGenArgs {
            out: "unused".into(),
            messages: 50,
            payload_bytes: 33,
            topics: 20,
            pubsub_topic: "/waku/2/rs/1/0".into(),
            seed,
            to: None,
        }
    }

    fn lines(seed: u64) -> Vec<u8> {
        let (args, mut random, mut out) = (args(seed), Random::new(seed), Vec::new());
        for number in 0..args.messages {
            write_line(&args, &mut random, time_of(number, args.messages, TO), &mut out);
        }
        out
    }

    #[test]
    fn a_seed_is_a_file() {
        assert_eq!(lines(1), lines(1));
        assert_ne!(lines(1), lines(2));
    }

    #[test]
    fn a_line_is_what_a_node_answers_with() {
        let lines = lines(7);
        let mut times = Vec::new();
        for line in lines.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n') {
            let found: Value = serde_json::from_slice(line).unwrap();
            let message = &found["message"];
            let payload =
                base64_simd::STANDARD.decode_to_vec(message["payload"].as_str().unwrap()).unwrap();
            assert_eq!(payload.len(), 33);
            let topic = message["contentTopic"].as_str().unwrap();
            assert!(topic.starts_with("/bench/1/t00") && topic.ends_with("/proto"), "{topic}");
            let time = message["timestamp"].as_i64().unwrap();
            let whole = Message {
                payload: &payload,
                content_topic: topic,
                timestamp: Some(time),
                ..Message::default()
            };
            let hash = hex::encode_32(&whole.hash("/waku/2/rs/1/0"));
            let expected = json!({
                "messageHash": format!("0x{}", str::from_utf8(&hash).unwrap()),
                "message": {
                    "payload": message["payload"], "contentTopic": topic, "version": 0,
                    "timestamp": time, "ephemeral": false,
                },
                "pubsubTopic": "/waku/2/rs/1/0",
            });
            assert_eq!(found, expected);
            times.push(time);
        }
        assert_eq!((times.len(), times[49]), (50, TO));
        let step = 7 * 24 * 3_600_000_000_000 / 50;
        assert!(times.windows(2).all(|two| two[1] - two[0] == step));
    }
}
