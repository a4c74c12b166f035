//! The topics of an archive. A request with a bloom filter is for the envelopes of all topics that
//! the filter covers.

use std::collections::HashSet;

use hark_codec::whisper::bloom::{Bits, bits};
use hark_codec::whisper::{Bloom, Topic};

/// All topics of an archive, each with the bits that a matching filter must have. Uses up to 32
/// bytes of memory per topic; the caller bounds the number of topics.
#[derive(Clone, Debug, Default)]
pub struct KnownTopics {
    known: HashSet<Topic>,
    /// The topics, grouped by the position of their first bit.
    by_bit: Vec<Vec<(Topic, Bits)>>,
}

impl KnownTopics {
    /// Adds a topic. Returns whether it is new.
    pub fn add(&mut self, topic: Topic) -> bool {
        let is_new = self.known.insert(topic);
        if is_new {
            let bits = bits(topic);
            let first = usize::from(bits[0]);
            if self.by_bit.len() <= first {
                self.by_bit.resize_with(first + 1, Vec::new);
            }
            self.by_bit[first].push((topic, bits));
        }
        is_new
    }

    /// Whether the topic is known.
    pub fn has(&self, topic: Topic) -> bool {
        self.known.contains(&topic)
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are no topics.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the topics that a filter covers, in no particular order. Only topics whose first bit
    /// is in the filter are checked, each in a few ns. A filter of few topics has few bits, so few
    /// topics are checked.
    pub fn matching(&self, filter: &Bloom) -> Vec<Topic> {
        let with_bit = (0..).zip(&self.by_bit).filter(|(bit, _)| filter.has([*bit; 3]));
        let covered = with_bit.flat_map(|(_, topics)| topics).filter(|(_, bits)| filter.has(*bits));
        covered.map(|(topic, _)| *topic).collect()
    }
}

impl Extend<Topic> for KnownTopics {
    fn extend<I: IntoIterator<Item = Topic>>(&mut self, topics: I) {
        for topic in topics {
            self.add(topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(mut topics: Vec<Topic>) -> Vec<Topic> {
        topics.sort_unstable();
        topics
    }

    #[test]
    fn a_filter_finds_the_topics_that_it_was_made_of() {
        let mut topics = KnownTopics::default();
        let all: Vec<Topic> =
            (0..5000u32).map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
        topics.extend(all.iter().copied());
        assert!(!topics.add(all[0]) && topics.len() == 5000 && !topics.is_empty());
        for count in [0, 1, 3, 100] {
            // Clients make filters in both ways.
            for of in [Bloom::of_topic, Bloom::of_topic_or] {
                let mut filter = Bloom::default();
                all[..count].iter().for_each(|topic| filter.add(&of(*topic)));
                let found = sorted(topics.matching(&filter));
                assert!(all[..count].iter().all(|topic| found.contains(topic)));
                let covered = all.iter().filter(|topic| filter.covers(&Bloom::of_topic(**topic)));
                assert_eq!(found, sorted(covered.copied().collect()));
            }
        }
        assert_eq!(sorted(topics.matching(&Bloom::FULL)), sorted(all));
        assert!(topics.matching(&Bloom::default()).is_empty());
    }
}
