//! Compares the graph, which changes follow list by follow list, with a simple computation of the
//! same rule from all lists.

use std::collections::{BTreeMap, BTreeSet};

use hark_codec::record::Key;
use proptest::prelude::*;

use super::graph::{TrustGraph, TrustStats};
use super::rules::{TRUST_DEPTH_MAX, TrustRules};

/// Few keys, so that random lists form circles and share keys.
const KEYS: u8 = 12;

type Lists = BTreeMap<Key, Vec<Key>>;

#[derive(Clone, Debug)]
enum Change {
    List(Key, Vec<Key>),
    Rules(TrustRules),
    /// A list changes in the archive, and is read later.
    LaterList(Key, Vec<Key>),
}

fn key() -> impl Strategy<Value = Key> {
    (0..KEYS).prop_map(|first| [first; 32])
}

fn rules() -> impl Strategy<Value = TrustRules> {
    let roots = proptest::collection::btree_set(key(), 0..4);
    (roots, 1..=TRUST_DEPTH_MAX as u8, 1..4_u32).prop_map(|(roots, depth, followers_min)| {
        let roots = roots.into_iter().collect();
        TrustRules { roots, depth, followers_min, ..TrustRules::default() }
    })
}

fn change() -> impl Strategy<Value = Change> {
    let list = || (key(), proptest::collection::vec(key(), 0..7));
    prop_oneof![
        8 => list().prop_map(|(author, follows)| Change::List(author, follows)),
        2 => list().prop_map(|(author, follows)| Change::LaterList(author, follows)),
        1 => rules().prop_map(Change::Rules),
    ]
}

/// The ring of each trusted key, ring by ring.
fn rings_of(rules: &TrustRules, lists: &Lists) -> BTreeMap<Key, usize> {
    let mut rings: BTreeMap<Key, usize> = rules.roots.iter().map(|root| (*root, 0)).collect();
    for ring in 1..=usize::from(rules.depth) {
        let mut followers = BTreeMap::<Key, BTreeSet<Key>>::new();
        for author in rings.keys() {
            for followed in lists.get(author).into_iter().flatten().filter(|key| *key != author) {
                followers.entry(*followed).or_default().insert(*author);
            }
        }
        let needed = rules.followers_needed(ring) as usize;
        for (key, followers) in followers {
            if followers.len() >= needed {
                rings.entry(key).or_insert(ring);
            }
        }
    }
    rings
}

/// The sizes of a graph that knows these lists.
fn stats_of(rules: &TrustRules, lists: &Lists) -> TrustStats {
    let (rings, mut stats) = (rings_of(rules, lists), TrustStats::default());
    let mut named: BTreeSet<Key> = rings.keys().copied().collect();
    for (key, ring) in &rings {
        stats.rings[*ring] += 1;
        if *ring < usize::from(rules.depth) {
            let mut follows: BTreeSet<Key> =
                lists.get(key).into_iter().flatten().copied().collect();
            follows.remove(key);
            stats.lists += 1;
            stats.follows += follows.len();
            named.extend(follows);
        }
    }
    stats.keys = named.len();
    stats
}

/// Carries out all changes in small steps.
fn carry_out(graph: &mut TrustGraph) {
    while graph.carry_out(3) {}
}

fn set_rules(graph: &mut TrustGraph, rules: TrustRules) {
    graph.begin_rules(rules);
    carry_out(graph);
    graph.drop_unused();
}

fn put_list(graph: &mut TrustGraph, author: &Key, follows: &[Key]) {
    graph.put_list(author, follows);
    carry_out(graph);
}

fn read_unread(graph: &mut TrustGraph, lists: &Lists) {
    loop {
        let unread = graph.pop_unread(2);
        if unread.is_empty() {
            return;
        }
        for author in unread {
            put_list(graph, &author, lists.get(&author).map_or(&[][..], Vec::as_slice));
        }
    }
}

fn assert_same(graph: &TrustGraph, rules: &TrustRules, lists: &Lists) {
    let rings = rings_of(rules, lists);
    for key in (0..KEYS).map(|first| [first; 32]) {
        let ring = rings.get(&key);
        assert_eq!(graph.is_trusted(&key), ring.is_some(), "{key:?} {rules:?} {lists:?}");
        let is_inner = ring.is_some_and(|ring| *ring < usize::from(rules.depth));
        assert_eq!(graph.needs_list(&key), is_inner, "{key:?} {rules:?} {lists:?}");
    }
    let TrustStats { bytes, left_out, .. } = graph.stats();
    let wanted = TrustStats { bytes, left_out: 0, ..stats_of(rules, lists) };
    assert_eq!((graph.stats(), left_out), (wanted, 0), "{rules:?} {lists:?}");
    assert_eq!(graph.listed().count(), wanted.lists);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn changes_of_lists_and_rules_give_the_rings_of_all_lists(
        first in rules(),
        changes in proptest::collection::vec(change(), 1..60),
    ) {
        let (mut graph, mut lists, mut rules) = (TrustGraph::default(), Lists::new(), first);
        let mut later = BTreeSet::new();
        set_rules(&mut graph, rules.clone());
        for change in changes {
            match change {
                Change::List(author, follows) => {
                    put_list(&mut graph, &author, &follows);
                    later.remove(&author);
                    lists.insert(author, follows);
                }
                Change::LaterList(author, follows) => {
                    later.insert(author);
                    lists.insert(author, follows);
                    continue;
                }
                Change::Rules(next) => {
                    rules = next;
                    set_rules(&mut graph, rules.clone());
                }
            }
            read_unread(&mut graph, &lists);
            for author in std::mem::take(&mut later) {
                put_list(&mut graph, &author, &lists[&author]);
                read_unread(&mut graph, &lists);
            }
            assert_same(&graph, &rules, &lists);
        }
    }
}

fn numbered(number: u32) -> Key {
    let mut key = [7; 32];
    key[..4].copy_from_slice(&number.to_le_bytes());
    key
}

#[test]
fn a_long_list_counts_up_to_its_bound() {
    let follows: Vec<Key> = (1..=10).map(numbered).collect();
    let rules = TrustRules { roots: vec![numbered(0)], follows_max: 7, ..TrustRules::default() };
    let mut graph = TrustGraph::default();
    set_rules(&mut graph, rules);
    put_list(&mut graph, &numbered(0), &follows);
    let trusted: Vec<u32> = (1..=10).filter(|n| graph.is_trusted(&numbered(*n))).collect();
    assert_eq!(trusted, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(graph.stats().left_out, 3);
}

#[test]
fn memory_stays_below_its_bound_and_removed_keys_make_room() {
    const BYTES_MAX: usize = 1 << 20;
    let roots: Vec<Key> = (0..50).map(numbered).collect();
    let rules = TrustRules { roots, bytes_max: BYTES_MAX, ..TrustRules::default() };
    let mut graph = TrustGraph::default();
    set_rules(&mut graph, rules);
    let follows = |root: u32| -> Vec<Key> {
        (0..5_000).map(|n| numbered(1_000 + root * 5_000 + n)).collect()
    };
    for root in 0..50 {
        put_list(&mut graph, &numbered(root), &follows(root));
        // The last growth of a table may exceed the bound by a part of the table.
        assert!(graph.stats().bytes < BYTES_MAX * 3 / 2, "{:?}", graph.stats());
    }
    assert!(graph.stats().left_out > 200_000 && graph.stats().keys > 5_000, "{:?}", graph.stats());
    for root in 0..50 {
        put_list(&mut graph, &numbered(root), &[]);
    }
    assert_eq!((graph.stats().keys, graph.stats().follows), (50, 0));
    let left_out = graph.stats().left_out;
    put_list(&mut graph, &numbered(0), &follows(0));
    assert_eq!((graph.stats().left_out, graph.stats().keys), (left_out, 5_050));
}
