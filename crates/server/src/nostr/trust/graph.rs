//! The trusted keys, and the follow lists from which they follow.
//!
//! Each key has a number, and a follow list is an ascending list of numbers. Only the lists of the
//! roots and of the inner rings count, so only these lists are kept. Each key has the number of its
//! followers in each of these rings. A new list changes the numbers of those keys that only the
//! earlier or only the new list has. A key whose ring changes moves its own follows from one ring
//! to the other. The ring of a key depends only on followers in smaller rings, so the changes end,
//! and their result does not depend on their order. In ascending order of rings, few keys change
//! twice.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use hark_codec::record::Key;
use hashbrown::HashTable;

use super::rules::{TRUST_DEPTH_MAX, TrustRules};

/// The ring of keys that are not trusted.
const OUTSIDE: u8 = u8::MAX;
/// The memory that a further key takes: its state and its place in the index.
const KEY_BYTES: usize = size_of::<KeyState>() + 8;
/// The memory that a further follow takes.
const FOLLOW_BYTES: usize = size_of::<u32>();
/// The memory of a list without its follows: its place in the table, and the allocator's part.
const LIST_BYTES: usize = 40;

/// A key that is a root, has a follower in an inner ring, or both.
struct KeyState {
    key: Key,
    /// Number of followers in each inner ring whose lists were read.
    followers: [u32; TRUST_DEPTH_MAX],
    /// The ring of the key; 0 for a root.
    ring: u8,
    /// The queues that contain the key, one bit for each queue.
    queued: u8,
    is_root: bool,
    /// Whether the number stands for no key and can be given to the next key.
    is_free: bool,
}

impl KeyState {
    fn new(key: Key) -> Self {
        let followers = [0; TRUST_DEPTH_MAX];
        Self { key, followers, ring: OUTSIDE, queued: 0, is_root: false, is_free: false }
    }
}

/// The trusted keys; see the module.
#[derive(Default)]
pub(super) struct TrustGraph {
    rules: TrustRules,
    keys: Vec<KeyState>,
    /// The numbers of the keys, by the hash of the key.
    index: HashTable<u32>,
    hasher: RandomState,
    free: Vec<u32>,
    /// The follow lists of the roots and of the inner rings, as ascending numbers.
    lists: HashMap<u32, Box<[u32]>>,
    /// Number of follows in all lists.
    follows: usize,
    /// Keys whose lists count and were not read yet. Some may have left the inner rings.
    unread: VecDeque<u32>,
    /// Keys whose ring has to change, by the smaller of their present ring and their next ring.
    queues: [Vec<u32>; TRUST_DEPTH_MAX + 1],
    /// Number of trusted keys, by ring.
    rings: [usize; TRUST_DEPTH_MAX + 1],
    /// Number of follows that the bounds have left out.
    left_out: u64,
    /// Number of times that the set of trusted keys has changed.
    pub(super) changes: u64,
}

/// The sizes of the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrustStats {
    /// Number of trusted keys in each ring, beginning with the roots.
    pub rings: [usize; TRUST_DEPTH_MAX + 1],
    /// Number of keys that are trusted or that a list names.
    pub keys: usize,
    /// Number of follow lists that count.
    pub lists: usize,
    /// Number of follows in these lists.
    pub follows: usize,
    /// Memory of the graph, in bytes.
    pub bytes: usize,
    /// Number of follows that the bounds have left out.
    pub left_out: u64,
}

impl TrustGraph {
    pub(super) fn is_trusted(&self, key: &Key) -> bool {
        self.number(key).is_some_and(|at| self.state(at).ring != OUTSIDE)
    }

    /// Whether the follow list of a key counts.
    pub(super) fn needs_list(&self, key: &Key) -> bool {
        self.number(key).is_some_and(|at| self.is_inner(self.state(at).ring))
    }

    /// The keys whose follow lists count and were read.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Key> {
        self.lists.keys().map(|at| &self.state(*at).key)
    }

    /// Pops up to `max` keys whose follow lists have to be read.
    pub(super) fn pop_unread(&mut self, max: usize) -> Vec<Key> {
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(at) = self.unread.pop_front()
        {
            let state = self.state(at);
            if !state.is_free && self.is_inner(state.ring) && !self.lists.contains_key(&at) {
                taken.push(state.key);
            }
        }
        taken
    }

    pub(super) fn stats(&self) -> TrustStats {
        TrustStats {
            rings: self.rings,
            keys: self.keys.len() - self.free.len(),
            lists: self.lists.len(),
            follows: self.follows,
            bytes: self.bytes(),
            left_out: self.left_out,
        }
    }

    /// The memory that the present keys and lists need. Freed numbers and the last growth of a table
    /// do not count, since further keys can use their memory.
    fn bytes_in_use(&self) -> usize {
        let keys = self.keys.len() - self.free.len();
        keys * KEY_BYTES + self.lists.len() * LIST_BYTES + self.follows * FOLLOW_BYTES
    }

    /// The memory that the graph occupies.
    fn bytes(&self) -> usize {
        let numbers = self.free.capacity()
            + self.unread.capacity()
            + self.queues.iter().map(Vec::capacity).sum::<usize>();
        self.keys.capacity() * size_of::<KeyState>()
            + self.index.allocation_size()
            + self.lists.capacity() * LIST_BYTES
            + (self.follows + numbers) * FOLLOW_BYTES
    }

    /// Begins to put new rules in force. [`TrustGraph::carry_out`] continues, and
    /// [`TrustGraph::drop_unused`] ends the change. The lists that still count stay, and the lists
    /// that count from now on are unread.
    pub(super) fn begin_rules(&mut self, rules: TrustRules) {
        let depth = rules.depth.min(TRUST_DEPTH_MAX as u8);
        self.rules = TrustRules { depth, ..rules };
        self.changes += 1;
        for state in &mut self.keys {
            state.followers = [0; TRUST_DEPTH_MAX];
            (state.ring, state.queued, state.is_root) = (OUTSIDE, 0, false);
        }
        (self.rings, self.unread) = ([0; TRUST_DEPTH_MAX + 1], VecDeque::new());
        for root in self.rules.roots.clone() {
            let at = self.number(&root).unwrap_or_else(|| self.add_key(&root));
            self.state_mut(at).is_root = true;
            self.queue(at);
        }
    }

    /// Drops the lists and the keys that the rules do not need.
    pub(super) fn drop_unused(&mut self) {
        let (keys, depth) = (&self.keys, self.rules.depth);
        self.lists.retain(|at, _| keys[*at as usize].ring < depth);
        self.lists.shrink_to_fit();
        self.follows = self.lists.values().map(|list| list.len()).sum();
        for at in 0..self.keys.len() {
            self.free_if_unused(at as u32);
        }
    }

    /// Replaces the follow list of a key, if the list counts. [`TrustGraph::carry_out`] completes the
    /// change.
    pub(super) fn put_list(&mut self, author: &Key, follows: &[Key]) {
        let Some(at) = self.number(author) else { return };
        let ring = self.state(at).ring;
        if !self.is_inner(ring) {
            return;
        }
        let old = self.lists.remove(&at).unwrap_or_default();
        self.follows -= old.len();
        let new = self.numbers_of(at, follows);
        for followed in only_in(&new, &old) {
            self.add_follower(followed, ring);
        }
        for followed in only_in(&old, &new) {
            self.remove_follower(followed, ring);
        }
        self.follows += new.len();
        self.lists.insert(at, new);
    }

    /// Returns the ascending numbers of the keys that `author` follows, as far as there is room.
    fn numbers_of(&mut self, author: u32, follows: &[Key]) -> Box<[u32]> {
        let mut room = self.rules.bytes_max.saturating_sub(self.bytes_in_use());
        let counted = &follows[..follows.len().min(self.rules.follows_max)];
        self.left_out += (follows.len() - counted.len()) as u64;
        let mut numbers = Vec::with_capacity(counted.len());
        // The processor searches for several keys at a time if no hash is computed in between.
        let hashes: Vec<u64> = counted.iter().map(|key| self.hasher.hash_one(key)).collect();
        for (key, hash) in counted.iter().zip(hashes) {
            let known = self.number_of(hash, key);
            let bytes = FOLLOW_BYTES + if known.is_none() { KEY_BYTES } else { 0 };
            if bytes > room {
                self.left_out += 1;
                continue;
            }
            room -= bytes;
            numbers.push(known.unwrap_or_else(|| self.add_key(key)));
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|at| *at != author);
        numbers.into()
    }

    fn add_follower(&mut self, at: u32, ring: u8) {
        self.state_mut(at).followers[usize::from(ring)] += 1;
        self.queue(at);
    }

    fn remove_follower(&mut self, at: u32, ring: u8) {
        self.state_mut(at).followers[usize::from(ring)] -= 1;
        self.queue(at);
        self.free_if_unused(at);
    }

    /// Queues a key if its ring has to change.
    fn queue(&mut self, at: u32) {
        let next = self.next_ring(at);
        let state = self.state_mut(at);
        if next == state.ring {
            return;
        }
        let (queue, bit) = (next.min(state.ring), 1 << next.min(state.ring));
        if state.queued & bit == 0 {
            state.queued |= bit;
            self.queues[usize::from(queue)].push(at);
        }
    }

    /// Changes the rings of queued keys, and of the keys that depend on these keys, until the changes
    /// have moved about `work` follows. Returns whether changes are left.
    pub(super) fn carry_out(&mut self, work: usize) -> bool {
        let mut done = 0;
        while let Some(queue) = self.queues.iter().position(|queue| !queue.is_empty()) {
            if done >= work {
                return true;
            }
            let Some(at) = self.queues[queue].pop() else { break };
            self.state_mut(at).queued &= !(1 << queue);
            let (ring, next) = (self.state(at).ring, self.next_ring(at));
            if next == ring {
                self.free_if_unused(at);
            } else if usize::from(next.min(ring)) == queue {
                done += self.move_key(at, next);
            } else {
                self.queue(at);
            }
        }
        for queue in &mut self.queues {
            queue.shrink_to(1 << 10);
        }
        false
    }

    /// Moves a key to another ring, and its follows with the key. Returns the number of moves.
    fn move_key(&mut self, at: u32, next: u8) -> usize {
        let before = std::mem::replace(&mut self.state_mut(at).ring, next);
        for (ring, is_new) in [(before, false), (next, true)] {
            if let Some(count) = self.rings.get_mut(usize::from(ring)) {
                *count = if is_new { *count + 1 } else { *count - 1 };
            }
        }
        if (before == OUTSIDE) != (next == OUTSIDE) {
            self.changes += 1;
        }
        let (was_inner, is_inner) = (self.is_inner(before), self.is_inner(next));
        let mut moved = 1;
        if let Some(list) = self.lists.remove(&at) {
            moved += list.len();
            for followed in &list {
                if is_inner {
                    self.add_follower(*followed, next);
                }
                if was_inner {
                    self.remove_follower(*followed, before);
                }
            }
            if is_inner {
                self.lists.insert(at, list);
            } else {
                self.follows -= list.len();
            }
        } else if is_inner {
            self.unread.push_back(at);
        }
        self.free_if_unused(at);
        moved
    }

    /// The ring in which a key belongs by its present followers.
    fn next_ring(&self, at: u32) -> u8 {
        let state = self.state(at);
        if state.is_root {
            return 0;
        }
        let mut followers = 0;
        for ring in 1..=usize::from(self.rules.depth) {
            followers += state.followers[ring - 1];
            if followers >= self.rules.followers_needed(ring) {
                return ring as u8;
            }
        }
        OUTSIDE
    }

    /// Whether the lists of the keys of a ring count.
    fn is_inner(&self, ring: u8) -> bool {
        ring < self.rules.depth
    }

    fn number(&self, key: &Key) -> Option<u32> {
        self.number_of(self.hasher.hash_one(key), key)
    }

    fn number_of(&self, hash: u64, key: &Key) -> Option<u32> {
        self.index.find(hash, |at| self.state(*at).key == *key).copied()
    }

    fn add_key(&mut self, key: &Key) -> u32 {
        let at = self.free.pop().unwrap_or(self.keys.len() as u32);
        let state = KeyState::new(*key);
        if let Some(free) = self.keys.get_mut(at as usize) {
            *free = state;
        } else {
            if self.keys.len() == self.keys.capacity() {
                // The vector would double its memory.
                self.keys.reserve_exact(self.keys.len() / 8 + 64);
            }
            self.keys.push(state);
        }
        let (keys, hasher) = (&self.keys, &self.hasher);
        let hash = |at: &u32| hasher.hash_one(keys[*at as usize].key);
        self.index.insert_unique(hasher.hash_one(key), at, hash);
        at
    }

    /// Frees the number of a key that is outside all rings and in no list.
    fn free_if_unused(&mut self, at: u32) {
        let state = self.state(at);
        let is_used = state.is_root
            || state.ring != OUTSIDE
            || state.queued != 0
            || state.followers != [0; TRUST_DEPTH_MAX];
        if is_used || state.is_free {
            return;
        }
        let hash = self.hasher.hash_one(state.key);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == at) {
            entry.remove();
        }
        self.state_mut(at).is_free = true;
        self.free.push(at);
    }

    fn state(&self, at: u32) -> &KeyState {
        &self.keys[at as usize]
    }

    fn state_mut(&mut self, at: u32) -> &mut KeyState {
        &mut self.keys[at as usize]
    }
}

/// The numbers of one ascending list that the other list does not have.
fn only_in<'a>(one: &'a [u32], other: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
    let mut rest = other;
    one.iter().copied().filter(move |number| {
        let skipped = rest.iter().take_while(|next| *next < number).count();
        rest = &rest[skipped..];
        rest.first() != Some(number)
    })
}
