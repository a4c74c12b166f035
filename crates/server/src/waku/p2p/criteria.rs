//! The subscriptions of filter clients, indexed by shard and content topic. So the cost of a
//! message depends only on the number of subscribers of its topic.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libp2p::PeerId;

/// Maximum size of a subscriber's content topics in total, in bytes.
const TOPIC_BYTES_MAX: usize = 256 << 10;

/// The number of a shard, and a content topic.
pub(super) type ShardTopic = (u16, Arc<str>);

/// The bounds of the subscriptions.
#[derive(Clone, Copy, Debug)]
pub(super) struct CriteriaBounds {
    /// Maximum number of subscribers.
    pub(super) subscribers_max: usize,
    /// Maximum number of topics of a subscriber.
    pub(super) criteria_max: usize,
    /// Time after the last request until the subscriptions of a subscriber end.
    pub(super) lifetime: Duration,
}

/// Why a subscription is refused. The texts of the first two are those of nwaku.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SubscriptionRefusal {
    #[error("node has reached maximum number of subscriptions: {0}")]
    Subscribers(usize),
    #[error("peer has reached maximum number of filter criteria")]
    Criteria,
    #[error("the content topics of the peer are too long in total")]
    Bytes,
    #[error("too many subscribers at the address of the peer")]
    Address,
}

/// The subscriptions; see the module. `T` is the type of a subscriber's outbox.
#[derive(Debug)]
pub(super) struct CriteriaIndex<T> {
    /// Numbers of the subscribers. A peer that subscribes again gets another number.
    numbers: HashMap<PeerId, u64>,
    subscribers: HashMap<u64, Subscriber<T>>,
    by_shard: HashMap<u16, HashMap<Arc<str>, BTreeSet<u64>>>,
    last: u64,
}

/// A peer with subscriptions.
#[derive(Debug)]
pub(super) struct Subscriber<T> {
    pub(super) peer: PeerId,
    pub(super) outbox: T,
    /// Whether the peer is connected. Nothing is sent to a disconnected subscriber.
    is_connected: bool,
    /// Time of the last request.
    seen: Instant,
    criteria: HashSet<ShardTopic>,
    topic_bytes: usize,
}

impl<T> Default for CriteriaIndex<T> {
    fn default() -> Self {
        let (numbers, subscribers) = (HashMap::new(), HashMap::new());
        Self { numbers, subscribers, by_shard: HashMap::new(), last: 0 }
    }
}

impl<T> Subscriber<T> {
    /// Number of the subscriber's topics.
    pub(super) fn topics(&self) -> usize {
        self.criteria.len()
    }

    fn is_alive(&self, now: Instant, lifetime: Duration) -> bool {
        now.saturating_duration_since(self.seen) <= lifetime
    }
}

impl<T> CriteriaIndex<T> {
    /// Number of subscribers.
    pub(super) fn len(&self) -> usize {
        self.subscribers.len()
    }

    /// Adds topics of a shard to a peer's subscriptions: all of them, or none. `outbox` creates the
    /// outbox of a new subscriber, or returns `None` if the peer's address has too many
    /// subscribers. Returns the subscriber.
    pub(super) fn subscribe<'t>(
        &mut self,
        peer: PeerId,
        (shard, topics): (u16, impl Iterator<Item = &'t str> + Clone),
        (bounds, now): (&CriteriaBounds, Instant),
        outbox: impl FnOnce(u64) -> Option<T>,
    ) -> Result<&mut Subscriber<T>, SubscriptionRefusal> {
        self.remove_if_expired(peer, bounds.lifetime, now);
        let number = self.numbers.get(&peer).copied();
        let known = number.and_then(|number| self.subscribers.get(&number));
        let shared: HashSet<(u16, Arc<str>)> = topics.map(|topic| (shard, topic.into())).collect();
        let new: Vec<(u16, Arc<str>)> = shared
            .into_iter()
            .filter(|one| known.is_none_or(|known| !known.criteria.contains(one)))
            .collect();
        let (have, have_bytes) = known.map_or((0, 0), |known| (known.topics(), known.topic_bytes));
        if have + new.len() > bounds.criteria_max {
            return Err(SubscriptionRefusal::Criteria);
        }
        let new_bytes: usize = new.iter().map(|(_, topic)| topic.len()).sum();
        if have_bytes + new_bytes > TOPIC_BYTES_MAX {
            return Err(SubscriptionRefusal::Bytes);
        }
        let number = match number {
            Some(number) => number,
            None => self.add_subscriber(peer, bounds, now, outbox)?,
        };
        for (shard, topic) in &new {
            let topics = self.by_shard.entry(*shard).or_default();
            topics.entry(Arc::clone(topic)).or_default().insert(number);
        }
        let subscriber = self.subscribers.get_mut(&number);
        let subscriber = subscriber.ok_or(SubscriptionRefusal::Criteria)?;
        subscriber.criteria.extend(new);
        subscriber.topic_bytes += new_bytes;
        (subscriber.seen, subscriber.is_connected) = (now, true);
        Ok(subscriber)
    }

    fn add_subscriber(
        &mut self,
        peer: PeerId,
        bounds: &CriteriaBounds,
        now: Instant,
        outbox: impl FnOnce(u64) -> Option<T>,
    ) -> Result<u64, SubscriptionRefusal> {
        if self.len() >= bounds.subscribers_max {
            self.expire(bounds.lifetime, now);
        }
        if self.len() >= bounds.subscribers_max {
            self.remove_oldest_disconnected(|_| true);
        }
        if self.len() >= bounds.subscribers_max {
            return Err(SubscriptionRefusal::Subscribers(bounds.subscribers_max));
        }
        self.last += 1;
        let number = self.last;
        let outbox = outbox(number).ok_or(SubscriptionRefusal::Address)?;
        let (criteria, topic_bytes) = (HashSet::new(), 0);
        let new = Subscriber { peer, outbox, is_connected: true, seen: now, criteria, topic_bytes };
        self.subscribers.insert(number, new);
        self.numbers.insert(peer, number);
        Ok(number)
    }

    /// Extends the lifetime of a peer's subscriptions. Returns the subscriber, if the peer has
    /// subscriptions.
    pub(super) fn ping(
        &mut self,
        peer: PeerId,
        lifetime: Duration,
        now: Instant,
    ) -> Option<&mut Subscriber<T>> {
        self.remove_if_expired(peer, lifetime, now);
        let subscriber = self.subscribers.get_mut(self.numbers.get(&peer)?)?;
        (subscriber.seen, subscriber.is_connected) = (now, true);
        Some(subscriber)
    }

    /// Removes topics of a shard from a peer's subscriptions. Returns false if the peer was not
    /// subscribed to all of these topics.
    pub(super) fn unsubscribe<'t>(
        &mut self,
        peer: PeerId,
        (shard, topics): (u16, impl Iterator<Item = &'t str>),
        lifetime: Duration,
        now: Instant,
    ) -> bool {
        if self.ping(peer, lifetime, now).is_none() {
            return false;
        }
        let Some(&number) = self.numbers.get(&peer) else { return false };
        let Some(subscriber) = self.subscribers.get_mut(&number) else { return false };
        let mut had_all = true;
        for topic in topics {
            // This copy of the topic is only for the look-up.
            let one = (shard, Arc::from(topic));
            if subscriber.criteria.remove(&one) {
                subscriber.topic_bytes -= topic.len();
                unlink(&mut self.by_shard, number, &one);
            } else {
                had_all = false;
            }
        }
        if subscriber.topics() == 0 {
            self.remove_number(number);
        }
        had_all
    }

    /// Removes all subscriptions of a peer. Returns false if there were none.
    pub(super) fn remove(&mut self, peer: PeerId, lifetime: Duration, now: Instant) -> bool {
        self.remove_if_expired(peer, lifetime, now);
        let number = self.numbers.get(&peer).copied();
        number.is_some_and(|number| self.remove_number(number).is_some())
    }

    /// Removes a subscriber. Returns `None` if it is gone already.
    pub(super) fn remove_number(&mut self, number: u64) -> Option<Subscriber<T>> {
        let subscriber = self.subscribers.remove(&number)?;
        self.numbers.remove(&subscriber.peer);
        for one in &subscriber.criteria {
            unlink(&mut self.by_shard, number, one);
        }
        Some(subscriber)
    }

    /// Removes the subscribers whose lifetime has ended.
    pub(super) fn expire(&mut self, lifetime: Duration, now: Instant) {
        let expired = self.subscribers.iter().filter(|(_, one)| !one.is_alive(now, lifetime));
        let expired: Vec<u64> = expired.map(|(number, _)| *number).collect();
        for number in expired {
            self.remove_number(number);
        }
    }

    fn remove_if_expired(&mut self, peer: PeerId, lifetime: Duration, now: Instant) {
        let Some(&number) = self.numbers.get(&peer) else { return };
        if self.subscribers.get(&number).is_some_and(|one| !one.is_alive(now, lifetime)) {
            self.remove_number(number);
        }
    }

    /// Removes the subscriber that was disconnected and has sent no request for the longest time,
    /// of those whose outbox `is_meant`. Returns false if there is none.
    pub(super) fn remove_oldest_disconnected(&mut self, is_meant: impl Fn(&T) -> bool) -> bool {
        let gone = self.subscribers.iter();
        let gone = gone.filter(|(_, one)| !one.is_connected && is_meant(&one.outbox));
        let oldest = gone.min_by_key(|(_, one)| one.seen).map(|(&number, _)| number);
        oldest.is_some_and(|number| self.remove_number(number).is_some())
    }

    /// Records whether a peer is connected.
    pub(super) fn set_connected(&mut self, peer: PeerId, is_connected: bool) {
        let number = self.numbers.get(&peer);
        if let Some(subscriber) = number.and_then(|number| self.subscribers.get_mut(number)) {
            subscriber.is_connected = is_connected;
        }
    }

    /// The connected subscribers of a topic.
    pub(super) fn subscribers_of(
        &self,
        (shard, topic): (u16, &str),
        lifetime: Duration,
        now: Instant,
    ) -> impl Iterator<Item = &Subscriber<T>> {
        let numbers = self.by_shard.get(&shard).and_then(|topics| topics.get(topic));
        let found = numbers.into_iter().flatten().filter_map(|one| self.subscribers.get(one));
        found.filter(move |one| one.is_connected && one.is_alive(now, lifetime))
    }

    /// All subscribers with their topics, sorted.
    pub(super) fn all(&self) -> Vec<(PeerId, Vec<ShardTopic>)> {
        let mut all: Vec<_> = self
            .subscribers
            .values()
            .map(|one| {
                let mut topics: Vec<_> = one.criteria.iter().cloned().collect();
                topics.sort();
                (one.peer, topics)
            })
            .collect();
        all.sort();
        all
    }
}

/// Removes a subscriber from a topic. Topics without subscribers are removed.
fn unlink(
    by_shard: &mut HashMap<u16, HashMap<Arc<str>, BTreeSet<u64>>>,
    number: u64,
    (shard, topic): &(u16, Arc<str>),
) {
    let Some(topics) = by_shard.get_mut(shard) else { return };
    if let Some(numbers) = topics.get_mut(topic) {
        numbers.remove(&number);
        if numbers.is_empty() {
            topics.remove(topic);
        }
    }
    if topics.is_empty() {
        by_shard.remove(shard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_mins(5);
    const BOUNDS: CriteriaBounds =
        CriteriaBounds { subscribers_max: 3, criteria_max: 4, lifetime: LIFETIME };

    fn add(
        index: &mut CriteriaIndex<()>,
        peer: PeerId,
        topics: &[&str],
        now: Instant,
    ) -> Result<usize, SubscriptionRefusal> {
        let topics = (0, topics.iter().copied());
        index.subscribe(peer, topics, (&BOUNDS, now), |_| Some(())).map(|one| one.topics())
    }

    fn has(index: &CriteriaIndex<()>, topic: &str, now: Instant) -> usize {
        index.subscribers_of((0, topic), LIFETIME, now).count()
    }

    #[test]
    fn subscribers_are_found_by_their_topics_until_they_unsubscribe() {
        let (mut index, now) = (CriteriaIndex::default(), Instant::now());
        let [one, two] = [(); 2].map(|()| PeerId::random());
        assert_eq!(add(&mut index, one, &["a", "b", "a"], now), Ok(2));
        assert_eq!(add(&mut index, two, &["b"], now), Ok(1));
        assert_eq!(["a", "b", "c"].map(|topic| has(&index, topic, now)), [1, 2, 0]);
        assert_eq!(index.subscribers_of((1, "a"), LIFETIME, now).count(), 0, "another shard");
        assert!(index.unsubscribe(one, (0, ["b"].into_iter()), LIFETIME, now));
        assert!(!index.unsubscribe(one, (0, ["b"].into_iter()), LIFETIME, now));
        assert!(!index.unsubscribe(one, (1, ["a"].into_iter()), LIFETIME, now));
        assert_eq!(["a", "b"].map(|topic| has(&index, topic, now)), [1, 1]);
        // A subscriber is removed with its last topic.
        assert!(index.unsubscribe(one, (0, ["a"].into_iter()), LIFETIME, now));
        assert!(
            index.ping(one, LIFETIME, now).is_none() && index.ping(two, LIFETIME, now).is_some()
        );
        assert!(index.remove(two, LIFETIME, now) && !index.remove(two, LIFETIME, now));
        assert!(index.len() == 0 && index.by_shard.is_empty() && index.numbers.is_empty());
    }

    #[test]
    fn a_subscription_ends_with_its_lifetime_unless_a_request_extends_it() {
        let (mut index, start) = (CriteriaIndex::default(), Instant::now());
        let [one, two] = [(); 2].map(|()| PeerId::random());
        add(&mut index, one, &["a"], start).unwrap();
        add(&mut index, two, &["a"], start).unwrap();
        let end = start + LIFETIME;
        assert!(index.ping(one, LIFETIME, end).is_some());
        assert_eq!(has(&index, "a", end + Duration::from_nanos(1)), 1);
        assert!(index.ping(two, LIFETIME, end + Duration::from_nanos(1)).is_none());
        assert_eq!(index.len(), 1);
        add(&mut index, one, &["b"], end + LIFETIME).unwrap();
        index.expire(LIFETIME, end + LIFETIME * 2);
        assert_eq!(has(&index, "a", end + LIFETIME * 2), 1);
        index.expire(LIFETIME, end + LIFETIME * 3);
        assert!(index.len() == 0 && index.by_shard.is_empty());
        assert!(!index.unsubscribe(one, (0, ["a"].into_iter()), LIFETIME, end));
    }

    #[test]
    fn subscribers_and_topics_are_bounded_and_those_that_left_make_room() {
        let (mut index, now) = (CriteriaIndex::default(), Instant::now());
        let peers = [(); 5].map(|()| PeerId::random());
        for peer in &peers[..3] {
            add(&mut index, *peer, &["a"], now).unwrap();
        }
        let full = Err(SubscriptionRefusal::Subscribers(3));
        assert_eq!(add(&mut index, peers[3], &["a"], now), full);
        index.set_connected(peers[1], false);
        assert_eq!(has(&index, "a", now), 2, "nothing is sent to a peer that is not connected");
        assert_eq!(add(&mut index, peers[3], &["a"], now), Ok(1));
        assert!(index.ping(peers[1], LIFETIME, now).is_none());
        // The lifetime of all subscribers but `peers[3]` ends.
        let later = now + LIFETIME + Duration::from_secs(1);
        assert!(index.ping(peers[3], LIFETIME, now + LIFETIME).is_some());
        assert_eq!(add(&mut index, peers[4], &["a"], later), Ok(1));
        assert_eq!(index.len(), 2);
        // All of the topics are added, or none.
        let many = Err(SubscriptionRefusal::Criteria);
        assert_eq!(add(&mut index, peers[4], &["b", "c", "d", "e"], later), many);
        assert_eq!(has(&index, "b", later), 0);
        assert_eq!(add(&mut index, peers[4], &["b", "c", "d", "a", "b"], later), Ok(4));
        let long = "x".repeat(TOPIC_BYTES_MAX);
        assert_eq!(add(&mut index, peers[0], &[&long], later), Ok(1));
        assert_eq!(add(&mut index, peers[0], &["y"], later), Err(SubscriptionRefusal::Bytes));
        assert!(index.unsubscribe(peers[0], (0, [&*long].into_iter()), LIFETIME, later));
        let topics = (0, ["a"].into_iter());
        let refused = index.subscribe(peers[0], topics, (&BOUNDS, later), |_| None);
        assert_eq!(refused.err(), Some(SubscriptionRefusal::Address));
        assert_eq!(index.all().len(), 2);
        // Of the disconnected subscribers, one that is meant is removed.
        assert!(!index.remove_oldest_disconnected(|()| true));
        index.set_connected(peers[3], false);
        assert!(!index.remove_oldest_disconnected(|()| false));
        assert!(index.remove_oldest_disconnected(|()| true));
        assert_eq!((index.len(), has(&index, "a", later)), (1, 1));
    }

    /// Random operations give the same answers as a plain list of all criteria.
    #[test]
    fn the_index_agrees_with_a_list() {
        let (mut index, now) = (CriteriaIndex::default(), Instant::now());
        let peers = [(); 3].map(|()| PeerId::random());
        let topics = ["a", "b", "c", "d", "e"];
        let mut list: Vec<(PeerId, &str)> = Vec::new();
        let mut random = 7_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = |shift: u32, below: usize| (random >> shift) as usize % below;
            let (peer, topic) = (peers[pick(33, 3)], topics[pick(40, 5)]);
            let is_there = list.contains(&(peer, topic));
            match pick(50, 8) {
                0..4 => {
                    let count = list.iter().filter(|(of, _)| *of == peer).count();
                    let added = add(&mut index, peer, &[topic], now).is_ok();
                    assert_eq!(added, is_there || count < BOUNDS.criteria_max);
                    if added && !is_there {
                        list.push((peer, topic));
                    }
                }
                4..7 => {
                    let removed = index.unsubscribe(peer, (0, [topic].into_iter()), LIFETIME, now);
                    assert_eq!(removed, is_there);
                    list.retain(|one| *one != (peer, topic));
                }
                _ => {
                    let had = list.iter().any(|(of, _)| *of == peer);
                    assert_eq!(index.remove(peer, LIFETIME, now), had);
                    list.retain(|(of, _)| *of != peer);
                }
            }
            for topic in topics {
                let expected = list.iter().filter(|(_, of)| *of == topic).count();
                assert_eq!(has(&index, topic, now), expected);
            }
        }
    }
}
