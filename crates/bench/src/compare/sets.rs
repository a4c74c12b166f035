//! Comparisons of sets of events (NIP-77): the bench has one set, and the relay the other.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hark_codec::hex;
use hark_codec::nostr::negentropy::{
    NegentropyDifference, NegentropyInitiator, NegentropyItem, SummedItems,
};
use hark_codec::record::Id;

use crate::report::Column;
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, Url, fields, put_text};

/// Maximum length of a message of the bench, in bytes. As hex digits, a message takes twice this
/// length, which all relays accept.
const MESSAGE_BYTES: usize = 50_000;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// Maximum number of messages of a comparison.
const ROUNDS_MAX: u32 = 10_000;
/// One event in this many is left out of a set.
const LEFT_OUT: usize = 100;

pub(super) const COLUMNS: [Column; 6] = [
    Column::plain("events", "events of the bench", ""),
    Column::plain("different", "differences", ""),
    Column::compared("rounds", "rounds", ""),
    Column::compared("kb", "sent and received", "KB"),
    Column::compared("time_ms", "time", "ms"),
    Column::plain("unknown", "differences not found", ""),
];

/// Notes of the file that all relays must hold, and the filter that selects these notes.
pub(super) struct FileNotes {
    pub(super) filter: String,
    pub(super) items: Vec<NegentropyItem>,
}

/// The result of a comparison.
pub(super) struct SetDifference {
    pub(super) figures: [Option<f64>; COLUMNS.len()],
    /// Whether the comparison found all differences and no others.
    pub(super) is_right: bool,
    /// The ids that only the relay has.
    pub(super) only_relay: Vec<Id>,
}

/// The answer of a relay that supports no comparisons, or refuses this one set.
#[derive(Debug)]
pub(super) struct NotCompared(String);

impl std::fmt::Display for NotCompared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not supported: {}", self.0)
    }
}

impl std::error::Error for NotCompared {}

impl FileNotes {
    /// The set in which one event in a hundred is replaced by an event that no relay has.
    pub(super) fn changed(&self) -> Vec<NegentropyItem> {
        let changed = self.items.iter().enumerate().map(|(at, item)| {
            let mut item = *item;
            if at % LEFT_OUT == 0 {
                // This id is not the hash of any event, so no relay has an event with this id.
                item.id[..16].copy_from_slice(b"hark bench event");
            }
            item
        });
        changed.collect()
    }

    /// The events of the set with these ids, without one event in a hundred.
    pub(super) fn thinned(&self, ids: &HashSet<Id>) -> Vec<NegentropyItem> {
        let own = self.items.iter().filter(|item| ids.contains(&item.id)).enumerate();
        own.filter(|(at, _)| at % LEFT_OUT != LEFT_OUT / 2).map(|(_, item)| *item).collect()
    }
}

/// Compares `own` with the relay's events. `held` are the events of the set that the relay holds.
pub(super) async fn compare(
    url: &Url,
    set: &FileNotes,
    held: &HashSet<Id>,
    own: Vec<NegentropyItem>,
) -> anyhow::Result<SetDifference> {
    let known: HashSet<Id> = own.iter().map(|item| item.id).collect();
    let events = own.len();
    let own = SummedItems::from(own);
    let mut initiator = NegentropyInitiator::new(&own, MESSAGE_BYTES);
    let (mut only_own, mut only_relay) = (HashSet::new(), HashSet::new());
    let mut connection = RelayConnection::open(url, ConnectionKind::Busy).await?;
    let (start, received_before) = (Instant::now(), connection.bytes);
    let (mut rounds, mut sent_bytes, mut next) = (0, 0, Some(initiator.open()));
    while let Some(message) = next {
        let mut frame = Vec::new();
        let mut digits = Vec::with_capacity(2 * message.len());
        hex::encode_into(&message, &mut digits);
        if rounds == 0 {
            put_text(
                &mut frame,
                &[b"[\"NEG-OPEN\",\"c\",", set.filter.as_bytes(), b",\"", &digits, b"\"]"],
            );
        } else {
            put_text(&mut frame, &[b"[\"NEG-MSG\",\"c\",\"", &digits, b"\"]"]);
        }
        rounds += 1;
        if rounds > ROUNDS_MAX {
            bail!("the comparison did not end in {ROUNDS_MAX} rounds");
        }
        sent_bytes += frame.len() as u64;
        connection.send(&frame).await?;
        let answer = tokio::time::timeout(PATIENCE, answer(&mut connection)).await;
        let answer = answer.context("no answer in a minute")??;
        next = initiator.answer(&answer, &mut |difference| {
            match difference {
                NegentropyDifference::Have(id) => only_own.insert(id),
                NegentropyDifference::Need(id) => only_relay.insert(id),
            };
        })?;
    }
    let time = start.elapsed();
    let bytes = sent_bytes + connection.bytes - received_before;
    let mut close = Vec::new();
    put_text(&mut close, &[b"[\"NEG-CLOSE\",\"c\"]"]);
    connection.send(&close).await?;
    let (have, need): (HashSet<Id>, HashSet<Id>) =
        (known.difference(held).copied().collect(), held.difference(&known).copied().collect());
    let missed = have.symmetric_difference(&only_own).count()
        + need.symmetric_difference(&only_relay).count();
    let figures = [
        Some(events as f64),
        Some((have.len() + need.len()) as f64),
        Some(f64::from(rounds)),
        Some(bytes as f64 / 1e3),
        Some(time.as_secs_f64() * 1e3),
        Some(missed as f64),
    ];
    let only_relay = only_relay.into_iter().collect();
    Ok(SetDifference { figures, is_right: missed == 0, only_relay })
}

/// Waits for the relay's message, and returns its bytes.
async fn answer(connection: &mut RelayConnection) -> anyhow::Result<Vec<u8>> {
    loop {
        match connection.next().await? {
            RelayMessage::Negentropy(text) if text.starts_with(b"[\"NEG-MSG\"") => {
                let digits = fields(text).into_iter().nth(2).unwrap_or_default();
                let mut message = Vec::with_capacity(digits.len() / 2);
                if !hex::decode_into(digits.as_bytes(), &mut message) {
                    bail!("a message has no hex digits");
                }
                return Ok(message);
            }
            RelayMessage::Negentropy(text)
            | RelayMessage::Notice(text)
            | RelayMessage::Closed(text) => {
                let reason = fields(text).pop().unwrap_or_default();
                return Err(NotCompared(reason).into());
            }
            _ => {}
        }
    }
}
