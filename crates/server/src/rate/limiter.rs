//! The rates that an operator has set, applied to the buckets.

use std::sync::Arc;
use std::time::Duration;

use super::buckets::{RateBuckets, RateSource, RateSubject};
use super::limits::{Rate, RateLimits};
use crate::metrics::{ByLabel, MetricLabel, labels};
use crate::settings::SharedSettings;

labels! {
    /// The rate that refused a message, by the name of its setting.
    RateName {
        /// EVENT and AUTH messages of an address.
        EventsPerAddress = "events_per_address",
        /// Events of a key.
        EventsPerKey = "events_per_key",
        /// Other messages of an address.
        QuestionsPerAddress = "questions_per_address",
        /// REQs, COUNTs, NEG-OPENs and NEG-MSGs of a key.
        QuestionsPerKey = "questions_per_key",
        /// Rows that the searches and comparisons of one connection visit.
        RowsPerConnection = "rows_per_connection",
        /// Rows that the searches and comparisons of one address visit.
        RowsPerAddress = "rows_per_address",
    }
}

/// The refusal of a message above a rate limit.
pub(crate) struct RateExceeded {
    /// The reason in words for the client.
    pub(crate) words: String,
    pub(crate) wait: Duration,
}

impl RateSubject {
    /// The setting that bounds the subject.
    fn name(self) -> RateName {
        match self {
            Self::Events(_) => RateName::EventsPerAddress,
            Self::EventsOf(_) => RateName::EventsPerKey,
            Self::Questions(_) => RateName::QuestionsPerAddress,
            Self::QuestionsOf(_) => RateName::QuestionsPerKey,
            Self::Rows(RateSource::Address(_)) => RateName::RowsPerAddress,
            Self::Rows(RateSource::Connection(_)) => RateName::RowsPerConnection,
        }
    }
}

impl RateName {
    fn of(self, rates: &RateLimits) -> Option<Rate> {
        match self {
            Self::EventsPerAddress => rates.events_per_address,
            Self::EventsPerKey => rates.events_per_key,
            Self::QuestionsPerAddress => rates.questions_per_address,
            Self::QuestionsPerKey => rates.questions_per_key,
            Self::RowsPerConnection => rates.rows_per_connection,
            Self::RowsPerAddress => rates.rows_per_address,
        }
    }

    /// Words for the client: the counted things and the subject, such as "events" and "your
    /// address".
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::EventsPerAddress => ("events", "your address"),
            Self::EventsPerKey => ("events", "this key"),
            Self::QuestionsPerAddress => ("messages", "your address"),
            Self::QuestionsPerKey => ("questions", "your key"),
            Self::RowsPerConnection => ("rows visited", "this connection"),
            Self::RowsPerAddress => ("rows visited", "your address"),
        }
    }
}

/// The buckets, and the settings with their rates.
#[derive(Clone)]
pub(crate) struct RateLimiter {
    pub(super) buckets: Arc<RateBuckets>,
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

    pub(super) fn rate(&self, meter: RateSubject) -> Option<Rate> {
        meter.name().of(&self.settings.load().limits.rates)
    }

    /// Takes `count` tokens if at least one token is available.
    pub(super) fn charge(&self, meter: RateSubject, count: u64) -> Result<(), RateExceeded> {
        let Some(rate) = self.rate(meter) else { return Ok(()) };
        let taken = self.buckets.charge_many(meter, rate, count);
        taken.map_err(|wait| self.too_fast(meter, rate, wait))
    }

    /// Charges rows that a question of `source` has visited.
    pub(crate) fn visited(&self, source: RateSource, rows: u64) {
        let meter = RateSubject::Rows(source);
        if let Some(rate) = self.rate(meter) {
            self.buckets.spend(meter, rate, rows);
        }
    }

    /// Gives back a token that was taken for work that was not done.
    pub(super) fn refund(&self, meter: RateSubject) {
        if let Some(rate) = self.rate(meter) {
            self.buckets.refund(meter, rate, 1);
        }
    }

    /// Checks that a token is available, and takes none.
    pub(crate) fn check(&self, meter: RateSubject) -> Result<(), RateExceeded> {
        let Some(rate) = self.rate(meter) else { return Ok(()) };
        match self.buckets.wait(meter, rate) {
            Duration::ZERO => Ok(()),
            wait => Err(self.too_fast(meter, rate, wait)),
        }
    }

    /// Counts a refusal, and writes the reason for the client.
    fn too_fast(&self, meter: RateSubject, rate: Rate, wait: Duration) -> RateExceeded {
        let name = meter.name();
        self.refusals.of(name).add(1);
        let (what, whose) = name.words();
        let (per_minute, wait_s) = (rate.per_minute, wait.as_secs() + 1);
        let words = format!("more than {per_minute} {what} a minute of {whose}; wait {wait_s} s");
        RateExceeded { words, wait }
    }
}
