//! What follows from what another store says it has: what to say next, and what it lacks. No more than
//! arithmetic on sorted lists; `sync` asks and answers with it.

use hark_codec::record::Id;
use hark_codec::waku::sync::{Payload, Place, Range, Said, fingerprint};

/// Messages of a range that are told one by one; of more, fingerprints of its parts are.
const ITEMS_MAX: usize = 100;
/// How many parts.
const PARTS: u64 = 8;

/// What follows from a payload.
pub(super) struct Answer {
    /// What to say next.
    pub(super) ranges: Vec<Range>,
    /// Hashes of the messages that the other store lacks, as far as that is known by now.
    pub(super) lacks: Vec<Id>,
    /// How many messages this store lacks, of those that the other one has told.
    pub(super) missed: usize,
}

/// Answers a payload. `own` are this store's messages of its topics, in order.
pub(super) fn answer(own: &[Place], said: &Payload) -> Answer {
    let (mut ranges, mut lacks) = (Vec::with_capacity(said.ranges.len()), Vec::new());
    let mut missed = 0;
    let mut start = (said.start, [0; 32]);
    for Range { end, said } in &said.ranges {
        let here = &own[place(own, start)..place(own, *end).max(place(own, start))];
        match said {
            Said::Skip => ranges.push(skip(*end)),
            Said::Fingerprint(theirs) if *theirs == fingerprint(here) => ranges.push(skip(*end)),
            Said::Fingerprint(_) if here.len() <= ITEMS_MAX => ranges.push(items(here, *end)),
            Said::Fingerprint(_) => divide(here, start.0, *end, &mut ranges),
            Said::Items(theirs, told) => {
                lacks.extend(only(here, theirs).map(|own| own.1));
                missed += only(theirs, here).count();
                let said = if *told { Said::Skip } else { Said::Items(here.to_vec(), true) };
                ranges.push(Range { end: *end, said });
            }
        }
        start = *end;
    }
    Answer { ranges, lacks, missed }
}

/// What is in the one list and not in the other.
fn only<'a>(one: &'a [Place], other: &[Place]) -> impl Iterator<Item = &'a Place> {
    one.iter().filter(|item| other.binary_search(item).is_err())
}

/// The first of `own` that is not before a place.
fn place(own: &[Place], at: Place) -> usize {
    own.partition_point(|own| *own < at)
}

fn skip(end: Place) -> Range {
    Range { end, said: Said::Skip }
}

/// Who has nothing has nothing more to hear of.
fn items(here: &[Place], end: Place) -> Range {
    Range { end, said: Said::Items(here.to_vec(), here.is_empty()) }
}

/// In parts that take as much time each.
fn divide(here: &[Place], start: u64, end: Place, ranges: &mut Vec<Range>) {
    let span = end.0.saturating_sub(start);
    if span < PARTS {
        // Many at once: nothing but telling them is left.
        return ranges.push(items(here, end));
    }
    let mut rest = here;
    for part in 1..=PARTS {
        let stop = if part == PARTS { end } else { (start + span / PARTS * part, [0; 32]) };
        let (part, behind) = rest.split_at(place(rest, stop));
        rest = behind;
        ranges.push(if part.len() <= ITEMS_MAX {
            items(part, stop)
        } else {
            Range { end: stop, said: Said::Fingerprint(fingerprint(part)) }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Any two sets become the same, in a few rounds.
    #[test]
    fn two_stores_learn_what_the_other_lacks() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for (count, span, lost) in [
            (0, 1_000, 2),
            (1, 1_000, 2),
            (50, 10, 3),
            (1_000, 3, 2),
            (3_000, 1_000_000, 20),
            (20_000, 3_600_000_000_000, 20),
            (5_000, 3_600_000_000_000, 100_000),
        ] {
            let (mut one, mut two) = (BTreeSet::new(), BTreeSet::new());
            for _ in 0..count {
                let mut hash = [0; 32];
                hash[..8].copy_from_slice(&random(u64::MAX >> 33).to_be_bytes());
                hash[8..16].copy_from_slice(&random(u64::MAX >> 33).to_be_bytes());
                let item = (1_000 + random(span), hash);
                if random(lost) != 0 {
                    one.insert(item);
                }
                if random(lost) != 0 {
                    two.insert(item);
                }
            }
            let lists: [Vec<Place>; 2] = [&one, &two].map(|set| set.iter().copied().collect());
            let end = (1_000 + span, [0; 32]);
            let first = Said::Fingerprint(fingerprint(&lists[0]));
            let mut payload = Payload {
                start: 1_000,
                ranges: vec![Range { end, said: first }],
                ..Payload::default()
            };
            let mut sent: [BTreeSet<Id>; 2] = Default::default();
            let (mut rounds, mut missed) = (0, [0; 2]);
            loop {
                let mut bytes = Vec::new();
                payload.write(&mut bytes);
                let Some(heard) = Payload::parse(&bytes).unwrap() else { break };
                let who = (rounds + 1) % 2;
                let answer = answer(&lists[who], &heard);
                sent[who].extend(answer.lacks);
                missed[who] += answer.missed;
                payload = Payload { ranges: answer.ranges, ..heard };
                rounds += 1;
                assert!(rounds < 32, "{count} of {span}");
            }
            let ids = |a: &BTreeSet<Place>, b: &BTreeSet<Place>| -> BTreeSet<Id> {
                a.difference(b).map(|item| item.1).collect()
            };
            assert_eq!(sent[0], ids(&one, &two), "{count} of {span}");
            assert_eq!(sent[1], ids(&two, &one), "{count} of {span}");
            // Who says that it has nothing is not told what it lacks.
            let lost = [sent[1].len(), sent[0].len()];
            assert!(missed[0] <= lost[0] && missed[1] <= lost[1], "{missed:?} of {lost:?}");
            if count == 50 {
                assert_eq!(missed, lost);
            }
        }
    }
}
