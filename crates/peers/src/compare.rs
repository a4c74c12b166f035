//! Finds out which events each side lacks by comparing sets (NIP-77), without sending the events.
//!
//! A relay limits the number of events in a comparison. If it refuses a comparison as too large,
//! the time range is divided until the parts are small enough.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use hark_archive::{Id, Query};
use hark_codec::hex;
use hark_codec::nostr::negentropy::{
    NegentropyDifference, NegentropyInitiator, NegentropyItem, SummedItems,
};
use hark_networks::Network;

use crate::client::{PeerClient, now_s};
use crate::error::{PeerError, RateWaits};
use crate::meter::SyncMeter;
use crate::request::{Comparing, PATIENCE_FOR_ALL};
use crate::route::ComparisonAnswer;

/// Maximum length of a message that is sent, in bytes. In hex it is twice as long, and most relays
/// read messages of 128 KiB.
const FRAME_BYTES_MAX: usize = 60_000;
/// Maximum number of messages in all comparisons of a query. A million different events take about
/// a thousand messages.
const ROUNDS_MAX: u32 = 100_000;
/// Maximum number of parts into which the time range of a query is divided.
const WINDOWS_MAX: u32 = 50_000;
/// Maximum number of differences that are remembered, in some 9 MB for each relay. Beyond this
/// number, some differences may be passed on twice, which costs little.
const DIFFERENCES_MAX: usize = 1 << 17;
/// Maximum number of differences that are passed on together.
const DIFFERENCES_TOGETHER: usize = 1024;
/// Maximum total wait of one comparison because of rate limits.
const RATE_WAITS_MAX: Duration = Duration::from_hours(1);
/// Additional time that a relay may take for answers, for each difference in an answer.
const DIFFERENCE_WORTH: Duration = Duration::from_millis(100);
/// Maximum number of notices that a relay may send instead of the answer to a message.
const NOTICES_MAX: u32 = 20;
/// Maximum number of restarts of a comparison that the relay ended early.
const RESTARTS_MAX: u32 = 5;
/// A time before which hardly any events exist: Nostr began in 2020.
const FIRST_EVENTS_S: u64 = 1_577_836_800;
/// Words in the notices of relays that do not know these messages.
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

/// Result of a comparison.
pub(crate) enum Compared {
    /// All differences were found.
    Whole,
    /// The relay does not compare. `why` is the relay's reason or another description. `left` lists
    /// the time ranges that were not compared, both ends inclusive.
    NotSupported { why: String, left: Vec<(u64, u64)> },
}

/// How one comparison ended.
enum WindowEnd {
    Whole,
    /// The relay refused because of too many events.
    TooMany(String),
    /// The relay ended the comparison early.
    Interrupted(String),
    /// The relay refused because of its rate limit.
    TooFast(String),
    NotSupported(String),
}

/// The receiver of differences: ids that only the relay has, and ids that only this side has.
pub(crate) trait DifferenceSink {
    /// Receives some differences. May wait until earlier differences are processed.
    async fn take(&mut self, need: Vec<Id>, have: Vec<Id>) -> Result<(), PeerError>;
}

/// Compares `items`, the local results of `query`, with the relay's results.
pub(crate) async fn compare(
    client: &PeerClient,
    network: &dyn Network,
    query: &Query,
    items: Vec<NegentropyItem>,
    meter: &SyncMeter,
    sink: &mut impl DifferenceSink,
) -> Result<Compared, PeerError> {
    meter.add(|meter| &meter.compared, items.len() as u64);
    let all: SummedItems = items.into();
    // A stack: the last window is compared first.
    let mut windows = vec![(query.from, query.to)];
    let (mut restarts, mut compared_before, mut parts) = (0, false, 0);
    let (mut waits, mut waited) = (RateWaits::default(), Duration::ZERO);
    let mut seen = SeenDifferences::default();
    while let Some((from, to)) = windows.pop() {
        let part;
        let set = if (from, to) == (query.from, query.to) {
            &all
        } else {
            part = all.between(from, to).to_vec().into();
            &part
        };
        let filter = network.filters().text(&Query { from, to, ..query.clone() });
        let found = seen.count;
        let end = window(client, &filter, set, meter, &mut seen, sink).await?;
        match end {
            WindowEnd::Whole => {
                compared_before = true;
                waits.over();
                // A difference can be found again only in the same window.
                seen.ids.clear();
                // A slow relay makes progress, too, even if there are few differences.
                seen.waited = Duration::ZERO;
            }
            WindowEnd::TooMany(why) => {
                let Some(middle) = middle(all.between(from, to), from, to) else {
                    windows.push((from, to));
                    return Ok(Compared::NotSupported { why, left: windows });
                };
                windows.extend([(from, middle), (middle + 1, to)]);
                parts += 1;
                if parts > WINDOWS_MAX {
                    return Ok(Compared::NotSupported { why, left: windows });
                }
            }
            WindowEnd::TooFast(reason) => {
                let wait = waits.next("a comparison", &reason)?;
                waited += wait;
                if waited > RATE_WAITS_MAX {
                    return Err(PeerError::Refused { what: "a comparison", reason });
                }
                meter.add(|meter| &meter.slowed, 1);
                tokio::time::sleep(wait).await;
                windows.push((from, to));
                // Half of the window may be within the relay's rate limit.
                if seen.count > found
                    && parts < WINDOWS_MAX
                    && let Some(middle) = middle(all.between(from, to), from, to)
                {
                    windows.pop();
                    windows.extend([(from, middle), (middle + 1, to)]);
                    parts += 1;
                }
            }
            WindowEnd::Interrupted(why) => {
                restarts = if seen.count > found { 0 } else { restarts + 1 };
                windows.push((from, to));
                if restarts > RESTARTS_MAX {
                    return Ok(Compared::NotSupported { why, left: windows });
                }
            }
            WindowEnd::NotSupported(why) => {
                windows.push((from, to));
                if compared_before {
                    restarts += 1;
                    if restarts <= RESTARTS_MAX {
                        continue;
                    }
                }
                return Ok(Compared::NotSupported { why, left: windows });
            }
        }
    }
    Ok(Compared::Whole)
}

/// Whether the relay's comparison includes a local event, given by `item`, that `query` finds.
/// Relays that hide some kinds leave these out of a comparison, or refuse it; some relays do
/// neither. The inner error is the reason why the relay does not compare.
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

/// Whether a notice means that the relay does not know the message.
fn is_unknown(notice: &str) -> bool {
    let notice = notice.to_ascii_lowercase();
    UNKNOWN.iter().any(|word| notice.contains(word))
}

/// Differences that were found, because each difference may be found twice.
#[derive(Default)]
struct SeenDifferences {
    ids: HashSet<Id>,
    count: u64,
    /// Number of messages that were answered.
    rounds: u32,
    /// Time spent waiting for answers since the last complete window, minus [`DIFFERENCE_WORTH`]
    /// for each difference in the answers.
    waited: Duration,
}

impl SeenDifferences {
    /// Counts the time of an answer. Fails if answers took long and had hardly any differences.
    fn wait(&mut self, client: &PeerClient, took: Duration) -> Result<(), PeerError> {
        self.waited += took;
        if self.waited <= client.patience() * PATIENCE_FOR_ALL {
            return Ok(());
        }
        Err(PeerError::Misbehaved(format!(
            "its answers to a comparison took {} s, and came to hardly anything",
            self.waited.as_secs()
        )))
    }
}

/// Where to divide a time range; `None` if the range is one second.
fn middle(items: &[NegentropyItem], from: u64, to: u64) -> Option<u64> {
    if from >= to {
        return None;
    }
    // Half of the local events are before the median; the relay's events are likely to be
    // distributed alike.
    let median = items.get(items.len() / 2).map(|item| item.time);
    let (low, high) = (from.max(FIRST_EVENTS_S), to.min(now_s() + 86_400));
    let by_time = if low < high { low + (high - low) / 2 } else { from + (to - from) / 2 };
    let divides = |at: &u64| from <= *at && *at < to;
    median.map(|time| time.saturating_sub(1)).filter(divides).or(Some(by_time)).filter(divides)
}

async fn window(
    client: &PeerClient,
    filter: &str,
    set: &SummedItems,
    meter: &SyncMeter,
    seen: &mut SeenDifferences,
    sink: &mut impl DifferenceSink,
) -> Result<WindowEnd, PeerError> {
    let mut initiator = NegentropyInitiator::new(set, FRAME_BYTES_MAX);
    let mut asked_auth = false;
    let first = in_hex(&initiator.open());
    let proofs = client.proofs();
    let mut open = client.compare(filter, &first).await?;
    let (mut is_first, mut notices, mut asked) = (true, 0, Instant::now());
    loop {
        let answer = match open.next().await {
            Ok(ComparisonAnswer::Message(message)) => message,
            Ok(ComparisonAnswer::Notice(notice)) => {
                if is_first && is_unknown(&notice) {
                    return Ok(WindowEnd::NotSupported(notice));
                }
                notices += 1;
                if notices > NOTICES_MAX {
                    return Ok(ended(is_first, notice));
                }
                continue;
            }
            Ok(ComparisonAnswer::Refused(reason)) if PeerError::wants_auth(&reason) => {
                // The relay may still return its events page by page without authentication.
                if std::mem::replace(&mut asked_auth, true) {
                    return Ok(WindowEnd::NotSupported(reason));
                }
                match client.authenticate_for(proofs, &reason).await {
                    Ok(()) => {}
                    Err(PeerError::Refused { .. }) => return Ok(WindowEnd::NotSupported(reason)),
                    Err(error) => return Err(error),
                }
                open = client.compare(filter, &first).await?;
                continue;
            }
            Ok(ComparisonAnswer::Refused(reason)) if PeerError::is_rate(&reason) => {
                return Ok(WindowEnd::TooFast(reason));
            }
            Ok(ComparisonAnswer::Refused(reason)) => {
                seen.wait(client, asked.elapsed())?;
                return Ok(ended(is_first, reason));
            }
            Err(PeerError::Silent { within_s, said, .. }) if is_first => {
                let why = format!("it did not answer a comparison within {within_s} s{said}");
                return Ok(WindowEnd::NotSupported(why));
            }
            Err(error) => return Err(error),
        };
        if !open.shared.was_held_up_since(asked) {
            seen.wait(client, asked.elapsed())?;
        }
        (is_first, notices) = (false, 0);
        seen.rounds += 1;
        meter.add(|meter| &meter.rounds, 1);
        if seen.rounds > ROUNDS_MAX {
            return Err(PeerError::Misbehaved(format!(
                "a comparison did not end within {ROUNDS_MAX} messages"
            )));
        }
        let mut bytes = Vec::new();
        if !hex::decode_into(answer.to_ascii_lowercase().as_bytes(), &mut bytes) {
            return Err(PeerError::Misbehaved("a message of a comparison is not hex".into()));
        }
        let (mut need, mut have) = (Vec::new(), Vec::new());
        let next = initiator.answer(&bytes, &mut |difference| {
            let (id, list) = match difference {
                NegentropyDifference::Need(id) => (id, &mut need),
                NegentropyDifference::Have(id) => (id, &mut have),
            };
            if seen.ids.insert(id) {
                seen.count += 1;
                seen.waited = seen.waited.saturating_sub(DIFFERENCE_WORTH);
                list.push(id);
            }
        });
        let next = next.map_err(|error| {
            PeerError::Misbehaved(format!("a message of a comparison cannot be read: {error}"))
        })?;
        if seen.ids.len() > DIFFERENCES_MAX {
            seen.ids.clear();
        }
        for need in need.chunks(DIFFERENCES_TOGETHER) {
            sink.take(need.to_vec(), Vec::new()).await?;
        }
        for have in have.chunks(DIFFERENCES_TOGETHER) {
            sink.take(Vec::new(), have.to_vec()).await?;
        }
        let Some(next) = next else { return Ok(WindowEnd::Whole) };
        say(&mut open, &next).await?;
        asked = Instant::now();
    }
}

async fn say(open: &mut Comparing, message: &[u8]) -> Result<(), PeerError> {
    open.say(&in_hex(message)).await
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

fn in_hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    hex::encode_into(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_divided_until_it_is_one_second() {
        assert_eq!(middle(&[], 5, 5), None);
        let items: Vec<_> =
            (0..10).map(|time| NegentropyItem { time, id: [time as u8; 32] }).collect();
        assert_eq!(middle(&items, 0, u64::MAX), Some(4));
        for (mut from, to) in [(0, u64::MAX), (3, 4), (FIRST_EVENTS_S + 5, FIRST_EVENTS_S + 9)] {
            let mut steps = 0;
            while let Some(at) = middle(&[], from, to) {
                assert!(from <= at && at < to);
                (from, steps) = (at + 1, steps + 1);
                if steps == 200 {
                    break;
                }
            }
            assert!(steps > 0);
        }
    }

    #[test]
    fn what_a_refusal_means() {
        let many = "blocked: this query is too big";
        assert!(matches!(ended(true, many.into()), WindowEnd::TooMany(_)));
        let late = "closed: you took too long to respond";
        assert!(matches!(ended(false, late.into()), WindowEnd::Interrupted(_)));
        assert!(matches!(ended(true, "error: no".into()), WindowEnd::NotSupported(_)));
    }
}
