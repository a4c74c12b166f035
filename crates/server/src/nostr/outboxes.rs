//! Counts the bytes that clients have not read yet, in total and per address.
//!
//! The [`Outbox`](super::outbox::Outbox) of a connection counts its bytes against its own bounds.
//! The bytes count here as well, so that all connections together stay within a bound. At the
//! bounds of this module, the treatment depends on the kind of message:
//!
//! - A question may wait before each of its pages. Above half of the total bound, or above the
//!   bound of its address, it waits if its client has unread bytes. Above the total bound, every
//!   question waits. So a client that reads its answers is served while other clients leave their
//!   answers unread.
//! - A live event, or another message that was not requested, does not wait. Above a bound, it ends
//!   its connection if the connection has more than its share: the bound divided by the number of
//!   connections.
//! - An HTTP request is answered with status 503 above a bound.
//!
//! If questions have waited for [`QUESTION_WAIT_MAX`], each connection with more than three quarters
//! of its share ends.
//!
//! A live event with many subscribers is in memory once, and is counted once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hark_archive::live::LiveIndex;
use parking_lot::Mutex;

use super::metrics::RelayMetrics;
use super::readers::{ReaderJob, Readers};
use crate::address::ClientAddress;
use crate::limits::Limits;

/// The bytes of all outboxes.
pub(crate) struct Outboxes {
    metrics: Arc<RelayMetrics>,
    live: Arc<LiveIndex>,
    readers: Arc<Readers>,
    of: Mutex<HashMap<ClientAddress, Arc<AddressUse>>>,
    /// Questions of clients that read their answers. They wait while the total bound is exceeded.
    waiting: Mutex<WaitingQuestions>,
    waiting_len: AtomicUsize,
}

/// The longest time that questions wait because of clients that do not read.
const QUESTION_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
struct WaitingQuestions {
    jobs: Vec<Box<dyn ReaderJob>>,
    /// The time at which the first of the questions was parked.
    since: Option<Instant>,
}

/// The bytes and connections of one address.
#[derive(Default)]
struct AddressUse {
    bytes: AtomicUsize,
    connections: AtomicUsize,
}

/// The account of one connection, with the bounds for all connections and for the connection's
/// address.
pub(crate) struct OutboxAccount {
    outboxes: Arc<Outboxes>,
    of: Option<(ClientAddress, Arc<AddressUse>)>,
    all_max: usize,
    of_address_max: usize,
}

impl Outboxes {
    pub(crate) fn new(
        metrics: Arc<RelayMetrics>,
        live: Arc<LiveIndex>,
        readers: Arc<Readers>,
    ) -> Arc<Self> {
        let (of, waiting, waiting_len) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { metrics, live, readers, of, waiting, waiting_len })
    }

    /// Number of bytes that wait now, for all clients.
    pub(crate) fn bytes(&self) -> usize {
        (self.metrics.outbox_bytes.get() + self.live.held_bytes()) as usize
    }

    /// Opens an account for a connection of `address`, with the bounds in force now.
    pub(crate) fn open(
        self: &Arc<Self>,
        address: Option<ClientAddress>,
        limits: &Limits,
    ) -> OutboxAccount {
        let of = address.map(|address| {
            let mut open = self.of.lock();
            let of = open.entry(address).or_default();
            of.connections.fetch_add(1, Ordering::Relaxed);
            (address, Arc::clone(of))
        });
        OutboxAccount {
            outboxes: Arc::clone(self),
            of,
            all_max: limits.outboxes_bytes_max,
            of_address_max: limits.outboxes_per_address_bytes_max,
        }
    }

    /// Whether questions have waited for [`QUESTION_WAIT_MAX`].
    pub(crate) fn have_questions_waited(&self) -> bool {
        self.waiting_len.load(Ordering::SeqCst) > 0
            && self.waiting.lock().since.is_some_and(|since| since.elapsed() >= QUESTION_WAIT_MAX)
    }

    /// Drops the waiting questions. No reader is left to answer the questions.
    pub(crate) fn close(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }
}

impl OutboxAccount {
    /// The address whose bound applies. `None` if connections of an address are not bounded.
    pub(crate) fn address(&self) -> Option<ClientAddress> {
        self.of.as_ref().map(|(address, _)| *address)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.outboxes.metrics.outbox_bytes.add(bytes as u64);
        if let Some((_, of)) = &self.of {
            of.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Subtracts bytes that were sent or dropped, and resumes questions that waited for free space.
    pub(crate) fn sub(&self, bytes: usize) {
        self.outboxes.metrics.outbox_bytes.sub(bytes as u64);
        if let Some((_, of)) = &self.of {
            of.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.resume_parked();
    }

    /// Whether a question must wait if its client has `own` unread bytes.
    pub(crate) fn is_crowded(&self, own: usize) -> bool {
        own > 0 && (self.outboxes.bytes() > self.all_max / 2 || self.is_above_of_address())
    }

    /// Whether a bound is exceeded and a connection with `own` bytes has more than its share of
    /// that bound.
    pub(crate) fn is_above_share(&self, own: usize) -> bool {
        let of_address = self.of.as_ref().map(|(_, of)| of.connections.load(Ordering::Relaxed));
        self.outboxes.bytes() > self.all_max && own > self.share()
            || self.is_above_of_address()
                && own > self.of_address_max / of_address.unwrap_or_default().max(1)
    }

    /// Whether questions of all clients have waited too long, and a connection with `own` unread
    /// and held-back bytes has more than three quarters of its share of the total bound. If all these connections
    /// end, enough bytes are free for the questions to resume.
    pub(crate) fn delays_others(&self, own: usize) -> bool {
        own > self.share() / 4 * 3 && self.outboxes.have_questions_waited()
    }

    /// A connection's share of the total bound.
    fn share(&self) -> usize {
        let connections = self.outboxes.metrics.connections_open.get() as usize;
        self.all_max / connections.max(1)
    }

    /// Parks a question while the total bound is exceeded. Returns the question if the bound is not
    /// exceeded.
    pub(crate) fn park(&self, mut job: Box<dyn ReaderJob>) -> Option<Box<dyn ReaderJob>> {
        if self.outboxes.bytes() <= self.all_max {
            return Some(job);
        }
        job.drop_old_view();
        let mut waiting = self.outboxes.waiting.lock();
        waiting.jobs.push(job);
        waiting.since.get_or_insert_with(Instant::now);
        self.outboxes.waiting_len.store(waiting.jobs.len(), Ordering::SeqCst);
        drop(waiting);
        // Bytes may have been freed just before the push; they did not resume this question.
        self.resume_parked();
        None
    }

    /// Resumes the parked questions once an eighth of the bound is free. Less free space resumes
    /// nothing, because otherwise every freed byte would resume all questions.
    pub(crate) fn resume_parked(&self) {
        let outboxes = &self.outboxes;
        if outboxes.waiting_len.load(Ordering::SeqCst) == 0
            || outboxes.bytes() > self.all_max - self.all_max / 8
        {
            return;
        }
        let mut waiting = outboxes.waiting.lock();
        let WaitingQuestions { jobs, .. } = std::mem::take(&mut *waiting);
        outboxes.waiting_len.store(0, Ordering::SeqCst);
        drop(waiting);
        for job in jobs {
            outboxes.readers.push(job);
        }
    }

    fn is_above_of_address(&self) -> bool {
        let Some((_, of)) = &self.of else { return false };
        of.bytes.load(Ordering::Relaxed) > self.of_address_max
    }

    /// Reserves the bytes of an HTTP answer until the result is dropped. Returns `None` above a
    /// bound.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Option<HeldBytes> {
        if self.is_above_of_address() || self.outboxes.bytes() > self.all_max {
            return None;
        }
        self.add(bytes);
        Some(HeldBytes { account: Arc::clone(self), bytes })
    }
}

impl Drop for OutboxAccount {
    fn drop(&mut self) {
        let Some((address, of)) = &self.of else { return };
        let mut open = self.outboxes.of.lock();
        if of.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            open.remove(address);
        }
    }
}

/// Bytes that are counted until this value is dropped.
pub(crate) struct HeldBytes {
    account: Arc<OutboxAccount>,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.account.sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use hark_archive::live::{NewRecord, SubscriptionSink};
    use hark_archive::{Query, Record};
    use hark_testkit::events::Events;

    use super::*;
    use crate::nostr::outbox::{EndFlag, Outbox};
    use crate::nostr::outbox_item::OutboxItem;
    use crate::nostr::readers::SliceResult;
    use crate::websocket::{FramedMessages, Framing};

    /// The shared state of all outboxes, and the limits that each new outbox gets.
    struct BoundedOutboxes(Arc<Outboxes>, Limits);

    impl BoundedOutboxes {
        fn new(limits: Limits) -> Self {
            let outboxes = Outboxes::new(Arc::default(), Arc::default(), Arc::default());
            Self(outboxes, limits)
        }

        fn connect(&self, address: Option<&str>) -> Arc<Outbox> {
            self.0.metrics.connections_open.add(1);
            let address =
                address.map(|address| ClientAddress::from(address.parse::<IpAddr>().unwrap()));
            let account = Arc::new(self.0.open(address, &self.1));
            Arc::new(Outbox::new(&self.1, Framing::default(), account, Arc::clone(&self.0.metrics)))
        }
    }

    struct ParkedQuestion(Arc<Outbox>);

    impl ReaderJob for ParkedQuestion {
        fn turn(&mut self, _: u64) -> SliceResult {
            SliceResult::Done
        }

        fn fail(&mut self) {}

        fn outbox(&self) -> Arc<Outbox> {
            Arc::clone(&self.0)
        }
    }

    fn page(outbox: &Outbox, bytes: usize) {
        outbox.put(OutboxItem::Page(FramedMessages::of_len(bytes)));
    }

    fn may_ask(outbox: &Arc<Outbox>) -> bool {
        outbox.park(Box::new(ParkedQuestion(Arc::clone(outbox)))).is_some()
    }

    fn is_open(outbox: &Outbox) -> bool {
        outbox.take(&mut std::collections::VecDeque::new())
    }

    #[test]
    fn questions_wait_by_how_full_it_is_and_by_who_takes_what_there_is() {
        let limits = Limits { outboxes_bytes_max: 1_000_000, ..Limits::default() };
        let house = BoundedOutboxes::new(limits);
        let [one, two, three] = [(); 3].map(|()| house.connect(None));
        page(&one, 100_000);
        assert!(may_ask(&one) && may_ask(&two), "there is room for all");
        page(&two, 500_000);
        assert!(!may_ask(&one), "from half on for those who take what there is");
        assert!(may_ask(&three), "like this one");
        page(&two, 500_000);
        assert!(!may_ask(&three), "and then for nobody");
        assert_eq!(house.0.waiting_len.load(Ordering::SeqCst), 1);
        one.close();
        assert_eq!(house.0.waiting_len.load(Ordering::SeqCst), 1, "it is still too much");
        two.close();
        assert_eq!(house.0.waiting_len.load(Ordering::SeqCst), 0, "it goes on");
        assert_eq!(house.0.bytes(), 0);
    }

    #[test]
    fn an_address_has_a_bound_of_its_own() {
        let limits = Limits { outboxes_per_address_bytes_max: 200_000, ..Limits::default() };
        let house = BoundedOutboxes::new(limits);
        let [one, two] = [(); 2].map(|()| house.connect(Some("192.0.2.1")));
        let other = house.connect(Some("192.0.2.2"));
        for outbox in [&one, &two, &other] {
            page(outbox, 150_000);
        }
        assert!(!may_ask(&one) && !may_ask(&two) && may_ask(&other));
        assert!(one.account().hold(1).is_none(), "nor is there room for an answer over HTTP");
        let held = other.account().hold(1_000).unwrap();
        for outbox in [&one, &two, &other] {
            outbox.close();
        }
        drop((one, two, other, held));
        assert!(house.0.bytes() == 0 && house.0.of.lock().is_empty());
    }

    /// A client that reads its live events has almost no waiting bytes.
    #[test]
    fn what_was_not_asked_for_ends_those_who_have_more_than_their_share() {
        let limits = Limits { outboxes_bytes_max: 1_000_000, ..Limits::default() };
        let house = BoundedOutboxes::new(limits);
        let [greedy, modest] = [(); 2].map(|()| house.connect(None));
        page(&greedy, 900_000);
        page(&modest, 200_000);
        modest.put(OutboxItem::One(vec![0; 10]));
        assert!(is_open(&modest), "it has less than half");
        greedy.put(OutboxItem::One(vec![0; 10]));
        assert!(!is_open(&greedy));
    }

    /// The bound per subscription is not enough: one client may have many subscriptions, and there
    /// may be many clients.
    #[test]
    fn what_subscriptions_hold_back_counts_for_all_and_is_shared() {
        let limits = Limits { outboxes_bytes_max: 1_000_000, ..Limits::default() };
        let house = BoundedOutboxes::new(limits);
        let [greedy, modest] = [(); 2].map(|()| house.connect(None));
        assert!(greedy.hold(900_000) && modest.hold(200_000));
        assert!(!greedy.hold(64), "the bound is exceeded, and it has most of it");
        assert!(modest.hold(64), "it has less than half");
        assert_eq!(house.0.bytes(), 1_100_128);
        assert_eq!(modest.waiting(), 0, "its questions need not wait for that");
        greedy.free(900_064);
        modest.free(200_064);
        assert_eq!(house.0.bytes(), 0);
    }

    struct CountingSink(Arc<Outbox>);

    impl SubscriptionSink for CountingSink {
        fn deliver(&self, news: &NewRecord) -> bool {
            self.0.lay_live(&EndFlag::default(), b"open", news)
        }

        fn wake(&self) {}

        fn overflow(&self) {}
    }

    #[test]
    fn what_many_receive_counts_once() {
        let house = BoundedOutboxes::new(Limits::default());
        let outboxes: Vec<Arc<Outbox>> = (0..100).map(|_| house.connect(None)).collect();
        let subscribe = |outbox: &Arc<Outbox>| {
            let sink = Box::new(CountingSink(Arc::clone(outbox)));
            let handle = house.0.live.subscribe(vec![Query::default()], sink, 1 << 20);
            while !handle.enter() {}
            handle.opened(0, 0);
            handle.release(Vec::new());
            handle
        };
        let handles: Vec<_> = outboxes.iter().map(subscribe).collect();
        let mut bytes = Vec::new();
        Events::new(1).record(&mut bytes);
        house.0.live.publish(Some(1), &Record::new(&bytes).unwrap());
        // Each outbox has an item with the subscription's opening bytes and their length.
        let each = size_of::<OutboxItem>() + size_of::<u32>() + b"open".len();
        assert_eq!(house.0.bytes(), bytes.len() + outboxes.len() * each);
        for outbox in &outboxes {
            outbox.close();
        }
        assert_eq!(house.0.bytes(), 0);
        drop(handles);
    }
}
