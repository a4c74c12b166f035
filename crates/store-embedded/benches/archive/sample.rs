//! Data of the archive from which the bench makes its questions.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use hark_archive::{Id, LabelSet, Query, Record, Store};
use hark_store_embedded::EmbeddedStore;
use hark_testkit::events::Events;
use hark_testkit::random::Random;

/// Data from which the bench makes its questions.
pub(crate) struct Sample {
    pub(crate) random: Random,
    pub(crate) ids: Vec<Id>,
    /// Notes that have replies, each note once.
    pub(crate) notes: Vec<Id>,
    /// The notes with the most replies.
    pub(crate) hot: Vec<Id>,
    /// The notes to which the newest records reply, once per reply.
    pub(crate) recent: Vec<Id>,
    pub(crate) authors: Vec<[u8; 32]>,
    pub(crate) newest: u64,
    /// The wire bytes of all records, concatenated, and the position of each record, to measure the
    /// cost of copying an answer.
    pub(crate) wires: Vec<u8>,
    pub(crate) places: HashMap<Id, Range<usize>>,
}

impl Sample {
    pub(crate) fn author(&mut self, bound: usize) -> [u8; 32] {
        self.authors[Events::zipf(&mut self.random, bound)]
    }

    /// Picks a thread. The lengths are distributed as in the reference measurement: half of the
    /// threads are short, and the mean is 90 replies.
    pub(crate) fn thread(&mut self) -> Id {
        let notes = if self.random.below(10) < 3 { &self.hot } else { &self.notes };
        notes[self.random.below(notes.len())]
    }

    /// Picks a note that a client may have on its screen.
    pub(crate) fn note(&mut self) -> Id {
        self.recent[self.random.below(self.recent.len())]
    }

    pub(crate) fn crowd(&mut self, count: usize) -> Vec<[u8; 32]> {
        (0..count).map(|_| self.author(20_000)).collect()
    }
}

pub(crate) fn hex(bytes: &[u8; 32]) -> Box<[u8]> {
    hark_codec::hex::encode_32(bytes).into()
}

pub(crate) fn label(name: u8, values: Vec<Box<[u8]>>) -> Vec<LabelSet> {
    vec![LabelSet { name, values }]
}

/// Collects the data of an archive with these events.
pub(crate) fn sample(store: &EmbeddedStore, events: &Events) -> Sample {
    let (mut ids, mut recent, mut at) = (Vec::new(), Vec::new(), 0u32);
    let (mut wires, mut places) = (Vec::new(), HashMap::new());
    let mut answers: HashMap<Id, u32> = HashMap::new();
    let mut search = store.search(&Query::default()).expect("searches");
    let mut each = |record: &Record<'_>| {
        at += 1;
        if at.is_multiple_of(7) {
            ids.push(*record.id());
        }
        let start = wires.len();
        wires.extend_from_slice(record.wire());
        places.insert(*record.id(), start..wires.len());
        let named = record.labels().find(|(name, _)| *name == b'e');
        if let Some(note) = named.and_then(|(_, id)| hark_codec::hex::decode_32(id)) {
            *answers.entry(note).or_default() += 1;
            if at < 20_000 {
                recent.push(note);
            }
        }
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut each).expect("answers");
    let mut notes: Vec<(u32, Id)> = answers.into_iter().map(|(id, count)| (count, id)).collect();
    notes.sort_unstable();
    let notes: Vec<Id> = notes.into_iter().map(|(_, id)| id).collect();
    Sample {
        hot: notes[notes.len().saturating_sub(1_000)..].to_vec(),
        recent,
        wires,
        places,
        random: Random::new(99),
        ids,
        notes,
        authors: events.authors().to_vec(),
        newest: store.stats().newest.unwrap_or(0),
    }
}
