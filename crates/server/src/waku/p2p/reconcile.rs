//! Compares this store's messages with a payload of another store. Computes the next payload, and
//! the messages that the other store lacks. Works on sorted lists only; `sync` does the
//! communication.

use hark_codec::waku::sync::{
    MessagePosition, PayloadWriter, RangeContent, SyncItems, SyncPayload, fingerprint,
};

/// Maximum number of listed messages of a range. A range with more messages is divided into parts,
/// and fingerprints of the parts are sent.
const ITEMS_MAX: usize = 100;
/// Number of parts that a range is divided into.
const PARTS: u64 = 8;

/// The differences between the two stores that the payloads so far have revealed.
#[derive(Debug, Default)]
pub(super) struct Reconciliation {
    /// For each of this store's messages, up to the last lacked message: whether the other store
    /// lacks the message. A list of the lacked messages could grow without bound, because a store
    /// may report the same message any number of times.
    lacks: Vec<bool>,
    /// Number of messages that the other store has listed and this store lacks.
    pub(super) missed: usize,
}

impl Reconciliation {
    fn lacks(&mut self, at: usize) {
        if self.lacks.len() <= at {
            self.lacks.resize(at + 1, false);
        }
        self.lacks[at] = true;
    }

    /// Keeps in `own`, this store's messages, only the messages that the other store lacks.
    pub(super) fn retain_lacked(&self, own: &mut Vec<MessagePosition>) {
        let mut at = 0;
        own.retain(|_| {
            at += 1;
            self.lacks.get(at - 1).copied().unwrap_or_default()
        });
    }

    /// Compares this store's messages of a range with the other store's messages. Both lists are
    /// sorted.
    fn compare(
        &mut self,
        own: &[MessagePosition],
        (first, end): (usize, usize),
        theirs: &SyncItems<'_>,
    ) {
        let mut theirs = theirs.iter().peekable();
        for (at, here) in own.iter().enumerate().take(end).skip(first) {
            while theirs.next_if(|there| there < here).is_some() {
                self.missed += 1;
            }
            if theirs.next_if_eq(here).is_none() {
                self.lacks(at);
            }
        }
        self.missed += theirs.count();
    }
}

/// Answers a payload, and records in `found` which messages each store lacks. `own` holds this
/// store's messages of the payload's topics, sorted.
pub(super) fn answer(
    own: &[MessagePosition],
    said: &SyncPayload<'_>,
    found: &mut Reconciliation,
    answer: &mut PayloadWriter,
) {
    let (mut start, mut first) = ((said.start, [0; 32]), index_of(own, (said.start, [0; 32])));
    for range in said.ranges() {
        let behind = first + index_of(&own[first..], range.end);
        let here = &own[first..behind];
        match range.said {
            RangeContent::Skip => answer.skip(range.end),
            RangeContent::Fingerprint(theirs) if theirs == fingerprint(here) => {
                answer.skip(range.end);
            }
            RangeContent::Fingerprint(_) if here.len() <= ITEMS_MAX => {
                items(here, range.end, answer);
            }
            RangeContent::Fingerprint(_) => divide(here, start.0, range.end, answer),
            RangeContent::Items(theirs, was_sent) => {
                found.compare(own, (first, behind), &theirs);
                if was_sent {
                    answer.skip(range.end);
                } else {
                    answer.items(range.end, here, true);
                }
            }
        }
        (start, first) = (range.end, behind);
    }
}

/// Returns the index of the first message of `own` that is not before `at`.
fn index_of(own: &[MessagePosition], at: MessagePosition) -> usize {
    own.partition_point(|own| *own < at)
}

/// Lists the messages of a range. If this store has no messages in the range, it has none to send,
/// so it asks the other store not to list its messages.
fn items(here: &[MessagePosition], end: MessagePosition, answer: &mut PayloadWriter) {
    answer.items(end, here, here.is_empty());
}

/// Divides a range into parts of equal duration. Each part is listed or gets a fingerprint.
fn divide(here: &[MessagePosition], start: u64, end: MessagePosition, answer: &mut PayloadWriter) {
    let span = end.0.saturating_sub(start);
    if span < PARTS {
        // A range this short cannot be divided, so even many messages are listed.
        return items(here, end, answer);
    }
    let mut rest = here;
    for part in 1..=PARTS {
        let stop = if part == PARTS { end } else { (start + span / PARTS * part, [0; 32]) };
        let (part, behind) = rest.split_at(index_of(rest, stop));
        rest = behind;
        if part.len() <= ITEMS_MAX {
            items(part, stop, answer);
        } else {
            answer.fingerprint(stop, &fingerprint(part));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Stores with any two sets of messages find the difference in a few rounds.
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
            let lists: [Vec<MessagePosition>; 2] =
                [&one, &two].map(|set| set.iter().copied().collect());
            let end = (1_000 + span, [0; 32]);
            let writer = || PayloadWriter::new(&[], 1_000, 4 << 20);
            let mut first = writer();
            first.fingerprint(end, &fingerprint(&lists[0]));
            let mut bytes = first.finish().0;
            let mut found: [Reconciliation; 2] = Default::default();
            let mut rounds = 0;
            while let Some(received) = SyncPayload::parse(&bytes).unwrap() {
                let (who, mut next) = ((rounds + 1) % 2, writer());
                answer(&lists[who], &received, &mut found[who], &mut next);
                bytes = next.finish().0;
                rounds += 1;
                assert!(rounds < 32, "{count} of {span}");
            }
            let lacked = |who: usize| -> Vec<MessagePosition> {
                let mut own = lists[who].clone();
                found[who].retain_lacked(&mut own);
                own
            };
            assert!(one.difference(&two).eq(&lacked(0)), "{count} of {span}");
            assert!(two.difference(&one).eq(&lacked(1)), "{count} of {span}");
            // A store that reports an empty range gets no list of the messages that it lacks there.
            let missed = [found[0].missed, found[1].missed];
            let lost = [lacked(1).len(), lacked(0).len()];
            assert!(missed[0] <= lost[0] && missed[1] <= lost[1], "{missed:?} of {lost:?}");
            if count == 50 {
                assert_eq!(missed, lost);
            }
        }
    }
    /// A payload that a peer sends repeatedly takes memory only once, and no answer exceeds the
    /// maximum size of a payload.
    #[test]
    fn a_repeated_payload_takes_memory_only_once() {
        let own: Vec<MessagePosition> = (0..50_000).map(|at| (1_000 + at, [7; 32])).collect();
        let end = (100_000, [0; 32]);
        let mut found = Reconciliation::default();
        for _ in 0..64 {
            let mut theirs = PayloadWriter::new(&[], 1_000, 1 << 20);
            theirs.items(end, &[], false);
            let theirs = theirs.finish().0;
            let mut next = PayloadWriter::new(&[], 1_000, 10_000);
            answer(&own, &SyncPayload::parse(&theirs).unwrap().unwrap(), &mut found, &mut next);
            assert!(next.finish().0.len() <= 10_000);
        }
        let mut lacked = own.clone();
        found.retain_lacked(&mut lacked);
        assert_eq!((found.lacks.len(), lacked.len()), (50_000, 50_000));
        // A payload full of ranges. With each range, the peer requests the messages of the range.
        let mut many = vec![0, 0, 1];
        many.extend([1, 1].iter().chain(&[0xff; 32]).copied().cycle().take(34 * 20_000));
        let mut next = PayloadWriter::new(&[], 1, 10_000);
        let many = SyncPayload::parse(&many).unwrap().unwrap();
        assert_eq!(many.ranges().count(), 20_000);
        answer(&own, &many, &mut found, &mut next);
        assert!(next.finish().0.len() <= 10_000);
    }
}
