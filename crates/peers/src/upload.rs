//! Sends events to a relay, with many unanswered at a time, and counts the answers.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hark_archive::{Id, Store};
use hark_codec::nostr::{Event, EventArena};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::client::PeerClient;
use crate::error::{PeerError, RateWaits};
use crate::feed::{MissedEvents, OwedEvent};
use crate::local::{self, LocalEvent};
use crate::meter::SyncMeter;
use crate::plugin::EventPlugin;
use crate::route::PublishAnswer;

/// Maximum number of unanswered events, and of their bytes.
const UNANSWERED_MAX: usize = 256;
const UNANSWERED_BYTES_MAX: usize = 4 << 20;
/// Maximum number of events that are read from the archive at a time.
const READ_TOGETHER: usize = 256;
/// Maximum number of consecutive events that a relay may leave unanswered.
const SILENT_MAX: u32 = 3;

/// The events that do not leave this archive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Withheld {
    /// Sorted.
    pub(crate) kinds: Vec<u32>,
    /// Whether protected events (NIP-70), which only their authors may publish, are withheld.
    pub(crate) protected: bool,
}

impl Withheld {
    /// Withholds these kinds and, unless `send_protected` is set, protected events.
    pub(crate) fn new(kinds: &[u32], send_protected: bool) -> Self {
        let mut kinds = kinds.to_vec();
        kinds.sort_unstable();
        Self { kinds, protected: !send_protected }
    }

    /// Whether an event is withheld.
    pub(crate) fn has(&self, kind: u32, json: &str) -> bool {
        if self.kinds.binary_search(&kind).is_ok() {
            return true;
        }
        // Only an event with this text can be protected.
        self.protected
            && json.contains("\"-\"")
            && Event::parse(json.as_bytes(), &mut EventArena::new())
                .is_ok_and(|event| event.is_protected())
    }
}

/// Some events that are to be sent.
pub(crate) enum UploadList {
    /// Ids of events in the archive.
    Ids(Vec<Id>),
    /// An event that may be sent.
    Event(OwedEvent),
}

/// Sends events.
pub(crate) struct Uploader<'a> {
    pub(crate) client: &'a PeerClient,
    /// The store from which events are read by their ids.
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) withheld: &'a Withheld,
    /// Decides which events go.
    pub(crate) plugin: Option<&'a EventPlugin>,
    pub(crate) meter: &'a SyncMeter,
    /// Where temporary failures are noted; `None` if failed events are not retried.
    pub(crate) missed: Option<Arc<MissedEvents>>,
}

/// An event that is to be sent, or waits for its answer.
struct Upload {
    owed: OwedEvent,
    /// The event's position in the order of sending.
    number: u64,
    /// Whether the event was sent before, after the plugin's decision.
    was_sent: bool,
    /// Whether the relay has already refused the event with `auth-required`.
    wanted_auth: bool,
    /// How many times the key had been proved when the event was sent.
    proofs: u64,
}

impl Upload {
    fn event(&self) -> &LocalEvent {
        &self.owed.event
    }

    fn new(owed: OwedEvent) -> Self {
        Self { owed, number: 0, was_sent: false, wanted_auth: false, proofs: 0 }
    }
}

/// The result of an answer to an event.
enum Answered {
    /// The relay has accepted or refused the event.
    Done,
    /// The event is to be sent again at once.
    Again(Upload),
    /// The event is to be sent again later, because of the relay's rate limit. The text is the
    /// relay's reason.
    Later(Upload, String),
}

impl Uploader<'_> {
    /// Sends the events in `lists`, until the channel is closed.
    pub(crate) async fn run(&self, mut lists: mpsc::Receiver<UploadList>) -> Result<(), PeerError> {
        let mut running = FuturesUnordered::new();
        let (mut waiting_ids, mut waiting) = (VecDeque::new(), VecDeque::new());
        let (mut bytes, mut is_open, mut silent) = (0, true, 0);
        // If the relay limits the rate, fewer events are sent at a time, until the relay accepts
        // them again.
        let (mut not_before, mut window, mut number) = (Instant::now(), UNANSWERED_MAX, 0);
        let mut waits = RateWaits::default();
        loop {
            if waiting.is_empty() && !waiting_ids.is_empty() {
                let count = waiting_ids.len().min(READ_TOGETHER);
                self.read(waiting_ids.drain(..count).collect(), &mut waiting).await?;
            }
            let now = Instant::now();
            while running.len() < window && bytes < UNANSWERED_BYTES_MAX && now >= not_before {
                let Some(mut upload): Option<Upload> = waiting.pop_front() else { break };
                if let Some(plugin) = self.plugin.filter(|_| !upload.was_sent)
                    && let Err(refusal) = plugin.accept(&upload.event().json).await
                {
                    if !refusal.is_failure {
                        upload.owed.settle();
                    }
                    self.meter.add(|meter| &meter.withheld, 1);
                    continue;
                }
                upload.proofs = self.client.proofs();
                if !std::mem::replace(&mut upload.was_sent, true) {
                    number += 1;
                    upload.number = number;
                    self.meter.add(|meter| &meter.sent, 1);
                }
                bytes += upload.event().json.len();
                running.push(self.send(upload).await?);
            }
            let is_idle = running.is_empty() && waiting.is_empty() && waiting_ids.is_empty();
            if !is_open && is_idle {
                return Ok(());
            }
            tokio::select! {
                more = lists.recv(), if is_open && waiting_ids.is_empty() && waiting.len() < READ_TOGETHER => match more {
                    Some(UploadList::Ids(ids)) => waiting_ids.extend(ids),
                    Some(UploadList::Event(event)) => waiting.push_back(Upload::new(event)),
                    None => is_open = false,
                },
                () = sleep_until(not_before), if !waiting.is_empty() && not_before > now => {}
                Some((upload, answer)) = running.next(), if !running.is_empty() => {
                    bytes -= upload.event().json.len();
                    match answer {
                        Ok(answer) => {
                            silent = 0;
                            match self.answered(upload, answer).await? {
                                Answered::Done => {
                                    waits.over();
                                    window = UNANSWERED_MAX.min(window + 1);
                                }
                                Answered::Again(upload) => waiting.push_front(upload),
                                Answered::Later(upload, reason) => {
                                    let now = Instant::now();
                                    // One wait counts for all events in flight.
                                    if now >= not_before {
                                        not_before = now + waits.next("events", &reason)?;
                                        self.meter.add(|meter| &meter.slowed, 1);
                                        window = (window / 2).max(1);
                                    }
                                    // Events are sent again in their original order, so that each
                                    // has its turn.
                                    let later = |other: &Upload| other.was_sent && other.number < upload.number;
                                    waiting.insert(waiting.partition_point(later), upload);
                                }
                            }
                        }
                        Err(PeerError::Silent { .. }) if silent < SILENT_MAX => {
                            silent += 1;
                            self.meter.refuse_there("no answer", "");
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    async fn read(&self, ids: Vec<Id>, waiting: &mut VecDeque<Upload>) -> Result<(), PeerError> {
        let Some(store) = &self.store else { return Ok(()) };
        for event in local::events(Arc::clone(store), ids).await? {
            if self.withheld.has(event.kind, &event.json) {
                self.meter.add(|meter| &meter.withheld, 1);
            } else {
                waiting.push_back(Upload::new(OwedEvent::new(event, self.missed.clone())));
            }
        }
        Ok(())
    }

    /// Sends an event. The returned future waits for the answer.
    async fn send(
        &self,
        upload: Upload,
    ) -> Result<impl Future<Output = (Upload, Result<PublishAnswer, PeerError>)>, PeerError> {
        let answer = self.client.publish(upload.event().id, &upload.event().json).await?;
        Ok(async move {
            let answered = self.client.answer(&upload.event().id, answer).await;
            (upload, answered)
        })
    }

    /// Counts an answer, unless the event is to be sent again.
    async fn answered(
        &self,
        upload: Upload,
        (accepted, reason): PublishAnswer,
    ) -> Result<Answered, PeerError> {
        if !accepted && PeerError::is_rate(&reason) {
            return Ok(Answered::Later(upload, reason));
        }
        if !accepted && reason.starts_with("auth-required") && !upload.wanted_auth {
            match self.client.authenticate(upload.proofs).await {
                Ok(()) => return Ok(Answered::Again(Upload { wanted_auth: true, ..upload })),
                Err(PeerError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // After `error:`, the relay may accept the event at another time.
        if accepted || !reason.starts_with("error") {
            upload.owed.settle();
        }
        count(self.meter, accepted, &reason);
        Ok(Answered::Done)
    }
}

/// Counts the answer to an event.
pub(crate) fn count(meter: &SyncMeter, accepted: bool, reason: &str) {
    let lower = reason.to_ascii_lowercase();
    let has = ["duplicate", "replaced"].iter().any(|word| lower.starts_with(word));
    let gone = ["deleted", "vanish"].iter().any(|word| lower.contains(word));
    if has || !accepted && gone {
        meter.add(|meter| &meter.settled, 1);
    } else if accepted {
        meter.add(|meter| &meter.taken, 1);
    } else {
        let prefix = reason.split_once(':').map_or("no reason", |(prefix, _)| prefix);
        let is_one =
            prefix.len() <= 20 && prefix.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        meter.refuse_there(if is_one || prefix == "no reason" { prefix } else { "other" }, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_reason() {
        let meter = SyncMeter::default();
        for (accepted, reason) in [
            (true, ""),
            (true, "duplicate: have it"),
            (false, "duplicate: have it"),
            (false, "replaced: have newer"),
            (false, "blocked: event was deleted"),
            (false, "blocked: its author asked to vanish"),
            (false, "blocked: not here"),
            (false, "blocked: not you"),
            (false, "pow: 3 is less than 20"),
            (false, ""),
            (false, "Whatever it says: no"),
        ] {
            count(&meter, accepted, reason);
        }
        let totals = meter.totals();
        assert_eq!((totals.taken, totals.settled), (1, 5));
        let refused: Vec<_> = totals.refused_there.iter().collect();
        assert_eq!(
            refused,
            [
                ("blocked", 2, "blocked: not here"),
                ("no reason", 1, ""),
                ("other", 1, "Whatever it says: no"),
                ("pow", 1, "pow: 3 is less than 20"),
            ]
        );
    }

    #[test]
    fn what_is_private_stays_here() {
        let withheld = Withheld { kinds: vec![4, 1059], protected: true };
        let event = |tags: &str| {
            let (id, sig) = ("0".repeat(64), "0".repeat(128));
            format!(
                r#"{{"id":"{id}","pubkey":"{id}","created_at":1,"kind":1,"tags":{tags},"content":"\"-\"","sig":"{sig}"}}"#
            )
        };
        assert!(withheld.has(4, "{}") && withheld.has(1059, "{}"));
        assert!(withheld.has(1, &event(r#"[["-"]]"#)));
        assert!(!withheld.has(1, &event(r#"[["t","-"]]"#)));
        assert!(!Withheld::default().has(4, &event(r#"[["-"]]"#)));
    }
}
