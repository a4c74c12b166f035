//! Makes a month of envelopes, distributed like those of Status' mail servers in 2019: a few topics
//! with nearly all envelopes, and thousands of topics with very few.

use std::collections::HashSet;
use std::ops::Range;
use std::process::ExitCode;

use anyhow::ensure;
use hark_codec::crypto::keccak256;
use hark_codec::whisper::{Envelope, Topic};

use super::args::{ENVELOPES, WhisperGenArgs};
use crate::generate;
use crate::meter::ProgressMeter;
use crate::random::Random;

/// Number of envelopes of the last week.
const LAST_WEEK: u64 = 316_479;
/// First second of the month: 2019-04-01, in s since 1970.
const START_S: u32 = 1_554_076_800;
const DAY_S: u32 = 86_400;
/// Number of topics.
const TOPICS: usize = 9_606;
/// Numbers of envelopes of the busiest topics.
const TOP: [u64; 4] = [1_043_120, 351_359, 7_892, 4_441];
/// Maximum number of envelopes of any other topic. The topic of rank k after the busiest topics has
/// about `1 / (k + 2)` of this number.
const TAIL_MAX: u64 = 2_080;
/// The topic with most envelopes, and the name of the topic for contact discovery.
const TOP_TOPIC: Topic = [0x5c, 0x6c, 0x9b, 0x56];
const DISCOVERY: &[u8] = b"contact-discovery";
/// Lengths of an envelope's data, for 60, 30 and 10 % of all envelopes. Symmetric encryption adds
/// 28 bytes to multiples of 256, and the asymmetric encryption of the discovery topic adds 113
/// bytes.
const DATA_BYTES: [usize; 3] = [284, 540, 796];
const DISCOVERY_DATA_BYTES: [usize; 3] = [369, 625, 881];
/// Time for which nodes forward an envelope, in s.
const TTL_S: u32 = 10;
/// Nonces are below this bound, as if each proof of work had taken a fraction of a second.
const NONCE_MAX: u64 = 1 << 24;
/// Maximum number of envelopes in a run, because each takes six bytes of memory.
const ENVELOPES_MAX: u64 = 1 << 28;

/// A generator of the envelopes of a seed, oldest first.
pub(crate) struct EnvelopeGenerator {
    random: Random,
    topics: Vec<Topic>,
    /// Times of sending, ascending, and the index of each envelope's topic.
    times: Vec<u32>,
    order: Vec<u16>,
    next: usize,
    data: Vec<u8>,
}

impl EnvelopeGenerator {
    /// Prepares `count` envelopes.
    pub(crate) fn new(count: u64, seed: u64) -> anyhow::Result<Self> {
        ensure!(
            (1..=ENVELOPES_MAX).contains(&count),
            "--envelopes {count}: there may be 1 to {ENVELOPES_MAX}"
        );
        let mut random = Random::new(seed);
        let counts = topic_counts(count);
        let topics = topics(&mut random, counts.len());
        let mut order = Vec::with_capacity(count as usize);
        for (at, topic_count) in (0..).zip(&counts) {
            order.extend(std::iter::repeat_n(at, *topic_count as usize));
        }
        for left in (1..order.len()).rev() {
            order.swap(left, random.below(left + 1));
        }
        let week = share(count, LAST_WEEK).min(count);
        let mut times = Vec::with_capacity(count as usize);
        let last = START_S + 23 * DAY_S..START_S + 30 * DAY_S;
        for (part, range) in [(count - week, START_S..last.start), (week, last)] {
            times.extend((0..part).map(|_| time_in(&mut random, &range)));
        }
        times.sort_unstable();
        Ok(Self { random, topics, times, order, next: 0, data: Vec::new() })
    }

    /// Number of envelopes.
    pub(crate) fn count(&self) -> u64 {
        self.times.len() as u64
    }

    /// Makes the next envelope.
    pub(crate) fn draw(&mut self) -> Option<Envelope<'_>> {
        let (sent, at) = (*self.times.get(self.next)?, usize::from(*self.order.get(self.next)?));
        self.next += 1;
        let topic = *self.topics.get(at)?;
        let lengths = if at == 1 { DISCOVERY_DATA_BYTES } else { DATA_BYTES };
        let length = match self.random.below(10) {
            0..6 => lengths[0],
            6..9 => lengths[1],
            _ => lengths[2],
        };
        self.data.clear();
        while self.data.len() < length {
            self.data.extend_from_slice(&self.random.bits().to_le_bytes());
        }
        self.data.truncate(length);
        let nonce = self.random.bits() % NONCE_MAX;
        Some(Envelope { expiry: sent + TTL_S, ttl: TTL_S, topic, data: &self.data, nonce })
    }
}

fn time_in(random: &mut Random, range: &Range<u32>) -> u32 {
    range.start + random.below(range.len()) as u32
}

/// Scales `part`, a number of envelopes of the whole month, to a run of `count` envelopes. The
/// result is rounded.
fn share(count: u64, part: u64) -> u64 {
    let doubled = u128::from(count) * u128::from(part) * 2 / u128::from(ENVELOPES);
    (doubled as u64).div_ceil(2)
}

/// Returns the number of envelopes of each topic, in descending order, for `count` in all. Topics
/// without envelopes are left out.
fn topic_counts(count: u64) -> Vec<u64> {
    let mut counts: Vec<u64> = TOP.iter().map(|top| share(count, *top)).collect();
    let mut left = count.saturating_sub(counts.iter().sum());
    let max = share(count, TAIL_MAX).max(1);
    let tail_topics = TOPICS - TOP.len();
    let tail_topics = share(count, tail_topics as u64).min(tail_topics as u64).min(left) as usize;
    let tail = |scale: u64| {
        let of = move |rank: usize| (scale / (rank as u64 + 2)).clamp(1, max);
        (0..tail_topics).map(of)
    };
    // The largest scale at which the tail's sum does not exceed `left`.
    let (mut low, mut high) = (0, max * (tail_topics as u64 + 2));
    while low < high {
        let middle = (low + high).div_ceil(2);
        if tail(middle).sum::<u64>() <= left {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let mut tail: Vec<u64> = tail(low).collect();
    left -= tail.iter().sum::<u64>().min(left);
    // The remaining envelopes go to the first topics below `max`.
    for topic in tail.iter_mut().filter(|topic| **topic < max) {
        let more = u64::from(left > 0);
        *topic += more;
        left -= more;
    }
    counts.append(&mut tail);
    // Rounding may have assigned a few envelopes too many, and some envelopes may remain when all
    // topics are full. The busiest topic takes the difference.
    let given: u64 = counts.iter().sum();
    if let Some(first) = counts.first_mut() {
        *first = (*first + count).saturating_sub(given);
    }
    counts.retain(|topic| *topic > 0);
    counts
}

/// Draws distinct topics. The first two are the known topics.
fn topics(random: &mut Random, count: usize) -> Vec<Topic> {
    let [a, b, c, d, ..] = keccak256(DISCOVERY);
    let mut topics = vec![TOP_TOPIC, [a, b, c, d]];
    let mut known: HashSet<Topic> = topics.iter().copied().collect();
    while topics.len() < count {
        let topic = (random.bits() as u32).to_be_bytes();
        if known.insert(topic) {
            topics.push(topic);
        }
    }
    topics
}

/// `hark bench whisper gen`.
pub(super) fn write(args: &WhisperGenArgs) -> anyhow::Result<ExitCode> {
    let mut envelopes = EnvelopeGenerator::new(args.made.envelopes, args.made.seed)?;
    let count = envelopes.count();
    let bytes = generate::create(&args.out, |out| {
        let mut meter = ProgressMeter::start("writing", count);
        let (mut frame, mut bytes, mut done) = (Vec::new(), 0, 0);
        while let Some(envelope) = envelopes.draw() {
            frame.clear();
            frame.extend_from_slice(&u32::try_from(envelope.rlp_len())?.to_be_bytes());
            envelope.write(&mut frame);
            out.write(&frame)?;
            bytes += frame.len() as u64;
            done += 1;
            meter.at(done);
        }
        meter.finish();
        Ok(bytes)
    })?;
    generate::print_summary(&args.out, count, "envelopes", bytes, args.made.seed);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn all(count: u64, seed: u64) -> Vec<u8> {
        let (mut envelopes, mut out) = (EnvelopeGenerator::new(count, seed).unwrap(), Vec::new());
        while let Some(envelope) = envelopes.draw() {
            envelope.write(&mut out);
        }
        out
    }

    #[test]
    fn a_seed_is_a_file() {
        assert_eq!(all(300, 1), all(300, 1));
        assert_ne!(all(300, 1), all(300, 2));
        assert!(EnvelopeGenerator::new(0, 1).is_err());
        assert!(EnvelopeGenerator::new(u64::MAX, 1).is_err());
    }

    #[test]
    fn topics_have_the_envelopes_of_the_month() {
        let counts = topic_counts(ENVELOPES);
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (TOPICS, ENVELOPES));
        assert_eq!((&counts[..4], counts[4], counts[TOPICS - 1]), (&TOP[..], TAIL_MAX, 1));
        assert!(counts.is_sorted_by(|a, b| a >= b));
        // The number of envelopes is about proportional to 1 / rank.
        assert!(counts[54] > 3 * counts[204], "{} {}", counts[54], counts[204]);
        for count in [1, 2, 3, 7, 50, 999, 20_000, 3_000_000] {
            let counts = topic_counts(count);
            assert_eq!(counts.iter().sum::<u64>(), count);
            assert!(counts.is_sorted_by(|a, b| a >= b) && counts.len() <= TOPICS, "{count}");
            assert!(counts.iter().all(|topic| *topic > 0), "{count}");
        }
    }

    #[test]
    fn envelopes_are_spread_over_the_month() {
        let mut envelopes = EnvelopeGenerator::new(ENVELOPES / 50, 7).unwrap();
        assert_eq!(envelopes.count(), 29_356);
        let (mut of, mut bytes, mut week, mut before) = (HashMap::new(), 0, 0, START_S);
        while let Some(envelope) = envelopes.draw() {
            let mut rlp = Vec::new();
            envelope.write(&mut rlp);
            assert_eq!(Envelope::parse(&rlp), Ok(envelope));
            assert!((before..START_S + 30 * DAY_S).contains(&envelope.sent()));
            before = envelope.sent();
            week += u64::from(envelope.sent() >= START_S + 23 * DAY_S);
            bytes += rlp.len();
            *of.entry(envelope.topic).or_insert(0u64) += 1;
        }
        assert_eq!((week, of[&TOP_TOPIC]), (6_329, 20_862));
        assert_eq!(of[&[0xf8, 0x94, 0x6a, 0xac]], 7_027);
        let mean = bytes as f64 / 29_356.0;
        assert!((451.0..456.0).contains(&mean), "{mean}");
    }
}
