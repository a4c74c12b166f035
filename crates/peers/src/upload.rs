//! Sends events to a relay and counts the answers. Events are sent without waiting for the answers
//! to earlier events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hark_archive::Id;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::client::PeerClient;
use crate::error::{PeerError, RateWaits};
use crate::feed::{MissedEvents, OwedEvent};
use crate::local::{self, LocalEnd, LocalEvent};
use crate::meter::SyncMeter;
use crate::plugin::EventPlugin;
use crate::route::PublishAnswer;
use crate::withheld::Withheld;

/// Maximum number of unanswered events, and maximum number of their bytes.
const UNANSWERED_MAX: usize = 256;
const UNANSWERED_BYTES_MAX: usize = 4 << 20;
/// Maximum number of events that are read from the archive at a time.
const READ_TOGETHER: usize = 256;
/// Maximum number of consecutive events that a relay may leave unanswered.
const SILENT_MAX: u32 = 3;
/// An event of at least this size is sent alone, after the shorter events: many relays end the
/// connection at a message above their limit.
const LONG_BYTES: usize = 60 << 10;
/// The longest time that a long event waits for shorter events.
const LONG_WAIT_MAX: Duration = Duration::from_secs(30);
/// Number of connections that may end while the same event is alone in flight. Then the event is
/// not sent again.
const ENDED_MAX: u32 = 3;

/// Events to send.
pub(crate) enum UploadList {
    /// Ids of events in the archive.
    Ids(Vec<Id>),
    /// An event that may leave the archive.
    Event(OwedEvent),
}

/// Sends events.
pub(crate) struct Uploader<'a> {
    pub(crate) client: &'a PeerClient,
    /// The archive from which events are read by their ids.
    pub(crate) from: Option<LocalEnd>,
    pub(crate) withheld: &'a Withheld,
    /// Decides which events are sent.
    pub(crate) plugin: Option<&'a EventPlugin>,
    pub(crate) meter: &'a SyncMeter,
    /// Receives the temporary failures; `None` if failed events are not retried.
    pub(crate) missed: Option<Arc<MissedEvents>>,
}

/// An event that is to be sent, or waits for its answer.
struct Upload {
    owed: OwedEvent,
    /// The event's position in the order of sending.
    number: u64,
    /// Whether the event was already sent once. If so, the plugin has already accepted the event.
    was_sent: bool,
    /// Whether the relay has already refused the event with `auth-required`.
    wanted_auth: bool,
    /// Number of proofs of the key at the time when the event was sent.
    proofs: u64,
}

impl Upload {
    fn event(&self) -> &LocalEvent {
        &self.owed.event
    }

    fn is_long(&self) -> bool {
        self.event().json.len() >= LONG_BYTES
    }

    fn new(owed: OwedEvent) -> Self {
        Self { owed, number: 0, was_sent: false, wanted_auth: false, proofs: 0 }
    }
}

/// The result of an answer to an event.
enum Answered {
    /// The relay has accepted or refused the event.
    Done,
    /// The event must be sent again immediately.
    Again(Upload),
    /// The event must be sent again later, because of the relay's rate limit. The text is the
    /// relay's reason.
    Later(Upload, String),
}

/// The events of an uploader that are not sent yet, and the limits for sending more events.
struct UploadQueue {
    /// Ids of events that are not read yet.
    ids: VecDeque<Id>,
    waiting: VecDeque<Upload>,
    long: LongUploads,
    /// Whether more events may come.
    is_open: bool,
    /// Total size of the unanswered events, in bytes.
    bytes: usize,
    /// Maximum number of unanswered events. After a refusal because of the rate, fewer events are
    /// sent at a time, until the relay accepts events again.
    window: usize,
    not_before: Instant,
    waits: RateWaits,
    /// Number of events that were sent.
    number: u64,
    /// Number of consecutive events without an answer.
    silent: u32,
}

/// The long events of an uploader.
#[derive(Default)]
struct LongUploads {
    waiting: VecDeque<(Instant, Upload)>,
    /// Total size of the waiting events, in bytes.
    bytes: usize,
    /// Whether a long event is in flight. Then no other event is sent.
    is_sent: bool,
}

impl LongUploads {
    fn add(&mut self, upload: Upload) {
        self.bytes += upload.event().json.len();
        self.waiting.push_back((Instant::now(), upload));
    }

    /// Whether the next long event is sent before shorter events that wait.
    fn are_due(&self, now: Instant) -> bool {
        self.bytes >= UNANSWERED_BYTES_MAX
            || self.waiting.front().is_some_and(|(since, _)| now - *since >= LONG_WAIT_MAX)
    }

    fn next(&mut self) -> Option<Upload> {
        let (_, upload) = self.waiting.pop_front()?;
        self.bytes -= upload.event().json.len();
        self.is_sent = true;
        Some(upload)
    }
}

impl UploadQueue {
    fn new() -> Self {
        Self {
            ids: VecDeque::new(),
            waiting: VecDeque::new(),
            long: LongUploads::default(),
            is_open: true,
            bytes: 0,
            window: UNANSWERED_MAX,
            not_before: Instant::now(),
            waits: RateWaits::default(),
            number: 0,
            silent: 0,
        }
    }

    /// Adds a list of events; `None` after the last list.
    fn add(&mut self, list: Option<UploadList>) {
        match list {
            Some(UploadList::Ids(ids)) => self.ids.extend(ids),
            Some(UploadList::Event(event)) => self.push(Upload::new(event)),
            None => self.is_open = false,
        }
    }

    /// Queues an event that was not sent yet.
    fn push(&mut self, upload: Upload) {
        if upload.is_long() {
            self.long.add(upload);
        } else {
            self.waiting.push_back(upload);
        }
    }

    fn has_room(&self) -> bool {
        self.is_open
            && self.ids.is_empty()
            && self.waiting.len() < READ_TOGETHER
            && self.long.bytes < UNANSWERED_BYTES_MAX
    }

    /// Whether events whose ids are queued are read next.
    fn may_read(&self) -> bool {
        self.waiting.is_empty() && !self.ids.is_empty() && self.long.bytes < UNANSWERED_BYTES_MAX
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.long.waiting.is_empty() && self.ids.is_empty()
    }

    /// Returns the next event to send, if the limits allow a further event.
    fn next(&mut self, unanswered: usize, now: Instant) -> Option<Upload> {
        let may_send = unanswered < self.window
            && self.bytes < UNANSWERED_BYTES_MAX
            && now >= self.not_before
            && !self.long.is_sent;
        if !may_send {
            return None;
        }
        let is_long_due = self.long.are_due(now);
        if !is_long_due && let Some(upload) = self.waiting.pop_front() {
            return Some(upload);
        }
        let may_be_alone = unanswered == 0 && (is_long_due || self.ids.is_empty());
        if may_be_alone { self.long.next() } else { None }
    }

    /// Queues an event again, because of the relay's rate limit. Returns whether a wait begins.
    fn delay(&mut self, upload: Upload, reason: &str) -> Result<bool, PeerError> {
        let now = Instant::now();
        // All events in flight may be refused, but they cause only one wait.
        let begins = now >= self.not_before;
        if begins {
            self.not_before = now + self.waits.next("events", reason)?;
            self.window = (self.window / 2).max(1);
        }
        if upload.is_long() {
            self.long.add(upload);
            return Ok(begins);
        }
        // Events are sent again in their original order, so that no event is delayed forever.
        let later = |other: &Upload| other.was_sent && other.number < upload.number;
        self.waiting.insert(self.waiting.partition_point(later), upload);
        Ok(begins)
    }
}

impl Uploader<'_> {
    /// Sends the events in `lists`, until the channel is closed.
    pub(crate) async fn run(&self, mut lists: mpsc::Receiver<UploadList>) -> Result<(), PeerError> {
        let mut running = FuturesUnordered::new();
        let mut queue = UploadQueue::new();
        loop {
            if queue.may_read() {
                let count = queue.ids.len().min(READ_TOGETHER);
                let ids = queue.ids.drain(..count).collect();
                self.read(ids, &mut queue).await?;
            }
            let now = Instant::now();
            while let Some(upload) = queue.next(running.len(), now) {
                let Some(mut upload) = self.accepted(upload).await else {
                    queue.long.is_sent = false;
                    continue;
                };
                upload.owed.is_alone = queue.long.is_sent;
                upload.proofs = self.client.proofs();
                if !std::mem::replace(&mut upload.was_sent, true) {
                    queue.number += 1;
                    upload.number = queue.number;
                    self.meter.add(|meter| &meter.sent, 1);
                }
                queue.bytes += upload.event().json.len();
                running.push(self.send(upload).await?);
            }
            if !queue.is_open && queue.is_empty() && running.is_empty() {
                return Ok(());
            }
            // If all events of the last batch are withheld or long, the next batch is read.
            if running.is_empty() && queue.may_read() {
                continue;
            }
            let not_before = queue.not_before;
            tokio::select! {
                list = lists.recv(), if queue.has_room() => queue.add(list),
                () = sleep_until(not_before), if !queue.is_empty() && not_before > now => {}
                Some((upload, answer)) = running.next(), if !running.is_empty() => {
                    self.receive(upload, answer, &mut queue).await?;
                }
            }
        }
    }

    /// Returns the event; `None` if the plugin refuses the event, or if the relay has ended too many
    /// connections at the event.
    async fn accepted(&self, upload: Upload) -> Option<Upload> {
        if self.missed.as_ref().is_some_and(|missed| missed.ended(&upload.event().id) >= ENDED_MAX)
        {
            self.meter.refuse_there("too large", "the relay ends the connection at this event");
            upload.owed.finish();
            return None;
        }
        if let Some(plugin) = self.plugin.filter(|_| !upload.was_sent)
            && let Err(refusal) = plugin.accept(&upload.event().json).await
        {
            if !refusal.is_failure {
                upload.owed.finish();
            }
            self.meter.add(|meter| &meter.withheld, 1);
            return None;
        }
        Some(upload)
    }

    /// Processes the answer to an event, or the lack of an answer.
    async fn receive(
        &self,
        mut upload: Upload,
        answer: Result<PublishAnswer, PeerError>,
        queue: &mut UploadQueue,
    ) -> Result<(), PeerError> {
        queue.bytes -= upload.event().json.len();
        queue.long.is_sent = false;
        // A relay may leave an event that is too long for it unanswered, which counts like an end of
        // the connection.
        if answer.is_ok() {
            upload.owed.is_alone = false;
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(PeerError::Silent { .. }) if upload.is_long() || queue.silent < SILENT_MAX => {
                queue.silent += u32::from(!upload.is_long());
                self.meter.refuse_there("no answer", "");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        queue.silent = 0;
        match self.answered(upload, answer).await? {
            Answered::Done => {
                queue.waits.over();
                queue.window = UNANSWERED_MAX.min(queue.window + 1);
            }
            Answered::Again(upload) if upload.is_long() => queue.long.add(upload),
            Answered::Again(upload) => queue.waiting.push_front(upload),
            Answered::Later(upload, reason) => {
                if queue.delay(upload, &reason)? {
                    self.meter.add(|meter| &meter.slowed, 1);
                }
            }
        }
        Ok(())
    }

    /// Reads events of the archive, and queues the events that may leave the archive.
    async fn read(&self, ids: Vec<Id>, queue: &mut UploadQueue) -> Result<(), PeerError> {
        let Some(from) = &self.from else { return Ok(()) };
        for event in local::events(from, ids).await? {
            if self.withheld.has(event.kind, &event.json) {
                self.meter.add(|meter| &meter.withheld, 1);
            } else {
                queue.push(Upload::new(OwedEvent::new(event, self.missed.clone())));
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
        // After a refusal with `error:`, the relay may accept the event later.
        if accepted || !reason.starts_with("error") {
            upload.owed.finish();
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
}
