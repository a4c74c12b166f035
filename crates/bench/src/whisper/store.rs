//! The interface to a store of Hark with Whisper's envelopes. The binary passes the store in.

use hark_codec::whisper::{Bloom, Topic};

/// The topics of a question.
#[derive(Clone, Debug)]
pub enum WantedTopics {
    /// Envelopes of these topics.
    Topics(Vec<Topic>),
    /// Envelopes of all topics that the filter covers.
    Bloom(Box<Bloom>),
}

/// A question for envelopes.
#[derive(Clone, Debug)]
pub struct StoreQuestion {
    /// The topics.
    pub wanted: WantedTopics,
    /// The first and the last time of sending, in s since 1970.
    pub times_s: (u32, u32),
    /// Whether the newest envelopes come first.
    pub newest_first: bool,
    /// Maximum number of envelopes in the answer.
    pub limit: Option<usize>,
}

/// An open store of Hark, shared by several querying threads.
pub trait EnvelopeStore: Send + Sync {
    /// Stores envelopes, each given as its RLP. The envelopes are durable on return.
    fn put(&self, envelopes: &[Vec<u8>]) -> anyhow::Result<()>;

    /// Waits until the store's maintenance has finished.
    fn wait_for_maintenance(&self) -> anyhow::Result<()>;

    /// Returns all topics, each with the number of its envelopes.
    fn topics(&self) -> anyhow::Result<Vec<(Topic, u64)>>;

    /// Returns the times of the oldest and the newest envelope, in s since 1970. `None` if there is
    /// no envelope.
    fn times_s(&self) -> Option<(u64, u64)>;

    /// Passes the RLP of all envelopes that match a question to `each`, in order.
    fn ask(&self, question: &StoreQuestion, each: &mut dyn FnMut(&[u8])) -> anyhow::Result<()>;

    /// Passes all envelopes in the question's time range to `each`, of any topic, in the question's
    /// order. `each` gets the envelope's topic, which the store keeps beside the RLP, and the RLP.
    /// Ends when `each` returns false.
    fn scan(
        &self,
        question: &StoreQuestion,
        each: &mut dyn FnMut(Topic, &[u8]) -> bool,
    ) -> anyhow::Result<()>;
}

/// Opens the store at an address, a directory or a `postgres://` URL. Creates a missing store.
pub type EnvelopeStoreOpener<'a> = &'a dyn Fn(&str) -> anyhow::Result<Box<dyn EnvelopeStore>>;
