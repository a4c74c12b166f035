//! The questions: sets of topics, each with a range of time and a part of the answer.

use anyhow::{Context as _, ensure};
use hark_codec::whisper::{Bloom, Topic};

use super::store::{StoreQuestion, WantedTopics};
use crate::random::Random;

const DAY_S: u64 = 86_400;
const WEEK_S: u64 = 7 * DAY_S;
const MONTH_S: u64 = 30 * DAY_S;
/// Number of envelopes of a first page.
const PAGE: usize = 1_000;
/// Ranks of the topics in the small set, counted from 1: quiet topics of different sizes.
const FEW: [usize; 3] = [6, 51, 501];
/// Minimum number of topics in the store: more than the second rank in [`FEW`].
const TOPICS_MIN: usize = 60;
/// Ranks of the busy topics in the large set.
const BUSY: [usize; 3] = [2, 3, 4];
/// Number of topics in the large set.
const MANY: usize = 256;
/// Maximum number of draws of the large set. The draw is repeated while the bloom filter of the set
/// covers the busiest topic.
const DRAWS_MAX: usize = 1_000;
/// The seed of the draw.
const SEED: u64 = 11;

/// A set of topics and its bloom filter.
struct TopicSet {
    name: String,
    topics: Vec<Topic>,
}

/// The requested part of an answer, and its range of time.
struct AnswerPart {
    name: &'static str,
    span_s: u64,
    newest_first: bool,
    limit: Option<usize>,
}

/// The requested parts of each set's answer.
const PARTS: [AnswerPart; 4] = [
    AnswerPart { name: "1 week", span_s: WEEK_S, newest_first: true, limit: None },
    AnswerPart { name: "1 month", span_s: MONTH_S, newest_first: true, limit: None },
    AnswerPart { name: "newest 1,000", span_s: MONTH_S, newest_first: true, limit: Some(PAGE) },
    AnswerPart { name: "oldest 1,000", span_s: MONTH_S, newest_first: false, limit: Some(PAGE) },
];

/// A question in both of its forms.
pub(super) struct NamedQuestion {
    pub(super) name: String,
    by_topics: StoreQuestion,
    by_bloom: StoreQuestion,
}

/// The form of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionForm {
    Topics,
    Bloom,
}

impl NamedQuestion {
    /// Returns the question in one of its forms.
    pub(super) fn form(&self, form: QuestionForm) -> &StoreQuestion {
        match form {
            QuestionForm::Topics => &self.by_topics,
            QuestionForm::Bloom => &self.by_bloom,
        }
    }
}

/// Makes the questions for a store. `topics` lists its topics, each with the number of envelopes,
/// and `newest_s` is the time of its newest envelope.
pub(super) fn questions(
    mut topics: Vec<(Topic, u64)>,
    newest_s: u64,
) -> anyhow::Result<Vec<NamedQuestion>> {
    topics.sort_unstable_by_key(|(topic, count)| (u64::MAX - count, *topic));
    let ranked: Vec<Topic> = topics.into_iter().map(|(topic, _)| topic).collect();
    // Whole days, as in Status' comparison. An envelope at midnight belongs to the day before.
    let end = newest_s.div_ceil(DAY_S) * DAY_S;
    let last_s = newest_s.max(end.saturating_sub(1));
    let mut all = Vec::new();
    for set in sets(&ranked)? {
        let bloom = bloom_of(&set.topics);
        for part in &PARTS {
            let times_s = (u32::try_from(end.saturating_sub(part.span_s))?, u32::try_from(last_s)?);
            let question = |wanted| StoreQuestion {
                wanted,
                times_s,
                newest_first: part.newest_first,
                limit: part.limit,
            };
            all.push(NamedQuestion {
                name: format!("{}, {}", set.name, part.name),
                by_topics: question(WantedTopics::Topics(set.topics.clone())),
                by_bloom: question(WantedTopics::Bloom(Box::new(bloom))),
            });
        }
    }
    Ok(all)
}

/// Makes the bloom filter that covers all these topics.
fn bloom_of(topics: &[Topic]) -> Bloom {
    let mut bloom = Bloom::default();
    for topic in topics {
        bloom.add(&Bloom::of_topic(*topic));
    }
    bloom
}

/// Makes the sets of topics from all topics, the busiest first.
fn sets(ranked: &[Topic]) -> anyhow::Result<Vec<TopicSet>> {
    ensure!(
        ranked.len() >= TOPICS_MIN,
        "there are only {} topics, and the questions need {TOPICS_MIN}: load more envelopes",
        ranked.len()
    );
    // If a rank exceeds the number of topics, the last topic is used.
    let at_rank =
        |rank: usize| ranked.get(rank - 1).or(ranked.last()).copied().context("there is no topic");
    let few = FEW.iter().map(|rank| at_rank(*rank)).collect::<anyhow::Result<Vec<_>>>()?;
    let busy = BUSY.iter().map(|rank| at_rank(*rank)).collect::<anyhow::Result<Vec<_>>>()?;
    let (busiest, tail) = (at_rank(1)?, &ranked[BUSY.len() + 1..]);
    let quiet = drawn(tail, &[], busiest);
    let many = drawn(tail, &busy, busiest);
    let top = [&[busiest], &few[1..]].concat();
    let named = |name: &str, topics: Vec<Topic>| TopicSet {
        name: format!("{} {name}", topics.len()),
        topics,
    };
    Ok(vec![
        named("topics", few),
        named("topics", many),
        named("quiet topics", quiet),
        named("topics with the busiest", top),
    ])
}

/// Draws [`MANY`] topics: `first`, and others from `tail`. Takes all topics if there are fewer.
/// Draws again, at most [`DRAWS_MAX`] times, while the bloom filter of the topics covers `not`:
/// such a filter would match most envelopes.
fn drawn(tail: &[Topic], first: &[Topic], not: Topic) -> Vec<Topic> {
    let mut random = Random::new(SEED);
    let mut topics = Vec::new();
    for _ in 0..DRAWS_MAX {
        topics = first.to_vec();
        let mut left = tail.to_vec();
        while topics.len() < MANY && !left.is_empty() {
            topics.push(left.swap_remove(random.below(left.len())));
        }
        if !bloom_of(&topics).covers(&Bloom::of_topic(not)) {
            break;
        }
    }
    topics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_for_few_many_quiet_and_busy_topics() {
        let topic = |n: u32| n.wrapping_mul(0x9e37_79b9).to_be_bytes();
        let topics: Vec<(Topic, u64)> =
            (0..2_000).map(|n| (topic(n), 2_000 - u64::from(n))).collect();
        let all = questions(topics.clone(), 1_556_668_799).unwrap();
        let names: Vec<&str> = all.iter().map(|question| &*question.name).collect();
        assert_eq!(names.len(), 16);
        assert_eq!((names[0], names[7]), ("3 topics, 1 week", "256 topics, oldest 1,000"));
        assert_eq!(names[13], "3 topics with the busiest, 1 month");
        let wanted = |at: usize| match &all[at].form(QuestionForm::Topics).wanted {
            WantedTopics::Topics(topics) => topics.clone(),
            WantedTopics::Bloom(_) => panic!("the other form"),
        };
        assert_eq!(wanted(0), [topic(5), topic(50), topic(500)]);
        assert_eq!(wanted(4)[..3], [topic(1), topic(2), topic(3)]);
        assert_eq!((wanted(4).len(), wanted(8).len()), (256, 256));
        assert!(wanted(8).iter().all(|of| topics[4..].iter().any(|(known, _)| known == of)));
        assert_eq!(wanted(12), [topic(0), topic(50), topic(500)]);
        assert_eq!(all[4].form(QuestionForm::Bloom).times_s, (1_556_064_000, 1_556_668_799));
        assert_eq!(all[5].form(QuestionForm::Bloom).times_s, (1_554_076_800, 1_556_668_799));
        for at in [4, 8] {
            let WantedTopics::Bloom(bloom) = &all[at].form(QuestionForm::Bloom).wanted else {
                panic!("the other form")
            };
            assert!(!bloom.covers(&Bloom::of_topic(topic(0))));
            assert!(wanted(at).iter().all(|topic| bloom.covers(&Bloom::of_topic(*topic))));
        }
        // An envelope at midnight does not change the week.
        let all = questions(topics.clone(), 1_556_668_800).unwrap();
        assert_eq!(all[4].form(QuestionForm::Bloom).times_s, (1_556_064_000, 1_556_668_800));
        assert!(questions(topics[..59].to_vec(), 0).is_err());
    }
}
