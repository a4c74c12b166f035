//! Events that are hard for a relay: many of the same second, versions of one address, deletions,
//! long and unusual tag values, extreme kinds and times. The same seed gives the same events.

use hark_codec::crypto::KeyPair;

use super::oracle::{address, is_replaceable};
use crate::probe::event::{EventPlan, ProbeEvent};
use crate::probe::run::ProbeRun;
use crate::random::Random;
use crate::text;

/// The number of authors.
const AUTHORS: usize = 9;
/// Kinds of all classes (regular, replaceable, ephemeral, addressable), many at the ends of a
/// class.
const KINDS: [u64; 22] = [
    0, 1, 1, 1, 1, 2, 3, 6, 7, 7, 44, 1_000, 9_999, 10_000, 10_002, 19_999, 20_001, 30_000, 30_023,
    39_999, 40_000, 65_535,
];
/// Letters of tags with arbitrary values.
pub(super) const LETTERS: [&str; 6] = ["t", "r", "x", "T", "k", "Z"];
/// Most events are at most this much older than the newest event, in seconds.
const SPAN_S: u64 = 86_400;

/// The events of a run, in the order of publishing.
pub(super) struct HardCorpus {
    pub(super) events: Vec<(ProbeEvent, KeyPair)>,
    /// The tag value that all events have in their first tag `t`.
    pub(super) name: String,
    /// Values of tags, some of which no event has.
    pub(super) values: Vec<String>,
}

impl HardCorpus {
    /// Makes the events.
    pub(super) fn new(run: &ProbeRun, count: u64, to: u64) -> anyhow::Result<Self> {
        let seed = u64::from_le_bytes(*run.seed.first_chunk().unwrap_or(&[0; 8]));
        let mut random = Random::new(seed);
        let keys = match &run.member {
            Some(keys) => vec![keys.clone()],
            None => (0..AUTHORS)
                .map(|number| run.keys(&format!("answers {number}")))
                .collect::<anyhow::Result<_>>()?,
        };
        let name = format!("hark-{}", run.name());
        let mut corpus = Self { events: Vec::new(), values: values(&name), name };
        // Events share few seconds, so that many have the same time.
        let times: Vec<u64> = (0..40).map(|_| to - random.below(SPAN_S as usize) as u64).collect();
        let oldest = run.info.limit("created_at_lower_limit").unwrap_or(0);
        while corpus.events.len() < count as usize {
            let keys = keys[random.zipf(keys.len())].clone();
            let time = match random.below(20) {
                // Very old events are left out if the relay refuses old events.
                0 if oldest == 0 => *random.pick(&[0, 1, 1_000_000_000, 1_234_567_890]),
                0..5 => to - random.below(SPAN_S as usize) as u64,
                _ => *random.pick(&times),
            };
            let plan = if random.once_in(12) && corpus.events.len() > 20 {
                corpus.deletion(&mut random, time)
            } else {
                corpus.plan(run, &mut random, time)
            };
            corpus.events.push((plan.mine(&keys, run.work_bits()), keys));
            if random.once_in(6)
                && let Some(version) = corpus.version(run, &mut random)
            {
                corpus.events.push(version);
            }
            if random.once_in(20) {
                // The same event once more.
                corpus.events.push(random.pick(&corpus.events[..]).clone());
            }
        }
        Ok(corpus)
    }

    /// Plans an event of any kind but 5.
    fn plan(&self, run: &ProbeRun, random: &mut Random, time: u64) -> EventPlan {
        let kind = *random.pick(&KINDS);
        let mut plan = EventPlan::new(kind, time).tag(&["t", &self.name]);
        if (30_000..40_000).contains(&kind) {
            plan = match random.below(5) {
                0 => plan,
                1 => plan.tag(&["d", ""]),
                2 => plan.tag(&["d", "é"]).tag(&["d", "second"]),
                number => plan.tag(&["d", &format!("d{number}")]),
            };
        }
        let tags_max = run.info.limit("max_event_tags").unwrap_or(2_000).min(400) as usize;
        let tags = if random.once_in(40) { tags_max.saturating_sub(8) } else { random.below(5) };
        for _ in 0..tags {
            let letter = LETTERS[random.below(LETTERS.len())];
            let (value, second) = (random.pick(&self.values), random.pick(&self.values));
            plan = plan.tag(&[letter, value, second]);
        }
        if random.once_in(3)
            && let Some((event, _)) = self.events.last()
        {
            plan = plan.tag(&["e", &event.id]).tag(&["p", &event.pubkey]);
        }
        if random.once_in(15) {
            plan = plan.tag(&["expiration", "4000000000"]).tag(&["x"]).tag(&["long name", "v"]);
        }
        let content = match random.below(12) {
            0 => "large ".repeat(random.between(1, 1_200)),
            1 => "\"\\\n\t\r\u{8}\u{c}/<>&\u{7f}\u{2028}".into(),
            2 => "привет 今日は 🌅 ﷽ e\u{301}".into(),
            _ => format!("event {}", self.events.len()),
        };
        // A profile must be JSON on some relays.
        if kind == 0 { plan.content("{\"name\":\"hark\"}") } else { plan.content(content) }
    }

    /// Makes another version of a recent event, with the same time. `None` if the event is not
    /// replaceable.
    fn version(&self, run: &ProbeRun, random: &mut Random) -> Option<(ProbeEvent, KeyPair)> {
        let number = self.events.len();
        let (event, keys) = self.events.get(number - 1 - random.below(number.min(8)))?;
        if !is_replaceable(event.kind) {
            return None;
        }
        let plan = EventPlan {
            kind: event.kind,
            created_at: event.created_at,
            tags: event.tags.clone(),
            content: format!("{{\"name\":\"version {number}\"}}"),
        };
        Some((plan.mine(keys, run.work_bits()), keys.clone()))
    }

    /// Plans a deletion request: of events of any author by id, or of versions by address. Only
    /// regular events are deleted by id: if a version is deleted by id, the NIPs do not define
    /// which older version remains.
    fn deletion(&self, random: &mut Random, time: u64) -> EventPlan {
        let mut plan = EventPlan::new(5, time).tag(&["t", &self.name]);
        for _ in 0..random.between(1, 4) {
            let (event, _) = random.pick(&self.events[..]);
            plan = if is_replaceable(event.kind) {
                plan.tag(&["a", &address(event)])
            } else {
                plan.tag(&["e", &event.id])
            };
        }
        plan.content("deleted")
    }

    /// The public keys of the authors.
    pub(super) fn authors(&self) -> Vec<String> {
        let mut authors: Vec<_> =
            self.events.iter().map(|(_, keys)| text::hex(keys.public())).collect();
        authors.sort();
        authors.dedup();
        authors
    }
}

/// Values of tags, made unique for the run by its name.
fn values(name: &str) -> Vec<String> {
    let long = "long".repeat(70);
    let mut all: Vec<String> =
        ["", "a", "A", "a ", "é", "e\u{301}", "🌅", "\"", "\\", "null", "0", "日本"]
            .iter()
            .map(|value| (*value).to_owned())
            .collect();
    all.extend([format!("{name}-a"), format!("{name}-b"), format!("{long}1"), format!("{long}2")]);
    all.push("x".repeat(900));
    all
}
