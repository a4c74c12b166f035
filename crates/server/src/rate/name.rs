//! The names of the rates.

use super::buckets::{RateSource, RateSubject};
use super::limits::{Rate, RateLimits};
use crate::metrics::{MetricLabel, labels};

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

impl RateSubject {
    /// The setting that bounds the subject.
    pub(super) fn name(self) -> RateName {
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
    /// All rates, with the names of their settings.
    pub fn all() -> impl Iterator<Item = (Self, &'static str)> + Clone {
        Self::ALL.iter().copied()
    }

    pub(super) fn of(self, rates: &RateLimits) -> Option<Rate> {
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
    pub(super) fn words(self) -> (&'static str, &'static str) {
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
