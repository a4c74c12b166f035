//! Nostr (NIP-01): events that replace and delete each other.

use hark_archive::admission::Rules;

use crate::{Filters, Lines, Nature, Network};

pub mod admit;
mod filters;
mod lines;
pub mod query;
pub mod rules;

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

    fn nature(&self) -> Nature {
        Nature { units_per_s: 1, one_kind: false, common_labels: &[], listed_labels: &[] }
    }

    fn rules(&self) -> Box<dyn Rules> {
        Box::new(rules::NostrRules)
    }

    fn lines(&self) -> &dyn Lines {
        &lines::Events
    }

    fn filters(&self) -> &dyn Filters {
        &filters::EventFilters
    }
}
