//! The groups of clients and kinds whose rates differ from the rates for everyone.
//!
//! A group without kinds is of clients, and its rates stand in for the rates for everyone. A group
//! with kinds bounds the events of these kinds in addition. Among the groups of each sort, the
//! first that matches applies.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use hark_archive::meter::Counter;
use hark_codec::record::Key;
use ipnet::IpNet;

use super::buckets::{RateBuckets, RateMeter, RateSubject};
use super::limits::{Rate, RateLimits};
use super::name::RateName;
use super::trusted::{TrustedClients, TrustedKeys};
use crate::ranges;

/// The name that `hark clients` shows for clients without rates.
const SPARED: &str = "spared";

/// Clients listed by their addresses, and by keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedClients {
    /// Clients at these addresses.
    pub addresses: Vec<IpNet>,
    /// Connections that have proved one of these keys (NIP-42).
    pub keys: HashSet<Key>,
}

impl ListedClients {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.keys.is_empty()
    }

    fn have(&self, ip: Option<IpAddr>, keys: &[Key]) -> bool {
        ip.is_some_and(|ip| ranges::contain(&self.addresses, ip))
            || keys.iter().any(|key| self.keys.contains(key))
    }
}

/// A factor of rates, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateFactor(pub u32);

impl RateFactor {
    /// Changes nothing.
    pub const ONE: Self = Self(1_000);

    /// Multiplies a rate. At least one token is left, because a rate of 0 would be no rate.
    fn times(self, rate: Rate) -> Rate {
        let times = |number: u64| {
            let product = u128::from(number) * u128::from(self.0) / 1_000;
            u64::try_from(product).unwrap_or(u64::MAX).max(1)
        };
        Rate { per_minute: times(rate.per_minute), at_once: times(rate.at_once) }
    }
}

/// A group of clients or kinds with rates of its own.
#[derive(Clone, Debug)]
pub struct RateGroup {
    /// The name in refusals, lists and metrics.
    pub name: Box<str>,
    /// The clients; `None` for all clients.
    pub clients: Option<ListedClients>,
    /// Whether the connections that have proved a trusted key are clients of the group as well.
    pub trusted: bool,
    /// The kinds of events; `None` for a group of clients.
    pub kinds: Option<Vec<RangeInclusive<u16>>>,
    /// The factor of the rates for everyone, on every network.
    pub times: RateFactor,
    /// Rates that stand in for a rate for everyone; `None` in the pair for no limit.
    pub rates: Vec<(RateName, Option<Rate>)>,
    /// Maximum number of connections of an address of the group; `None` for the number for everyone.
    pub connections_per_address_max: Option<usize>,
    /// Messages that a rate of the group has refused. A reload continues the counter.
    pub refused: Arc<Counter>,
}

impl RateGroup {
    /// A group of this name without clients, kinds and rates.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            clients: None,
            trusted: false,
            kinds: None,
            times: RateFactor::ONE,
            rates: Vec::new(),
            connections_per_address_max: None,
            refused: Arc::default(),
        }
    }

    /// The number of the group's buckets. Each group has buckets of its own, so the clients of a
    /// group do not use up the rates of others at the same address.
    pub(super) fn number(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(&self.name).max(1)
    }

    /// Returns a rate of the group. `general` has the rates for everyone.
    pub(super) fn rate(&self, name: RateName, general: &RateLimits) -> Option<Rate> {
        match self.rates.iter().find(|(own, _)| *own == name) {
            Some((_, rate)) => *rate,
            None if self.kinds.is_some() => None,
            None => name.of(general).map(|rate| self.times.times(rate)),
        }
    }

    fn has(&self, ip: Option<IpAddr>, keys: &[Key], trusted: &TrustedClients) -> bool {
        self.clients.as_ref().is_none_or(|clients| clients.have(ip, keys))
            || self.trusted && trusted.have_some(keys)
    }

    fn has_kind(&self, kind: u16) -> bool {
        self.kinds.iter().flatten().any(|kinds| kinds.contains(&kind))
    }

    pub(super) fn count_refusal(&self) {
        self.refused.add(1);
    }
}

/// All groups, in their order, and the clients without rates.
#[derive(Clone, Debug, Default)]
pub struct RateGroups {
    spared: ListedClients,
    groups: Vec<Arc<RateGroup>>,
    trusted: TrustedClients,
}

impl RateGroups {
    /// The clients `spared` have no rates, whichever groups they are in.
    pub fn new(spared: ListedClients, groups: Vec<RateGroup>) -> Self {
        let groups = groups.into_iter().map(Arc::new).collect();
        Self { spared, groups, trusted: TrustedClients::default() }
    }

    /// Whether the rates are the same for all clients and kinds.
    pub(crate) fn is_empty(&self) -> bool {
        self.spared.is_empty() && self.groups.is_empty()
    }

    /// The same groups, with these trusted keys.
    pub(crate) fn trusting(&self, trusted: Arc<dyn TrustedKeys>) -> Self {
        Self { trusted: TrustedClients(Some(trusted)), ..self.clone() }
    }

    /// Keeps the trusted keys, and continues the counters of the groups that had the same names
    /// before.
    pub(crate) fn inherit_from(&mut self, before: &Self) {
        self.trusted.clone_from(&before.trusted);
        for group in &mut self.groups {
            if let Some(old) = before.groups.iter().find(|old| old.name == group.name) {
                Arc::make_mut(group).refused = Arc::clone(&old.refused);
            }
        }
    }

    /// The number of messages that the rates of each group have refused.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (&str, u64)> {
        self.groups.iter().map(|group| (&*group.name, group.refused.get()))
    }

    /// Maximum number of connections of the address `ip`. `general` is the number for everyone.
    pub(crate) fn connections_max(&self, ip: IpAddr, general: usize) -> usize {
        let own = self.of_clients().find(|group| group.has(Some(ip), &[], &self.trusted));
        own.and_then(|group| group.connections_per_address_max).unwrap_or(general)
    }

    fn of_clients(&self) -> impl Iterator<Item = &Arc<RateGroup>> {
        self.groups.iter().filter(|group| group.kinds.is_none())
    }

    /// Finds the groups of a client that has proved `keys`.
    fn judge(&self, ip: Option<IpAddr>, keys: &[Key]) -> ClientRates {
        if self.spared.have(ip, keys) {
            return ClientRates { is_spared: true, group: None, of_kinds: Vec::new() };
        }
        let has = |group: &&Arc<RateGroup>| group.has(ip, keys, &self.trusted);
        let group = self.of_clients().find(has).map(Arc::clone);
        let of_kinds = self.groups.iter().filter(|group| group.kinds.is_some());
        let of_kinds = of_kinds.filter(has).map(Arc::clone).collect();
        ClientRates { is_spared: false, group, of_kinds }
    }
}

/// The groups of a client.
#[derive(Debug)]
pub(crate) struct ClientRates {
    /// Whether no rate applies.
    pub(super) is_spared: bool,
    /// The group whose rates stand in for those for everyone.
    pub(super) group: Option<Arc<RateGroup>>,
    /// The groups with kinds, for the events of this client.
    of_kinds: Vec<Arc<RateGroup>>,
}

impl ClientRates {
    /// The name of the client's group; `None` if the rates for everyone apply.
    pub(crate) fn name(&self) -> Option<&str> {
        if self.is_spared { Some(SPARED) } else { self.group.as_ref().map(|group| &*group.name) }
    }

    /// Charges a subject of this client. `general` is the network's rate for everyone. Returns false
    /// if the subject exceeds the rate.
    pub(crate) fn charge(
        &self,
        buckets: &RateBuckets,
        subject: RateSubject,
        general: Option<Rate>,
    ) -> bool {
        let Some(general) = general.filter(|_| !self.is_spared) else { return true };
        let Some(group) = &self.group else { return buckets.charge(subject, general).is_ok() };
        let meter = RateMeter::new(Some(group.number()), subject);
        let charged = buckets.charge(meter, group.times.times(general)).is_ok();
        if !charged {
            group.count_refusal();
        }
        charged
    }

    /// The group whose rates bound the events of a kind in addition.
    pub(super) fn of_kind(&self, kind: u16) -> Option<&RateGroup> {
        self.of_kinds.iter().find(|group| group.has_kind(kind)).map(|group| &**group)
    }
}

/// The keys that a connection has proved, and the groups of its client. The groups are found anew
/// only if the operator's lists, the trusted keys, the keys or the address change.
#[derive(Debug, Default)]
pub(crate) struct GroupMembership {
    keys: Vec<Key>,
    judged: Option<JudgedRates>,
}

/// The groups of a client, and the lists by which they were found.
#[derive(Debug)]
struct JudgedRates {
    groups: Arc<RateGroups>,
    /// The generation of the trusted keys.
    generation: u64,
    rates: Arc<ClientRates>,
}

impl GroupMembership {
    /// Adds a key that the connection has proved.
    pub(crate) fn prove(&mut self, key: &Key) {
        if !self.keys.contains(key) {
            self.keys.push(*key);
            self.judged = None;
        }
    }

    /// The connection serves a client with another address from now on.
    pub(crate) fn forget(&mut self) {
        self.judged = None;
    }

    /// Returns the groups of the client, whose address is `ip`.
    pub(crate) fn rates(
        &mut self,
        groups: &Arc<RateGroups>,
        ip: impl FnOnce() -> Option<IpAddr>,
    ) -> Arc<ClientRates> {
        let generation = groups.trusted.generation();
        if let Some(judged) = &self.judged
            && Arc::ptr_eq(&judged.groups, groups)
            && judged.generation == generation
        {
            return Arc::clone(&judged.rates);
        }
        let rates = Arc::new(groups.judge(ip(), &self.keys));
        let groups = Arc::clone(groups);
        self.judged = Some(JudgedRates { groups, generation, rates: Arc::clone(&rates) });
        rates
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn the_first_group_that_matches_applies_and_each_sort_has_its_own_first() {
        let at = |ranges: &[&str], keys: &[Key]| ListedClients {
            addresses: ranges.iter().map(|range| ranges::read(range).unwrap()).collect(),
            keys: keys.iter().copied().collect(),
        };
        let of = |name: &str, clients: Option<ListedClients>| RateGroup {
            clients,
            ..RateGroup::new(name)
        };
        let of_kinds = |name: &str, clients, kinds| RateGroup {
            kinds: Some(vec![kinds]),
            ..of(name, clients)
        };
        let groups = RateGroups::new(
            at(&["192.0.2.9"], &[[9; 32]]),
            vec![
                of_kinds("wraps-of-net", Some(at(&["192.0.2.0/24"], &[])), 1059..=1059),
                of("members", Some(at(&[], &[[1; 32]]))),
                of_kinds("wraps", None, 1000..=1059),
                RateGroup {
                    connections_per_address_max: Some(7),
                    ..of("net", Some(at(&["192.0.2.0/24", "2001:db8::/32"], &[[1; 32]])))
                },
            ],
        );
        let ip = |text: &str| -> Option<IpAddr> { Some(text.parse().unwrap()) };
        let judged = |ip, keys: &[Key]| {
            let rates = groups.judge(ip, keys);
            let kinds = [1059, 1000, 1].map(|kind| rates.of_kind(kind).map(|of| of.name.clone()));
            (rates.name().map(str::to_owned), kinds.map(Option::unwrap_or_default))
        };
        let (net, both) = (Some("net".to_owned()), ["wraps-of-net", "wraps", ""].map(Box::from));
        assert_eq!(judged(ip("192.0.2.1"), &[]), (net.clone(), both.clone()));
        let member = judged(ip("192.0.2.1"), &[[2; 32], [1; 32]]);
        assert_eq!(member, (Some("members".into()), both));
        let one = ["wraps", "wraps", ""].map(Box::from);
        assert_eq!(judged(ip("2001:db8::1"), &[]), (net, one.clone()));
        assert_eq!(judged(ip("198.51.100.1"), &[]), (None, one.clone()));
        assert_eq!(judged(None, &[]), (None, one));
        let none = ["", "", ""].map(Box::from);
        assert_eq!(judged(ip("192.0.2.9"), &[[1; 32]]), (Some("spared".into()), none));
        for (from, max) in [("192.0.2.1", 7), ("198.51.100.1", 100), ("::ffff:192.0.2.1", 7)] {
            assert_eq!(groups.connections_max(from.parse().unwrap(), 100), max, "{from}");
        }
    }

    #[test]
    fn a_list_that_is_empty_has_nobody_and_no_kind() {
        let nobody =
            RateGroup { clients: Some(ListedClients::default()), ..RateGroup::new("nobody") };
        let no_kind = RateGroup { kinds: Some(Vec::new()), ..RateGroup::new("no-kind") };
        let groups = RateGroups::new(ListedClients::default(), vec![nobody, no_kind]);
        let rates = groups.judge(Some("192.0.2.1".parse().unwrap()), &[[1; 32]]);
        assert!(rates.name().is_none() && (0..=u16::MAX).all(|kind| rates.of_kind(kind).is_none()));
    }

    #[test]
    fn a_factor_leaves_a_token_and_never_overflows() {
        let rate = |per_minute, at_once| Rate { per_minute, at_once };
        for (factor, before, after) in [
            (10_000, rate(60, 120), rate(600, 1_200)),
            (100, rate(60, 5), rate(6, 1)),
            (1, rate(1, 1), rate(1, 1)),
            (1_000_000, rate(u64::MAX, 1), rate(u64::MAX, 1_000)),
        ] {
            assert_eq!(RateFactor(factor).times(before), after);
        }
    }

    /// Trusts key 1 in even generations.
    #[derive(Default)]
    struct Alternating(AtomicU64);

    impl TrustedKeys for Alternating {
        fn have(&self, key: &Key) -> bool {
            *key == [1; 32] && self.generation().is_multiple_of(2)
        }

        fn generation(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_group_of_trusted_clients_follows_the_trusted_keys() {
        let group = RateGroup {
            clients: Some(ListedClients::default()),
            trusted: true,
            ..RateGroup::new("trusted")
        };
        let plain = RateGroups::new(ListedClients::default(), vec![group.clone()]);
        let trusted = Arc::new(Alternating::default());
        let keys: Arc<dyn TrustedKeys> = Arc::clone(&trusted) as _;
        let mut after_reload = RateGroups::new(ListedClients::default(), vec![group]);
        after_reload.inherit_from(&plain.trusting(keys));
        let (mut member, mut stranger) = (GroupMembership::default(), GroupMembership::default());
        member.prove(&[1; 32]);
        stranger.prove(&[2; 32]);
        let groups = Arc::new(after_reload);
        let name = |of: &mut GroupMembership| of.rates(&groups, || None).name().map(str::to_owned);
        assert_eq!(name(&mut member).as_deref(), Some("trusted"));
        assert_eq!(name(&mut stranger), None);
        trusted.0.store(1, Ordering::Relaxed);
        assert_eq!(name(&mut member), None);
        let plain = Arc::new(plain);
        assert!(
            member.rates(&plain, || None).name().is_none(),
            "without a rule, nobody is trusted"
        );
    }

    #[test]
    fn the_counters_go_on_after_a_reload() {
        let groups = |names: &[&str]| {
            let groups = names.iter().map(|name| RateGroup::new(name)).collect();
            RateGroups::new(ListedClients::default(), groups)
        };
        let (before, mut after) = (groups(&["a", "b"]), groups(&["c", "a"]));
        before.groups[0].count_refusal();
        after.inherit_from(&before);
        assert_eq!(after.refusals().collect::<Vec<_>>(), [("c", 0), ("a", 1)]);
    }
}
