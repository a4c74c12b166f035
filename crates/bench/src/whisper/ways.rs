//! The compared ways of answering a question: Hark's ways, and the mail server's ways, which scan
//! all envelopes of a time range.

use hark_codec::whisper::{Bloom, Envelope, Topic};

use super::answer::AnswerBuffer;
use super::questions::QuestionForm;
use super::store::{EnvelopeStore, StoreQuestion, WantedTopics};

/// An instance of a way of answering, for one thread.
pub(super) trait EnvelopeAsker: Send {
    /// Asks a question and copies the whole answer.
    fn ask(&mut self, question: &StoreQuestion, answer: &mut AnswerBuffer) -> anyhow::Result<()>;
}

/// Makes an asker for a thread.
type AskerOpener<'a> = Box<dyn Fn() -> anyhow::Result<Box<dyn EnvelopeAsker + 'a>> + 'a>;

/// One of the measured ways to answer a question, such as Hark's.
pub(super) struct AnswerWay<'a> {
    pub(super) name: &'static str,
    /// The form of the questions that are asked in this way.
    pub(super) form: QuestionForm,
    /// Whether the way is Hark's. Other ways are for comparison.
    pub(super) is_own: bool,
    pub(super) open: AskerOpener<'a>,
}

impl<'a> AnswerWay<'a> {
    /// Returns Hark's two ways of asking a store: by topics, and by bloom filter.
    pub(super) fn own(
        [by_topics, by_bloom]: [&'static str; 2],
        store: &'a dyn EnvelopeStore,
    ) -> [Self; 2] {
        let way = |name, form| Self {
            name,
            form,
            is_own: true,
            open: Box::new(move || Ok(Box::new(StoreAsker(store)))),
        };
        [way(by_topics, QuestionForm::Topics), way(by_bloom, QuestionForm::Bloom)]
    }

    /// Returns the ways that scan all envelopes of a store.
    pub(super) fn scans(store: &'a dyn EnvelopeStore) -> [Self; 2] {
        let way = |name, form, decodes| Self {
            name,
            form,
            is_own: false,
            open: Box::new(move || Ok(Box::new(ScanAsker { store, decodes }))),
        };
        [
            way("scan, RLP decoded, bloom", QuestionForm::Bloom, true),
            way("scan, topic compared", QuestionForm::Topics, false),
        ]
    }
}

/// Queries a store of Hark.
struct StoreAsker<'a>(&'a dyn EnvelopeStore);

impl EnvelopeAsker for StoreAsker<'_> {
    fn ask(&mut self, question: &StoreQuestion, answer: &mut AnswerBuffer) -> anyhow::Result<()> {
        self.0.ask(question, &mut |rlp| answer.push(rlp))
    }
}

/// Scans all envelopes in the question's time range, as the mail server does in its files.
struct ScanAsker<'a> {
    store: &'a dyn EnvelopeStore,
    /// Whether the RLP of each envelope is decoded to read the topic.
    decodes: bool,
}

impl EnvelopeAsker for ScanAsker<'_> {
    fn ask(&mut self, question: &StoreQuestion, answer: &mut AnswerBuffer) -> anyhow::Result<()> {
        let wanted = TopicTest::new(&question.wanted);
        let (limit, decodes) = (question.limit.unwrap_or(usize::MAX) as u64, self.decodes);
        let mut broken = None;
        self.store.scan(question, &mut |topic, rlp| {
            let topic = if decodes {
                match Envelope::parse(rlp) {
                    Ok(envelope) => envelope.topic,
                    Err(error) => {
                        broken = Some(error);
                        return false;
                    }
                }
            } else {
                topic
            };
            if wanted.has(topic) {
                answer.push(rlp);
            }
            answer.envelopes < limit
        })?;
        broken.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Tests whether a topic is wanted.
enum TopicTest {
    /// Topics as numbers, ascending.
    Topics(Vec<u32>),
    Bloom(Box<Bloom>),
}

impl TopicTest {
    fn new(wanted: &WantedTopics) -> Self {
        match wanted {
            WantedTopics::Topics(topics) => {
                let mut topics: Vec<u32> =
                    topics.iter().map(|topic| u32::from_be_bytes(*topic)).collect();
                topics.sort_unstable();
                Self::Topics(topics)
            }
            WantedTopics::Bloom(bloom) => Self::Bloom(bloom.clone()),
        }
    }

    fn has(&self, topic: Topic) -> bool {
        match self {
            Self::Topics(topics) => topics.binary_search(&u32::from_be_bytes(topic)).is_ok(),
            Self::Bloom(bloom) => bloom.covers(&Bloom::of_topic(topic)),
        }
    }
}
