//! Compares the events of one window, a part of a query's time range, with a relay (NIP-77).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use hark_archive::{Id, Query};
use hark_codec::hex;
use hark_codec::nostr::negentropy::{
    NegentropyDifference, NegentropyInitiator, NegentropyItem, SummedItems,
};
use hark_networks::Network;

use crate::client::PeerClient;
use crate::error::{PeerError, RateWaits};
use crate::meter::SyncMeter;
use crate::request::{PATIENCE_FOR_ALL, RelayComparison};
use crate::route::ComparisonAnswer;

/// Maximum length of a sent message, in bytes. Messages are sent in hex, with twice this length,
/// and most relays accept messages of up to 128 KiB.
const FRAME_BYTES_MAX: usize = 60_000;
/// Maximum number of messages in all comparisons of a query. A million differences take about a
/// thousand messages.
const ROUNDS_MAX: u32 = 100_000;
/// Maximum number of remembered differences, which take some 9 MB for each relay. Above this
/// number, some differences may be passed on twice, which costs little.
const DIFFERENCES_MAX: usize = 1 << 17;
/// Maximum number of differences that are passed on together.
const DIFFERENCES_TOGETHER: usize = 1024;
/// Time by which each difference in a relay's answers extends the time limit for all answers.
const DIFFERENCE_WORTH: Duration = Duration::from_millis(100);
/// Maximum number of notices that a relay may send instead of the answer to a message.
const NOTICES_MAX: u32 = 20;
/// Words by which a notice shows that the relay does not know the messages of NIP-77.
const UNKNOWN: [&str; 9] = [
    "neg",
    "unknown",
    "unrecogni",
    "unsupported",
    "not supported",
    "invalid",
    "could not parse",
    "bad msg",
    "command",
];

/// How the comparison of a window ended.
pub(crate) enum WindowEnd {
    Whole,
    /// The relay refused because of too many events.
    TooMany(String),
    /// The relay ended the comparison early.
    Interrupted(String),
    /// The relay refused because of its rate limit.
    TooFast(String),
    NotSupported(String),
}

/// The receiver of differences: `need` has ids that only the relay has, and `have` ids that only
/// this archive has.
pub(crate) trait DifferenceSink {
    /// Receives some differences. May wait until earlier differences are processed.
    async fn receive(&mut self, need: Vec<Id>, have: Vec<Id>) -> Result<(), PeerError>;
}

/// Compares `set`, the local results of `filter`, with the relay's results.
pub(crate) async fn compare(
    client: &PeerClient,
    filter: &str,
    set: &SummedItems,
    meter: &SyncMeter,
    seen: &mut SeenDifferences,
    sink: &mut impl DifferenceSink,
) -> Result<WindowEnd, PeerError> {
    let mut initiator = NegentropyInitiator::new(set, FRAME_BYTES_MAX);
    let first = in_hex(&initiator.open());
    let mut exchange = WindowExchange::open(client, filter, &first).await?;
    loop {
        let answer = match exchange.answer(seen).await? {
            Ok(answer) => answer,
            Err(end) => return Ok(end),
        };
        meter.add(|meter| &meter.rounds, 1);
        seen.count_round()?;
        let (mut need, mut have) = (Vec::new(), Vec::new());
        let next = read_answer(&mut initiator, &answer, |difference| {
            let (id, list) = match difference {
                NegentropyDifference::Need(id) => (id, &mut need),
                NegentropyDifference::Have(id) => (id, &mut have),
            };
            if seen.insert(id) {
                list.push(id);
            }
        })?;
        seen.limit();
        for need in need.chunks(DIFFERENCES_TOGETHER) {
            sink.receive(need.to_vec(), Vec::new()).await?;
        }
        for have in have.chunks(DIFFERENCES_TOGETHER) {
            sink.receive(Vec::new(), have.to_vec()).await?;
        }
        let Some(next) = next else { return Ok(WindowEnd::Whole) };
        exchange.send(&next).await?;
    }
}

/// Reads a message of the relay, and returns the next message to send; `None` if the comparison is
/// complete.
fn read_answer(
    initiator: &mut NegentropyInitiator<'_, SummedItems>,
    answer: &str,
    mut found: impl FnMut(NegentropyDifference),
) -> Result<Option<Vec<u8>>, PeerError> {
    let mut bytes = Vec::new();
    if !hex::decode_into(answer.to_ascii_lowercase().as_bytes(), &mut bytes) {
        return Err(PeerError::Misbehaved("a message of a comparison is not hex".into()));
    }
    initiator.answer(&bytes, &mut found).map_err(|error| {
        PeerError::Misbehaved(format!("a message of a comparison cannot be read: {error}"))
    })
}

/// The messages of a window's comparison.
struct WindowExchange<'a> {
    client: &'a PeerClient,
    filter: &'a str,
    /// The first message, in hex.
    first: &'a str,
    open: RelayComparison,
    /// Number of proofs of the key at the time when the comparison began.
    proofs: u64,
    asked_auth: bool,
    /// Whether the relay has not answered the first message yet.
    is_first: bool,
    /// Number of notices since the last message.
    notices: u32,
    sent_at: Instant,
}

impl<'a> WindowExchange<'a> {
    async fn open(
        client: &'a PeerClient,
        filter: &'a str,
        first: &'a str,
    ) -> Result<Self, PeerError> {
        let proofs = client.proofs();
        let open = client.compare(filter, first).await?;
        Ok(Self {
            client,
            filter,
            first,
            open,
            proofs,
            asked_auth: false,
            is_first: true,
            notices: 0,
            sent_at: Instant::now(),
        })
    }

    /// Waits for the relay's next message. If the comparison ends instead, the inner error
    /// describes its end.
    async fn answer(
        &mut self,
        seen: &mut SeenDifferences,
    ) -> Result<Result<String, WindowEnd>, PeerError> {
        loop {
            match self.open.next().await {
                Ok(ComparisonAnswer::Message(message)) => {
                    if !self.open.was_held_up_since(self.sent_at) {
                        seen.wait(self.client, self.sent_at.elapsed())?;
                    }
                    (self.is_first, self.notices) = (false, 0);
                    return Ok(Ok(message));
                }
                Ok(ComparisonAnswer::Notice(notice)) => {
                    if self.is_first && is_unknown(&notice) {
                        return Ok(Err(WindowEnd::NotSupported(notice)));
                    }
                    self.notices += 1;
                    if self.notices > NOTICES_MAX {
                        return Ok(Err(ended(self.is_first, notice)));
                    }
                }
                Ok(ComparisonAnswer::Refused(reason)) if PeerError::wants_auth(&reason) => {
                    if !self.authenticate(&reason).await? {
                        return Ok(Err(WindowEnd::NotSupported(reason)));
                    }
                }
                Ok(ComparisonAnswer::Refused(reason)) if PeerError::is_rate(&reason) => {
                    return Ok(Err(WindowEnd::TooFast(reason)));
                }
                Ok(ComparisonAnswer::Refused(reason)) => {
                    seen.wait(self.client, self.sent_at.elapsed())?;
                    return Ok(Err(ended(self.is_first, reason)));
                }
                Err(PeerError::Silent { within_s, said, .. }) if self.is_first => {
                    let why = format!("it did not answer a comparison within {within_s} s{said}");
                    return Ok(Err(WindowEnd::NotSupported(why)));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Proves the key after the first refusal, and begins the comparison again. Returns whether the
    /// comparison began.
    async fn authenticate(&mut self, reason: &str) -> Result<bool, PeerError> {
        // No error is returned, because the relay may return its events page by page even without
        // authentication.
        if std::mem::replace(&mut self.asked_auth, true) {
            return Ok(false);
        }
        match self.client.authenticate_for(self.proofs, reason).await {
            Ok(()) => {}
            Err(PeerError::Refused { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.open = self.client.compare(self.filter, self.first).await?;
        Ok(true)
    }

    /// Sends the next message.
    async fn send(&mut self, message: &[u8]) -> Result<(), PeerError> {
        self.open.send(&in_hex(message)).await?;
        self.sent_at = Instant::now();
        Ok(())
    }
}

/// Returns the meaning of a refusal of a comparison.
fn ended(is_first: bool, reason: String) -> WindowEnd {
    let lower = reason.to_ascii_lowercase();
    let too_many = ["too many", "too big", "too large", "bytes"];
    if lower.starts_with("blocked") && too_many.iter().any(|words| lower.contains(words)) {
        return WindowEnd::TooMany(reason);
    }
    if lower.starts_with("closed") || !is_first {
        return WindowEnd::Interrupted(reason);
    }
    WindowEnd::NotSupported(reason)
}

/// Whether a notice means that the relay does not know the message.
fn is_unknown(notice: &str) -> bool {
    let notice = notice.to_ascii_lowercase();
    UNKNOWN.iter().any(|word| notice.contains(word))
}

/// Returns whether the relay includes a local event that matches `query` in a comparison. `item`
/// has the event's id and time. A relay may leave events of some kinds out of a comparison, or
/// refuse the comparison. The inner error is the reason why the relay does not compare.
pub(crate) async fn includes(
    client: &PeerClient,
    network: &dyn Network,
    query: &Query,
    item: NegentropyItem,
) -> Result<Result<bool, String>, PeerError> {
    let query = Query { from: item.time, to: item.time, ..query.clone() };
    let set = SummedItems::default();
    let mut initiator = NegentropyInitiator::new(&set, FRAME_BYTES_MAX);
    let first = in_hex(&initiator.open());
    let filter = network.filters().text(&query);
    let (proofs, mut asked_auth) = (client.proofs(), false);
    let mut open = client.compare(&filter, &first).await?;
    let mut waits = RateWaits::default();
    let answer = loop {
        match open.next().await {
            Ok(ComparisonAnswer::Message(message)) => break message,
            Ok(ComparisonAnswer::Refused(reason)) if PeerError::is_rate(&reason) => {
                tokio::time::sleep(waits.next("a comparison", &reason)?).await;
                open = client.compare(&filter, &first).await?;
            }
            Ok(ComparisonAnswer::Refused(reason))
                if PeerError::wants_auth(&reason) && !asked_auth =>
            {
                asked_auth = true;
                match client.authenticate_for(proofs, &reason).await {
                    Ok(()) => open = client.compare(&filter, &first).await?,
                    Err(PeerError::Refused { .. }) => return Ok(Ok(false)),
                    Err(error) => return Err(error),
                }
            }
            Ok(ComparisonAnswer::Refused(_)) => return Ok(Ok(false)),
            Ok(ComparisonAnswer::Notice(notice)) if is_unknown(&notice) => return Ok(Err(notice)),
            Ok(ComparisonAnswer::Notice(_)) => {}
            Err(PeerError::Silent { within_s, said, .. }) => {
                return Ok(Err(format!(
                    "it did not answer a comparison within {within_s} s{said}"
                )));
            }
            Err(error) => return Err(error),
        }
    };
    let (mut bytes, mut found) = (Vec::new(), false);
    let is_hex = hex::decode_into(answer.to_ascii_lowercase().as_bytes(), &mut bytes);
    // Errors in the answer are reported by the full comparison.
    let read = initiator.answer(&bytes, &mut |difference| {
        found |= difference == NegentropyDifference::Need(item.id);
    });
    Ok(Ok(is_hex && read.is_ok() && found))
}

/// The differences found so far. They are remembered, because a comparison may find a difference
/// twice.
#[derive(Default)]
pub(crate) struct SeenDifferences {
    ids: HashSet<Id>,
    count: u64,
    /// Number of messages that were answered.
    rounds: u32,
    /// Time spent waiting for answers since the last complete window, minus [`DIFFERENCE_WORTH`]
    /// for each difference in the answers.
    waited: Duration,
}

impl SeenDifferences {
    /// The number of differences so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Notes that a window was compared completely.
    pub(crate) fn next_window(&mut self) {
        // A difference can be found again only in the same window.
        self.ids.clear();
        // A complete window counts as progress, so a slow relay gets the whole time limit again.
        self.waited = Duration::ZERO;
    }

    /// Counts a difference. Returns whether the difference is new.
    fn insert(&mut self, id: Id) -> bool {
        let is_new = self.ids.insert(id);
        if is_new {
            self.count += 1;
            self.waited = self.waited.saturating_sub(DIFFERENCE_WORTH);
        }
        is_new
    }

    /// Counts an answer. Returns an error after too many answers.
    fn count_round(&mut self) -> Result<(), PeerError> {
        self.rounds += 1;
        if self.rounds <= ROUNDS_MAX {
            return Ok(());
        }
        Err(PeerError::Misbehaved(format!("a comparison did not end within {ROUNDS_MAX} messages")))
    }

    /// Forgets the remembered differences, if there are too many.
    fn limit(&mut self) {
        if self.ids.len() > DIFFERENCES_MAX {
            self.ids.clear();
        }
    }

    /// Adds the time of an answer. Returns an error if the answers took too long and contained few
    /// differences.
    fn wait(&mut self, client: &PeerClient, took: Duration) -> Result<(), PeerError> {
        self.waited += took;
        if self.waited <= client.patience() * PATIENCE_FOR_ALL {
            return Ok(());
        }
        Err(PeerError::Misbehaved(format!(
            "its answers to a comparison took {} s, and had hardly any differences",
            self.waited.as_secs()
        )))
    }
}

fn in_hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    hex::encode_into(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_means() {
        let many = "blocked: this query is too big";
        assert!(matches!(ended(true, many.into()), WindowEnd::TooMany(_)));
        let late = "closed: you took too long to respond";
        assert!(matches!(ended(false, late.into()), WindowEnd::Interrupted(_)));
        assert!(matches!(ended(true, "error: no".into()), WindowEnd::NotSupported(_)));
    }
}
