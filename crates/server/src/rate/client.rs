//! The rate limits of one connection, and of the client behind the connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hark_codec::record::Key;

use super::buckets::{RateSource, RateSubject};
use super::groups::{ClientRates, RateGroup};
use super::limiter::{RateExceeded, RateLimiter};
use crate::address::ClientAddress;
use crate::roster::OpenConnection;

/// A message costs one token, and one more token for each block of this many bytes.
const BYTES_PER_TOKEN: usize = 64 << 10;

/// Returns the number of tokens that a message of `bytes` bytes costs.
fn tokens(bytes: usize) -> u64 {
    1 + (bytes / BYTES_PER_TOKEN) as u64
}

/// The rate limits of one connection.
#[derive(Clone)]
pub(crate) struct RatedConnection(Arc<RatedClient>);

struct RatedClient {
    rates: RateLimiter,
    /// The client's address, or the connection if a proxy names no address.
    source: RateSource,
    connection: RateSource,
    listed: Arc<OpenConnection>,
}

/// The rates of a client at one moment: the groups of the client, unless the rates are the same for
/// everyone.
struct RatesNow<'a> {
    of: &'a RatedClient,
    client: Option<Arc<ClientRates>>,
}

impl RatesNow<'_> {
    fn group(&self) -> Option<&RateGroup> {
        self.client.as_ref().and_then(|client| client.group.as_deref())
    }

    /// The group that bounds the events of this kind in addition.
    fn of_kind(&self, kind: u16) -> Option<&RateGroup> {
        self.client.as_ref().and_then(|client| client.of_kind(kind))
    }

    fn charge(&self, subject: RateSubject, count: u64) -> Result<(), RateExceeded> {
        self.of.rates.charge(self.group(), subject, count)
    }
}

impl RatedConnection {
    /// The rate limits of a connection, from `ip`.
    pub(crate) fn new(
        rates: &RateLimiter,
        listed: Arc<OpenConnection>,
        ip: Option<IpAddr>,
    ) -> Self {
        let connection = RateSource::Connection(listed.number());
        let source = ip.map_or(connection, |ip| RateSource::Address(ip.into()));
        Self(Arc::new(RatedClient { rates: rates.clone(), source, connection, listed }))
    }

    /// The connection's entry in the list of open connections.
    pub(crate) fn listed(&self) -> &Arc<OpenConnection> {
        &self.0.listed
    }

    /// The client's address, if it is known.
    pub(crate) fn address(&self) -> Option<ClientAddress> {
        match self.0.source {
            RateSource::Address(address) => Some(address),
            RateSource::Connection(_) => None,
        }
    }

    /// Returns the rates that apply now. `None` if the client is exempt from all rates. A change of
    /// the operator's lists applies at once.
    fn now(&self) -> Option<RatesNow<'_>> {
        let RatedClient { rates, listed, .. } = &*self.0;
        let client = listed.rates(&rates.settings.load().rate_groups);
        let is_spared = client.as_ref().is_some_and(|client| client.is_spared);
        (!is_spared).then_some(RatesNow { of: &self.0, client })
    }

    fn charge(&self, subject: RateSubject, count: u64) -> Result<(), RateExceeded> {
        self.now().map_or(Ok(()), |now| now.charge(subject, count))
    }

    /// Charges an EVENT or AUTH message of `bytes` bytes. Fails if the rate is exceeded.
    pub(crate) fn publishes(&self, bytes: usize) -> Result<(), RateExceeded> {
        self.charge(RateSubject::Events(self.0.source), tokens(bytes))
    }

    /// Charges an event to its kind at the client's address. Fails if the rate of a group with this
    /// kind is exceeded.
    pub(crate) fn publishes_kind(&self, kind: u16) -> Result<(), RateExceeded> {
        let Some(now) = self.now() else { return Ok(()) };
        let Some(group) = now.of_kind(kind) else { return Ok(()) };
        self.0.rates.charge(Some(group), RateSubject::Events(self.0.source), 1)
    }

    /// Charges an event with a valid signature to its author. Fails if the rate is exceeded.
    pub(crate) fn publishes_of(&self, author: &Key, kind: u16) -> Result<(), RateExceeded> {
        let Some(now) = self.now() else { return Ok(()) };
        let subject = RateSubject::EventsOf(*author);
        now.charge(subject, 1)?;
        let Some(of_kind) = now.of_kind(kind) else { return Ok(()) };
        let charged = self.0.rates.charge(Some(of_kind), subject, 1);
        charged.inspect_err(|_| self.0.rates.refund(now.group(), subject))
    }

    /// Gives back the charge of [`publishes_of`](Self::publishes_of) for an event that was not
    /// stored. Otherwise anybody could use up an author's rate with the author's earlier events.
    pub(crate) fn refund(&self, author: &Key, kind: u16) {
        let Some(now) = self.now() else { return };
        let subject = RateSubject::EventsOf(*author);
        self.0.rates.refund(now.group(), subject);
        if let Some(of_kind) = now.of_kind(kind) {
            self.0.rates.refund(Some(of_kind), subject);
        }
    }

    /// Checks that an event of this author would be within the author's rates, and charges nothing.
    pub(crate) fn may_publish_of(&self, author: &Key, kind: u16) -> Result<(), RateExceeded> {
        let Some(now) = self.now() else { return Ok(()) };
        let subject = RateSubject::EventsOf(*author);
        self.0.rates.check(now.group(), subject)?;
        match now.of_kind(kind) {
            Some(of_kind) => self.0.rates.check(Some(of_kind), subject),
            None => Ok(()),
        }
    }

    /// Charges a message of `bytes` bytes that is neither an EVENT nor an AUTH. Fails if the rate
    /// is exceeded.
    pub(crate) fn speaks(&self, bytes: usize) -> Result<(), RateExceeded> {
        self.charge(RateSubject::Questions(self.0.source), tokens(bytes))
    }

    /// The connection, and its client if the client's address is known.
    fn sources(&self) -> impl Iterator<Item = RateSource> {
        let RatedClient { source, connection, .. } = *self.0;
        std::iter::once(connection).chain((source != connection).then_some(source))
    }

    /// Charges a question to the keys that its client has proved. Fails if the rate of a key or of
    /// visited rows is exceeded.
    pub(crate) fn charge_question(&self, keys: &[Key]) -> Result<(), RateExceeded> {
        let Some(now) = self.now() else { return Ok(()) };
        let may_visit = |source| self.0.rates.check(now.group(), RateSubject::Rows(source));
        self.sources().try_for_each(may_visit)?;
        keys.iter().try_for_each(|key| now.charge(RateSubject::QuestionsOf(*key), 1))
    }

    /// Charges a message that was refused or deferred before, or returns how long the message has
    /// to wait.
    pub(crate) fn charge_deferred(&self) -> Result<(), Duration> {
        let Some(now) = self.now() else { return Ok(()) };
        let message = RateSubject::Questions(self.0.source);
        let subjects = self.sources().map(RateSubject::Rows).chain([message]);
        let wait = subjects.map(|subject| self.0.rates.wait(now.group(), subject)).max();
        let wait = wait.unwrap_or_default();
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.0.rates.spend(now.group(), message, 1);
        Ok(())
    }

    /// Charges rows that questions of the connection have visited.
    pub(crate) fn visited(&self, rows: u64) {
        if rows == 0 {
            return;
        }
        let Some(now) = self.now() else { return };
        for source in self.sources() {
            self.0.rates.spend(now.group(), RateSubject::Rows(source), rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::{Rate, RateLimits};

    use super::*;
    use crate::ranges;
    use crate::rate::groups::{ListedClients, RateFactor, RateGroups};
    use crate::rate::name::RateName;
    use crate::settings::{Settings, SharedSettings};

    const SLOW: Rate = Rate { per_minute: 1, at_once: 5 };

    /// Puts groups in force, and [`SLOW`] for the events of every address.
    fn put(settings: &SharedSettings, spared: ListedClients, groups: Vec<RateGroup>) {
        let rates = RateLimits { events_per_address: Some(SLOW), ..RateLimits::none() };
        let limits = crate::limits::Limits { rates, ..Default::default() };
        let rate_groups = Arc::new(RateGroups::new(spared, groups));
        settings.store(Arc::new(Settings { limits, rate_groups, ..Default::default() }));
    }

    /// A client at `ip`, or of a proxy that names no client.
    fn client(rates: &RateLimiter, number: u64, ip: Option<&str>) -> RatedConnection {
        let (listed, ip) = (OpenConnection::unlisted(number), ip.map(|ip| ip.parse().unwrap()));
        listed.set_client(listed.ip(), ip);
        RatedConnection::new(rates, listed, ip)
    }

    #[test]
    fn a_group_has_its_own_rates_and_buckets_and_kinds_have_rates_in_addition() {
        let settings = SharedSettings::default();
        let members = RateGroup {
            clients: Some(ListedClients { keys: [[7; 32]].into(), ..Default::default() }),
            times: RateFactor(2_000),
            ..RateGroup::new("members")
        };
        let of_kinds = RateGroup {
            kinds: Some(vec![1059..=1059]),
            rates: vec![
                (RateName::EventsPerAddress, Some(Rate { per_minute: 1, at_once: 2 })),
                (RateName::EventsPerKey, Some(Rate { per_minute: 1, at_once: 1 })),
            ],
            ..RateGroup::new("wraps")
        };
        put(&settings, ListedClients::default(), vec![members, of_kinds]);
        let rates = RateLimiter::new(Arc::clone(&settings));
        let [one, two] = [1, 2].map(|number| client(&rates, number, Some("192.0.2.1")));
        assert_eq!((0..20).filter(|_| one.publishes(0).is_ok()).count(), 5);
        two.listed().prove(&[7; 32]);
        assert_eq!((0..20).filter(|_| two.publishes(0).is_ok()).count(), 10, "not used up by one");
        let words = two.publishes(0).unwrap_err().words;
        assert!(
            words.starts_with("more than 2 events a minute of your address (group members); wait")
        );
        // All clients of the address share the rate of a kind.
        assert!(one.publishes_kind(1059).is_ok() && two.publishes_kind(1059).is_ok());
        assert!(one.publishes_kind(1060).is_ok());
        let words = two.publishes_kind(1059).err().unwrap().words;
        assert!(
            words.starts_with("more than 1 events a minute of your address (group wraps); wait")
        );
        assert!(one.publishes_of(&[1; 32], 1059).is_ok());
        assert!(
            one.may_publish_of(&[1; 32], 1059).is_err()
                && one.publishes_of(&[1; 32], 1059).is_err()
        );
        one.refund(&[1; 32], 1059);
        assert!(one.publishes_of(&[1; 32], 1059).is_ok());
        put(&settings, ListedClients::default(), Vec::new());
        assert!(
            two.publishes(0).is_err(),
            "the client is in no group, and the address has no token"
        );
        assert!(one.publishes_kind(1059).is_ok());
    }

    #[test]
    fn a_client_is_spared_by_its_address_or_a_key_that_it_proves_and_no_longer_than_listed() {
        let settings = SharedSettings::default();
        let put = |spared: ListedClients| put(&settings, spared, Vec::new());
        put(ListedClients::default());
        let rates = RateLimiter::new(Arc::clone(&settings));
        let [peer, other] = ["2001:db8::5", "2001:db8::6"].map(|ip| client(&rates, 1, Some(ip)));
        let nameless = client(&rates, 2, None);
        for client in [&peer, &nameless] {
            (0..5).for_each(|_| assert!(client.publishes(0).is_ok()));
            assert!(client.publishes(0).is_err());
        }
        let spared = |addresses: &[&str], keys: &[Key]| ListedClients {
            addresses: addresses.iter().map(|range| ranges::read(range).unwrap()).collect(),
            keys: keys.iter().copied().collect(),
        };
        put(spared(&["2001:db8::5"], &[[7; 32]]));
        assert!((0..50).all(|_| peer.publishes(0).is_ok()));
        assert!(other.publishes(0).is_err(), "another client of the same network is not spared");
        assert!(nameless.publishes(0).is_err(), "a client without an address is on no list");
        nameless.listed().prove(&[8; 32]);
        assert!(nameless.publishes(0).is_err());
        nameless.listed().prove(&[7; 32]);
        assert!((0..50).all(|_| nameless.publishes(0).is_ok()));
        put(spared(&[], &[[9; 32]]));
        assert!(peer.publishes(0).is_err() && nameless.publishes(0).is_err());
        assert_eq!(rates.refusals().of(RateName::EventsPerAddress).get(), 7);
    }

    #[test]
    fn a_long_message_counts_once_more_for_every_64_kib() {
        let settings = SharedSettings::default();
        let rates = RateLimits { events_per_address: Some(SLOW), ..RateLimits::none() };
        let limits = crate::limits::Limits { rates, ..Default::default() };
        settings.store(Arc::new(crate::Settings { limits, ..Default::default() }));
        let rates = RateLimiter::new(settings);
        for (number, bytes, taken) in [(1, 65_535, 5), (2, 65_536, 3), (3, 1 << 20, 1)] {
            let client = RatedConnection::new(&rates, OpenConnection::unlisted(number), None);
            let passed = (0..9).filter(|_| client.publishes(bytes).is_ok()).count();
            assert_eq!(passed, taken, "{bytes} bytes");
        }
    }
}
