//! A sample of a file of events, collected in one pass. Queries are drawn from the sample.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::Path;

use anyhow::bail;
use hark_codec::hex;
use hark_codec::nostr::Event;
use hark_codec::record::{Id, Key};

use crate::events::{RARE_KIND, WRAP};
use crate::lines::EventFile;
use crate::meter::ProgressMeter;
use crate::random::Random;

/// Maximum number of ids that are kept.
const IDS: usize = 20_000;
/// Maximum number of notes whose text is kept.
const NOTES: usize = 4_000;
/// Kinds that notify the tagged people.
pub(crate) const NOTIFYING: [u16; 4] = [1, 6, 7, 9_735];

/// Things with their counts, the highest count first.
pub(crate) type Ranked<T> = Vec<(T, u32)>;

/// The sample of a file: counts, ids, texts, authors and times of its events.
pub(crate) struct EventSample {
    pub(crate) events: u64,
    pub(crate) ids: Vec<Id>,
    /// Texts of notes.
    pub(crate) notes: Vec<Box<str>>,
    /// Authors, each with the number of notes and reposts.
    pub(crate) authors: Ranked<Key>,
    /// The last hashtag of each author.
    pub(crate) hashtag_of: HashMap<Key, String>,
    /// Times of the events that anyone may read, ascending.
    pub(crate) times: Vec<u64>,
    /// Notes, each with the number of notes that tag the note.
    pub(crate) threads: Ranked<Id>,
    /// Events, each with the number of events that tag the event.
    pub(crate) named: Ranked<Id>,
    /// People, each with the number of notifications.
    pub(crate) notified: Ranked<Key>,
    /// People, each with the number of gift wraps they receive.
    pub(crate) inboxes: Ranked<Key>,
    /// Hashtags, each with the number of notes that carry the hashtag.
    pub(crate) hashtags: Ranked<String>,
    /// Authors, each with its number of profiles.
    pub(crate) profiles: Ranked<Key>,
    /// Authors, each with the number of events of the rare kind.
    pub(crate) rare: Ranked<Key>,
}

#[derive(Default)]
struct SampleCounts {
    authors: HashMap<Key, u32>,
    threads: HashMap<Id, u32>,
    named: HashMap<Id, u32>,
    notified: HashMap<Key, u32>,
    inboxes: HashMap<Key, u32>,
    hashtags: HashMap<String, u32>,
    profiles: HashMap<Key, u32>,
    rare: HashMap<Key, u32>,
}

fn ranked<T: Ord + Hash>(counts: HashMap<T, u32>) -> Ranked<T> {
    let mut all: Ranked<T> = counts.into_iter().collect();
    all.sort_unstable_by(|(a, a_count), (b, b_count)| b_count.cmp(a_count).then(a.cmp(b)));
    all
}

impl EventSample {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        Self::read_first(path, u64::MAX)
    }

    /// Reads the first `events_max` events of the file.
    pub(crate) fn read_first(path: &Path, events_max: u64) -> anyhow::Result<Self> {
        let mut lines = EventFile::open(path)?;
        let mut meter = ProgressMeter::start("reading", 0);
        let mut counts = SampleCounts::default();
        let (mut ids, mut times, mut hashtag_of) = (Vec::new(), Vec::new(), HashMap::new());
        let (mut notes, mut seen_notes, mut random_note) = (Vec::new(), 0, Random::new(1));
        // The seed is fixed, so that the same events give the same sample.
        let mut random = Random::new(0);
        let (mut events, mut kept) = (0u64, 0);
        while events < events_max
            && let Some(event) = lines.event()?
        {
            events += 1;
            if events.is_multiple_of(4_096) {
                meter.at(events);
            }
            counts.count(&event, &mut hashtag_of);
            if !is_private(event.kind()) {
                times.push(event.created_at());
            }
            if event.kind() == 1 {
                seen_notes += 1;
                if notes.len() < NOTES {
                    notes.push(Box::from(event.content()));
                } else if let Some(slot) = notes.get_mut(random_note.below(seen_notes)) {
                    *slot = Box::from(event.content());
                }
            }
            // Events that a later version may have replaced are not queried by id.
            if is_public_regular(event.kind()) {
                // Reservoir sampling: every event is equally likely to be kept.
                kept += 1;
                if ids.len() < IDS {
                    ids.push(*event.id());
                } else if let Some(slot) = ids.get_mut(random.below(kept)) {
                    *slot = *event.id();
                }
            }
        }
        meter.finish();
        if times.is_empty() {
            bail!("{} holds no events that anyone may see", path.display());
        }
        times.sort_unstable();
        Ok(Self {
            events,
            ids,
            notes,
            times,
            hashtag_of,
            authors: ranked(counts.authors),
            threads: ranked(counts.threads),
            named: ranked(counts.named),
            notified: ranked(counts.notified),
            inboxes: ranked(counts.inboxes),
            hashtags: ranked(counts.hashtags),
            profiles: ranked(counts.profiles),
            rare: ranked(counts.rare),
        })
    }
}

/// Whether only the author and the tagged people may read events of this kind.
fn is_private(kind: u16) -> bool {
    kind == 4 || kind == WRAP
}

/// Whether events of this kind are public and never replaced by another event.
fn is_public_regular(kind: u16) -> bool {
    !is_private(kind) && !matches!(kind, 0 | 3 | 10_000..40_000)
}

impl SampleCounts {
    fn count(&mut self, event: &Event<'_>, hashtag_of: &mut HashMap<Key, String>) {
        let kind = event.kind();
        let people = || event.labels().filter(|(letter, _)| *letter == b'p');
        if kind == WRAP {
            for key in people().filter_map(|(_, key)| hex::decode_32(key.as_bytes())) {
                *self.inboxes.entry(key).or_default() += 1;
            }
        }
        // Private events count only for inboxes.
        if is_private(kind) {
            return;
        }
        let of_author = match kind {
            1 | 6 => Some(&mut self.authors),
            0 => Some(&mut self.profiles),
            RARE_KIND => Some(&mut self.rare),
            _ => None,
        };
        if let Some(authors) = of_author {
            *authors.entry(*event.pubkey()).or_default() += 1;
        }
        if NOTIFYING.contains(&kind) {
            for key in people().filter_map(|(_, key)| hex::decode_32(key.as_bytes())) {
                *self.notified.entry(key).or_default() += 1;
            }
        }
        for (letter, value) in event.labels() {
            match letter {
                b'e' => {
                    let Some(id) = hex::decode_32(value.as_bytes()) else { continue };
                    *self.named.entry(id).or_default() += 1;
                    if kind == 1 {
                        *self.threads.entry(id).or_default() += 1;
                    }
                }
                b't' if kind == 1 => {
                    *self.hashtags.entry(value.to_owned()).or_default() += 1;
                    hashtag_of.insert(*event.pubkey(), value.to_owned());
                }
                _ => {}
            }
        }
    }
}
