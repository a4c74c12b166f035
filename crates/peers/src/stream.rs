//! Keeps this archive and a relay in step, so that both have the same events. New events are passed
//! on immediately. The archive and the relay are compared after each connection, whenever an event
//! was missed, and every six hours.
//!
//! The live subscription and the feed are open before the comparison begins, so no event is lost in
//! between. An event that is received twice is stored once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hark_archive::Query;
use hark_archive::blocking::may_block;
use hark_networks::Network;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

use crate::address::RelayAddress;
use crate::client::PeerClient;
use crate::clock::now_s;
use crate::error::PeerError;
use crate::feed::{FeedOutlet, FeedReceiver, LocalFeed, MissedEvents, OwedComparison, SeenIds};
use crate::intake::{IntakeQueue, Origin, Wanted};
use crate::link::ClientOptions;
use crate::local::LocalEnd;
use crate::plugin::EventPlugin;
use crate::route::SubscriptionAnswer;
use crate::status::StreamStatus;
use crate::sync::{Direction, SyncOptions, sync};
use crate::upload::{UploadList, Uploader};
use crate::withheld::Withheld;

/// The first and the longest wait before a reconnection. Each wait is twice the previous wait,
/// minus a random part, so that many streams do not reconnect at the same time.
const BACK_OFF: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_mins(5);
/// Duration of a connection after which the next wait is [`BACK_OFF`] again.
const GOOD_AFTER: Duration = Duration::from_mins(1);
/// Maximum number of times that a closed subscription is reopened. A subscription that was open for
/// [`GOOD_AFTER`] resets the count.
const REOPENS_MAX: u32 = 6;
/// The first and the longest wait before a retry of events that the relay refused temporarily. The
/// wait doubles each time, until no such events are left.
const RETRY: Duration = Duration::from_mins(1);
const RETRY_MAX: Duration = Duration::from_hours(1);
/// Interval of comparisons while no event is known to be missing.
const COMPARE_EVERY: Duration = Duration::from_hours(6);
/// A relay that does not support NIP-77 is read again page by page. If any event may have been
/// missed, reading begins this number of seconds before the archive and the relay were last in
/// step.
const PAGED_BACK_S: u64 = 86_400;
/// After a subscription is reopened, the comparison begins this number of seconds before the time
/// at which the relay closed the subscription.
const REOPENED_BACK_S: u64 = 3_600;

/// Options of a stream.
#[derive(Clone)]
pub struct StreamOptions {
    /// Where events go.
    pub direction: Direction,
    /// The events to exchange. Limits are ignored.
    pub query: Query,
    /// Kinds that do not leave this archive.
    pub private_kinds: Vec<u32>,
    /// Whether protected events (NIP-70) leave this archive.
    pub send_protected: bool,
    /// The first comparison of a connection begins this number of seconds before the archive and
    /// the relay were last in step, or before the start of the stream; `None` compares all events.
    pub catch_up_s: Option<u64>,
    /// Maximum number of events per second from the relay; `None` for no limit.
    pub events_per_s_max: Option<u32>,
    /// Decides which events are accepted from the relay.
    pub plugin_down: Option<Arc<EventPlugin>>,
    /// Decides which events are sent to the relay.
    pub plugin_up: Option<Arc<EventPlugin>>,
    /// How connections are made.
    pub client: ClientOptions,
}

/// Opens a current snapshot of the archive for reading. The call may block. The error is a text for
/// people.
pub type SnapshotOpener = Arc<dyn Fn() -> Result<LocalEnd, String> + Send + Sync>;

/// The parts of this archive that streams use.
#[derive(Clone)]
pub struct StreamEnds {
    /// The network of the events.
    pub network: &'static dyn Network,
    /// Opens the archive for a comparison.
    pub open: SnapshotOpener,
    /// Feed of new events of this archive.
    pub feed: Arc<LocalFeed>,
    /// The queue for events from relays.
    pub intake: IntakeQueue,
    /// Whether received events currently cannot be written.
    pub waits: Arc<AtomicBool>,
}

/// State that a stream keeps between connections.
struct StreamMemory {
    seen: Arc<SeenIds>,
    missed: Arc<MissedEvents>,
    last: Mutex<LastStep>,
}

/// The last time at which the archive and the relay were in step; at first, the start of the
/// stream.
#[derive(Clone, Copy)]
struct LastStep {
    at_s: u64,
    /// Whether the relay was read page by page.
    paged: bool,
}

/// A stream between this archive and a relay.
pub struct RelayStream {
    /// The relay.
    pub address: RelayAddress,
    /// The stream's options.
    pub options: StreamOptions,
    /// This archive.
    pub ends: StreamEnds,
    /// The stream's state.
    pub status: Arc<StreamStatus>,
}

impl RelayStream {
    /// Runs the stream until the future is dropped, or this archive fails.
    pub async fn run(self) -> PeerError {
        let memory = StreamMemory {
            seen: self.ends.feed.seen_of(&self.address),
            missed: Arc::default(),
            last: Mutex::new(LastStep { at_s: now_s(), paged: false }),
        };
        let mut back_off = BACK_OFF;
        loop {
            let began = Instant::now();
            let error = match self.connected(&memory).await {
                Err(error) => error,
                Ok(never) => match never {},
            };
            self.status.connected.store(false, Ordering::Relaxed);
            self.status.set_in_step(false);
            if let Some(failure) = self.ends.intake.failure() {
                return failure;
            }
            if began.elapsed() >= GOOD_AFTER {
                back_off = BACK_OFF;
            }
            let wait = shortened(back_off);
            let relay = self.address.as_str();
            tracing::warn!(relay, %error, again_in_ms = wait.as_millis() as u64, "a stream broke");
            *self.status.last_error.lock() = Some(error.to_string());
            sleep(wait).await;
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    /// Runs one connection to its end.
    async fn connected(
        &self,
        memory: &StreamMemory,
    ) -> Result<std::convert::Infallible, PeerError> {
        let Self { address, options, ends, status } = self;
        let client = PeerClient::connect(address, options.client.clone()).await?;
        status.connections.fetch_add(1, Ordering::Relaxed);
        status.connected.store(true, Ordering::Relaxed);
        status.meter.connected();
        tracing::info!(relay = address.as_str(), "a stream is connected");
        let mut query = Query { limit: usize::MAX, ..options.query.clone() };
        query.normalise();
        let withheld = Withheld::new(&options.private_kinds, options.send_protected);
        let up = options.direction.is_up().then(|| {
            let (seen, missed) = (Arc::clone(&memory.seen), Arc::clone(&memory.missed));
            let meter = Arc::clone(&status.meter);
            ends.feed.subscribe(query.clone(), withheld.clone(), seen, meter, missed)
        });
        let outlet = up.as_ref().map(FeedReceiver::outlet);
        let intake = ends.intake.with_plugin(options.plugin_down.clone());
        let intake = intake.with_pace(options.events_per_s_max);
        let (stream, opened) = (self, Notify::new());
        let live =
            LiveStream { client: &client, stream, query: &query, memory, intake, opened: &opened };
        tokio::select! {
            error = client.closed() => Err(error),
            error = live.down() => Err(error),
            error = live.up(&withheld, up) => Err(error),
            error = live.in_step(outlet.as_deref()) => Err(error),
        }
    }
}

/// Returns a random time between `wait / 2` and `wait`.
fn shortened(wait: Duration) -> Duration {
    let mut random = [0; 4];
    // If this fails, several streams may reconnect at the same time, which is harmless.
    let _ = getrandom::fill(&mut random);
    wait / 2 + wait.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX) / 2.0)
}

/// A connected stream.
struct LiveStream<'a> {
    client: &'a PeerClient,
    stream: &'a RelayStream,
    query: &'a Query,
    memory: &'a StreamMemory,
    intake: IntakeQueue,
    /// Notified when the live subscription is open.
    opened: &'a Notify,
}

impl LiveStream<'_> {
    /// Receives new events of the relay. Returns only after a failure.
    async fn down(&self) -> PeerError {
        let RelayStream { options, ends, status, .. } = self.stream;
        if !options.direction.is_down() {
            return std::future::pending().await;
        }
        let filter = ends.network.filters().text(&Query { limit: 0, ..self.query.clone() });
        let origin = Origin {
            meter: Arc::clone(&status.meter),
            wanted: Wanted::Matching(Arc::new(self.query.clone())),
            seen: Some(Arc::clone(&self.memory.seen)),
            missed: Some(Arc::clone(&self.memory.missed)),
            missed_from: 0,
            protected: options.send_protected,
        };
        let (mut reopens, mut opened_at, mut closed_s) = (0, None::<Instant>, None);
        loop {
            let proofs = self.client.proofs();
            let mut events = match self.client.subscribe(&filter).await {
                Ok(events) => events,
                Err(error) => return error,
            };
            let reason = loop {
                match events.next_live().await {
                    Ok(SubscriptionAnswer::Event(event)) => {
                        let missed_from = live_from(options.catch_up_s, now_s());
                        let origin = Origin { missed_from, ..origin.clone() };
                        let put = self.intake.put(event, origin).await;
                        if let Err(error) = put.and_then(|()| status.meter.check_forged()) {
                            return error;
                        }
                    }
                    Ok(SubscriptionAnswer::TooLong(bytes)) => status.meter.refuse_too_long(bytes),
                    Ok(SubscriptionAnswer::Eose { .. }) => {
                        opened_at = Some(Instant::now());
                        self.opened.notify_one();
                        if let Some(closed_s) = closed_s.take() {
                            // The relay has not delivered the events that were published while the
                            // subscription was closed.
                            let since = u64::saturating_sub(closed_s, REOPENED_BACK_S);
                            self.memory.missed.add(self.since().map_or(since, |at| at.min(since)));
                        }
                    }
                    Ok(SubscriptionAnswer::Closed(reason)) => break reason,
                    Err(error) => return error,
                }
            };
            // Only a subscription that has lasted counts as opened.
            if opened_at.take().is_some_and(|at| at.elapsed() >= GOOD_AFTER) {
                reopens = 0;
            }
            reopens += 1;
            closed_s.get_or_insert_with(now_s);
            if reopens > REOPENS_MAX {
                return PeerError::Refused { what: "a subscription", reason };
            }
            if PeerError::wants_auth(&reason) {
                if let Err(error) = self.client.authenticate_for(proofs, &reason).await {
                    return error;
                }
            } else if PeerError::is_rate(&reason) {
                sleep(Duration::from_secs(1 << reopens)).await;
            } else {
                return PeerError::Refused { what: "a subscription", reason };
            }
        }
    }

    /// Sends new events of this archive. Returns only after a failure.
    async fn up(&self, withheld: &Withheld, events: Option<FeedReceiver>) -> PeerError {
        let RelayStream { options, status, .. } = self.stream;
        let Some(mut events) = events else {
            return std::future::pending().await;
        };
        let (to, lists) = mpsc::channel(1);
        let uploader = Uploader {
            client: self.client,
            from: None,
            withheld,
            plugin: options.plugin_up.as_deref(),
            meter: &status.meter,
            missed: Some(Arc::clone(&self.memory.missed)),
        };
        let passed = async {
            while let Some(event) = events.next().await {
                if to.send(UploadList::Event(event)).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            ended = uploader.run(lists) => match ended {
                Err(error) => error,
                Ok(()) => PeerError::Ended("the sending task has ended".into()),
            },
            () = passed => PeerError::Ended("the feed of new events has ended".into()),
        }
    }

    /// Compares the archive and the relay: immediately, whenever an event was missed, and at long
    /// intervals. Returns only after a failure.
    async fn in_step(&self, up: Option<&FeedOutlet>) -> PeerError {
        let RelayStream { address, options, status, .. } = self.stream;
        let StreamMemory { missed, last, .. } = self.memory;
        if options.direction.is_down() {
            // The comparison waits for the open subscription, so that no event is lost in between.
            // The wait has a time limit, because some relays never report that the subscription is
            // open.
            let _ = timeout(options.client.patience, self.opened.notified()).await;
        }
        let owed = |from| OwedComparison::new(missed, from);
        let mut owes = owed(earliest(self.since(), self.missed()));
        let mut retry = RETRY;
        loop {
            let mut paged = false;
            if let Some(from) = owes.from {
                match self.compare(from).await {
                    Ok(was_paged) => paged = was_paged,
                    Err(error) => return error,
                }
                owes.from = None;
            }
            retry = if missed.has_failed() { (retry * 2).min(RETRY_MAX) } else { RETRY };
            let compared = Instant::now();
            loop {
                let has_failed = missed.has_failed();
                let is_written = !self.stream.ends.waits.load(Ordering::Relaxed);
                status.set_in_step(!has_failed && is_written);
                status.waiting.store(up.map_or(0, FeedOutlet::waiting) as u64, Ordering::Relaxed);
                // While received events cannot be written, the stream stops reading. The comparison
                // of a later connection then finds the events that the relay has dropped.
                if is_written {
                    *last.lock() = LastStep { at_s: now_s(), paged };
                }
                tokio::select! {
                    () = missed.any() => {
                        tracing::warn!(
                            relay = address.as_str(),
                            "events were missed; comparing again"
                        );
                        owes = owed(self.missed());
                        break;
                    }
                    () = sleep(Duration::from_secs(1)) => {}
                }
                if has_failed && compared.elapsed() >= retry {
                    owes = owed(self.missed());
                    break;
                }
                if compared.elapsed() >= COMPARE_EVERY {
                    owes = owed(earliest(self.since(), self.missed()));
                    break;
                }
            }
            status.set_in_step(false);
            // The cause of the missed events may persist, so the next comparison begins only after
            // a pause.
            sleep(BACK_OFF).await;
        }
    }

    /// Returns the start time of a connection's first comparison. Until this comparison, it is
    /// unknown which events were missed. Returns `None` if no comparison is needed.
    fn since(&self) -> Option<u64> {
        let last = *self.memory.last.lock();
        match self.stream.options.catch_up_s {
            Some(0) => None,
            Some(back_s) => Some(last.at_s.min(now_s()).saturating_sub(back_s)),
            None if last.paged => Some(last.at_s.saturating_sub(PAGED_BACK_S)),
            None => Some(0),
        }
    }

    /// Returns the time at which the comparison for missed events begins.
    fn missed(&self) -> Option<u64> {
        let from = self.memory.missed.take();
        let LastStep { at_s, paged } = *self.memory.last.lock();
        match from {
            // Any event may have been missed, but reading all pages of the relay again would take
            // too long.
            Some(0) if paged => Some(at_s.saturating_sub(PAGED_BACK_S)),
            _ => from,
        }
    }

    /// Compares the events from a time on. Returns whether the relay was read page by page.
    async fn compare(&self, since: u64) -> Result<bool, PeerError> {
        let RelayStream { address, options, ends, status } = self.stream;
        let (began, before) = (Instant::now(), status.meter.totals());
        let opening = Arc::clone(&ends.open);
        let opened = tokio::task::spawn_blocking(move || may_block(|| opening())).await;
        let opened = opened.unwrap_or_else(|error| Err(error.to_string()));
        // The error may last for just a moment, while the server that owns the archive starts.
        let local = opened.map_err(PeerError::Unreachable)?;
        let from = self.query.from.max(since);
        let sync_options = SyncOptions {
            direction: options.direction,
            query: Query { from, ..self.query.clone() },
            private_kinds: options.private_kinds.clone(),
            send_protected: options.send_protected,
            no_comparison: false,
            plugin_up: options.plugin_up.clone(),
            seen: Some(Arc::clone(&self.memory.seen)),
            missed: Some(Arc::clone(&self.memory.missed)),
        };
        let intake = self.intake.clone();
        let report = sync(self.client, &sync_options, &local, intake, &status.meter).await?;
        let after = status.meter.totals();
        tracing::info!(
            relay = address.as_str(),
            fetched = after.missing_here - before.missing_here,
            sent = after.missing_there - before.missing_there,
            took_ms = began.elapsed().as_millis() as u64,
            "both sides are compared"
        );
        Ok(report.paged.is_some())
    }
}

/// Returns the earliest start time of the comparison after a plugin failed to decide about a live
/// event. If the event is older, it is found again by the next full comparison.
fn live_from(catch_up_s: Option<u64>, now_s: u64) -> u64 {
    now_s.saturating_sub(catch_up_s.unwrap_or_default().max(PAGED_BACK_S))
}

/// Returns the earlier of two optional times.
fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_event_has_a_day_or_what_is_caught_up_compared_again() {
        let now_s = 1_700_000_000;
        for (catch_up_s, back_s) in [(None, 86_400), (Some(0), 86_400), (Some(604_800), 604_800)] {
            assert_eq!(live_from(catch_up_s, now_s), now_s - back_s);
        }
        assert_eq!(live_from(Some(u64::MAX), now_s), 0);
    }
}
