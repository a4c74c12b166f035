//! The rate limits of one connection, and of the client behind the connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hark_codec::record::Key;
use parking_lot::Mutex;

use super::buckets::{RateSource, RateSubject};
use super::limiter::{RateExceeded, RateLimiter};
use super::spared::SparedClients;
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
    ip: Option<IpAddr>,
    spared: Mutex<SparedState>,
    listed: Arc<OpenConnection>,
}

/// The last decision on whether a client is exempt from the rates, and the lists on which this
/// decision was based.
#[derive(Default)]
struct SparedState {
    /// The keys that the connection has proved.
    keys: Vec<Key>,
    judged: Option<(Arc<SparedClients>, bool)>,
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
        let (rates, spared) = (rates.clone(), Mutex::default());
        Self(Arc::new(RatedClient { rates, source, connection, ip, spared, listed }))
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

    /// Records that the connection has proved a key.
    pub(crate) fn proved(&self, key: &Key) {
        let mut spared = self.0.spared.lock();
        if !spared.keys.contains(key) {
            spared.keys.push(*key);
            spared.judged = None;
        }
    }

    /// Whether this client is exempt from all rates. A change of the operator's lists applies at
    /// once.
    fn is_spared(&self) -> bool {
        let RatedClient { rates, ip, spared, .. } = &*self.0;
        let settings = rates.settings.load();
        let lists = &settings.spared;
        if lists.is_empty() {
            return false;
        }
        let mut state = spared.lock();
        if let Some((_, is_spared)) = state.judged.as_ref().filter(|(by, _)| Arc::ptr_eq(by, lists))
        {
            return *is_spared;
        }
        let is_spared = lists.have(*ip, &state.keys);
        state.judged = Some((Arc::clone(lists), is_spared));
        is_spared
    }

    fn charge(&self, meter: RateSubject, count: u64) -> Result<(), RateExceeded> {
        if self.is_spared() { Ok(()) } else { self.0.rates.charge(meter, count) }
    }

    /// Charges an EVENT or AUTH message of `bytes` bytes. Fails if the rate is exceeded.
    pub(crate) fn publishes(&self, bytes: usize) -> Result<(), RateExceeded> {
        self.charge(RateSubject::Events(self.0.source), tokens(bytes))
    }

    /// Charges an event with a valid signature to its author. Fails if the rate is exceeded.
    pub(crate) fn publishes_of(&self, author: &Key) -> Result<(), RateExceeded> {
        self.charge(RateSubject::EventsOf(*author), 1)
    }

    /// Gives back the charge of [`publishes_of`](Self::publishes_of) for an event that was not
    /// stored. Otherwise anybody could use up an author's rate with the author's earlier events.
    pub(crate) fn refund(&self, author: &Key) {
        if !self.is_spared() {
            self.0.rates.refund(RateSubject::EventsOf(*author));
        }
    }

    /// Checks that an event of this author would be within the author's rate, and charges nothing.
    pub(crate) fn may_publish_of(&self, author: &Key) -> Result<(), RateExceeded> {
        if self.is_spared() {
            return Ok(());
        }
        self.0.rates.check(RateSubject::EventsOf(*author))
    }

    /// Charges a message of `bytes` bytes that is neither an EVENT nor an AUTH. Fails if the rate
    /// is exceeded.
    pub(crate) fn speaks(&self, bytes: usize) -> Result<(), RateExceeded> {
        self.charge(RateSubject::Questions(self.0.source), tokens(bytes))
    }

    /// Charges a question to the keys that its client has proved. Fails if the rate of a key or of
    /// visited rows is exceeded.
    pub(crate) fn charge_question(&self, keys: &[Key]) -> Result<(), RateExceeded> {
        if self.is_spared() {
            return Ok(());
        }
        let RatedClient { rates, source, connection, .. } = &*self.0;
        rates.check(RateSubject::Rows(*connection))?;
        if source != connection {
            rates.check(RateSubject::Rows(*source))?;
        }
        keys.iter().try_for_each(|key| rates.charge(RateSubject::QuestionsOf(*key), 1))
    }

    /// Charges a message that was refused or deferred before, or returns how long the message has
    /// to wait.
    pub(crate) fn charge_deferred(&self) -> Result<(), Duration> {
        if self.is_spared() {
            return Ok(());
        }
        let RatedClient { rates, source, connection, .. } = &*self.0;
        let message = RateSubject::Questions(*source);
        let meters = [message, RateSubject::Rows(*source), RateSubject::Rows(*connection)];
        let wait = |meter| rates.rate(meter).map(|rate| rates.buckets.wait(meter, rate));
        let wait = meters.into_iter().filter_map(wait).max().unwrap_or_default();
        if wait > Duration::ZERO {
            return Err(wait);
        }
        if let Some(rate) = rates.rate(message) {
            rates.buckets.spend(message, rate, 1);
        }
        Ok(())
    }

    /// Charges rows that questions of the connection have visited.
    pub(crate) fn visited(&self, rows: u64) {
        if rows == 0 || self.is_spared() {
            return;
        }
        let RatedClient { rates, source, connection, .. } = &*self.0;
        let several = if source == connection { 1 } else { 2 };
        for meter in [*connection, *source].map(RateSubject::Rows).into_iter().take(several) {
            if let Some(rate) = rates.rate(meter) {
                rates.buckets.spend(meter, rate, rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::{Rate, RateLimits};

    use super::*;
    use crate::ranges;
    use crate::rate::limiter::RateName;
    use crate::settings::SharedSettings;

    const SLOW: Rate = Rate { per_minute: 1, at_once: 5 };

    #[test]
    fn a_client_is_spared_by_its_address_or_a_key_that_it_proves_and_no_longer_than_listed() {
        let settings = SharedSettings::default();
        let put = |spared: SparedClients| {
            let rates = RateLimits { events_per_address: Some(SLOW), ..RateLimits::none() };
            let limits = crate::limits::Limits { rates, ..Default::default() };
            let spared = Arc::new(spared);
            settings.store(Arc::new(crate::Settings { limits, spared, ..Default::default() }));
        };
        put(SparedClients::default());
        let rates = RateLimiter::new(Arc::clone(&settings));
        let ip = |text: &str| Some(text.parse().unwrap());
        let (peer, other) = (ip("2001:db8::5"), ip("2001:db8::6"));
        let [peer, other] =
            [peer, other].map(|ip| RatedConnection::new(&rates, OpenConnection::unlisted(1), ip));
        let nameless = RatedConnection::new(&rates, OpenConnection::unlisted(2), None);
        for client in [&peer, &nameless] {
            (0..5).for_each(|_| assert!(client.publishes(0).is_ok()));
            assert!(client.publishes(0).is_err());
        }
        let spared = |addresses: &[&str], keys: &[Key]| SparedClients {
            addresses: addresses.iter().map(|range| ranges::read(range).unwrap()).collect(),
            keys: keys.iter().copied().collect(),
        };
        put(spared(&["2001:db8::5"], &[[7; 32]]));
        assert!((0..50).all(|_| peer.publishes(0).is_ok()));
        assert!(other.publishes(0).is_err(), "another client of the same network is not spared");
        assert!(nameless.publishes(0).is_err(), "a client without an address is on no list");
        nameless.proved(&[8; 32]);
        assert!(nameless.publishes(0).is_err());
        nameless.proved(&[7; 32]);
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
