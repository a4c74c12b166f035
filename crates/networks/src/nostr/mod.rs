//! Nostr (NIP-01), in which events may replace and delete earlier events.

use hark_archive::effects::Rules;

use crate::{Filters, LineFormat, Network, RecordProperties};

pub mod admit;
mod filters;
pub mod limits;
mod lines;
pub mod names;
pub mod query;
pub mod question_rules;
mod refusal;
pub mod reports;
pub mod requests;
pub mod rules;
pub mod texts;

pub use refusal::{NostrRefusal, NostrVerdict};

/// The Nostr network.
#[derive(Clone, Copy, Debug)]
pub struct Nostr;

impl Network for Nostr {
    fn name(&self) -> &'static str {
        "nostr"
    }

    fn records(&self) -> &'static str {
        "events"
    }

    fn nature(&self) -> RecordProperties {
        RecordProperties {
            units_per_s: 1,
            one_kind: false,
            has_authors: true,
            one_label: false,
            common_labels: &[],
            listed_labels: &[],
        }
    }

    fn tombstone_kinds(&self) -> &'static [u32] {
        &[rules::DELETION, rules::VANISH_KIND]
    }

    fn rules(&self) -> Box<dyn Rules> {
        Box::new(rules::NostrRules)
    }

    fn lines(&self) -> &dyn LineFormat {
        &lines::EventLines
    }

    fn filters(&self) -> &dyn Filters {
        &filters::EventFilters
    }
}
