//! The rates that an operator has set, applied to the buckets.

use std::sync::Arc;
use std::time::Duration;

use super::buckets::{RateBuckets, RateMeter, RateSource, RateSubject};
use super::groups::{ClientRates, RateGroup};
use super::limits::Rate;
use super::name::RateName;
use crate::metrics::ByLabel;
use crate::settings::SharedSettings;

/// The refusal of a message above a rate limit.
pub(crate) struct RateExceeded {
    /// The reason in words for the client.
    pub(crate) words: String,
    pub(crate) wait: Duration,
}

/// The buckets, and the settings with their rates. A `group` is the group whose rates apply; `None`
/// for the rates for everyone.
#[derive(Clone)]
pub(crate) struct RateLimiter {
    buckets: Arc<RateBuckets>,
    pub(super) settings: SharedSettings,
    refusals: Arc<ByLabel<RateName>>,
}

impl RateLimiter {
    pub(crate) fn new(settings: SharedSettings) -> Self {
        Self { buckets: Arc::default(), settings, refusals: Arc::default() }
    }

    /// The numbers of refused messages, by rate.
    pub(crate) fn refusals(&self) -> &ByLabel<RateName> {
        &self.refusals
    }

    /// Returns the bucket of a subject, and its rate. `None` if the subject has no rate.
    fn meter(&self, group: Option<&RateGroup>, subject: RateSubject) -> Option<(RateMeter, Rate)> {
        let (settings, name) = (self.settings.load(), subject.name());
        let general = &settings.limits.rates;
        let rate = group.map_or_else(|| name.of(general), |group| group.rate(name, general))?;
        Some((RateMeter::new(group.map(RateGroup::number), subject), rate))
    }

    /// Takes `count` tokens if at least one token is available.
    pub(super) fn charge(
        &self,
        group: Option<&RateGroup>,
        subject: RateSubject,
        count: u64,
    ) -> Result<(), RateExceeded> {
        let Some((meter, rate)) = self.meter(group, subject) else { return Ok(()) };
        let taken = self.buckets.charge_many(meter, rate, count);
        taken.map_err(|wait| self.too_fast(group, subject, rate, wait))
    }

    /// Takes `count` tokens, even if fewer are available.
    pub(super) fn spend(&self, group: Option<&RateGroup>, subject: RateSubject, count: u64) {
        if let Some((meter, rate)) = self.meter(group, subject) {
            self.buckets.spend(meter, rate, count);
        }
    }

    /// Charges rows that a question of `source` has visited. `client` has the groups of the client;
    /// `None` for the rates for everyone.
    pub(crate) fn visited(&self, client: Option<&ClientRates>, source: RateSource, rows: u64) {
        if !client.is_some_and(|client| client.is_spared) {
            self.spend(client.and_then(|of| of.group.as_deref()), RateSubject::Rows(source), rows);
        }
    }

    /// Checks that the questions of a source have not visited too many rows.
    pub(crate) fn may_visit(
        &self,
        client: Option<&ClientRates>,
        source: RateSource,
    ) -> Result<(), RateExceeded> {
        if client.is_some_and(|client| client.is_spared) {
            return Ok(());
        }
        self.check(client.and_then(|of| of.group.as_deref()), RateSubject::Rows(source))
    }

    /// Gives back a token that was taken for work that was not done.
    pub(super) fn refund(&self, group: Option<&RateGroup>, subject: RateSubject) {
        if let Some((meter, rate)) = self.meter(group, subject) {
            self.buckets.refund(meter, rate, 1);
        }
    }

    /// Returns the time until a token is available.
    pub(super) fn wait(&self, group: Option<&RateGroup>, subject: RateSubject) -> Duration {
        let meter = self.meter(group, subject);
        meter.map_or(Duration::ZERO, |(meter, rate)| self.buckets.wait(meter, rate))
    }

    /// Checks that a token is available, and takes none.
    pub(super) fn check(
        &self,
        group: Option<&RateGroup>,
        subject: RateSubject,
    ) -> Result<(), RateExceeded> {
        let Some((meter, rate)) = self.meter(group, subject) else { return Ok(()) };
        match self.buckets.wait(meter, rate) {
            Duration::ZERO => Ok(()),
            wait => Err(self.too_fast(group, subject, rate, wait)),
        }
    }

    /// Counts a refusal, and writes the reason for the client.
    fn too_fast(
        &self,
        group: Option<&RateGroup>,
        subject: RateSubject,
        rate: Rate,
        wait: Duration,
    ) -> RateExceeded {
        let name = subject.name();
        self.refusals.of(name).add(1);
        let (what, whose) = name.words();
        let (per_minute, wait_s) = (rate.per_minute, wait.as_secs() + 1);
        let in_group = group.map_or_else(String::new, |group| {
            group.count_refusal();
            format!(" (group {})", group.name)
        });
        let words =
            format!("more than {per_minute} {what} a minute of {whose}{in_group}; wait {wait_s} s");
        RateExceeded { words, wait }
    }
}
