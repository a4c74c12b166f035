//! Waku (RFC 13/WAKU2-STORE): no message replaces another message, and times are in nanoseconds.

use hark_archive::effects::{KeepAll, Rules};
use hark_codec::waku::topic;

use crate::{Filters, LineFormat, Network, RecordProperties};

pub mod admit;
mod filters;
pub mod history;
pub mod json;
mod lines;
pub mod retention;
mod units;

pub use units::NS_PER_S;

/// The Waku network.
///
/// ```
/// use hark_networks::Network;
/// use hark_networks::waku::Waku;
///
/// // Times of records are in nanoseconds.
/// assert_eq!(Waku.nature().units_per_s, 1_000_000_000);
/// let query = Waku.filters().query(Waku.filters().example(), &mut |_| None)?;
/// assert!(query.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Waku;

impl Network for Waku {
    fn name(&self) -> &'static str {
        "waku"
    }

    fn records(&self) -> &'static str {
        "messages"
    }

    fn nature(&self) -> RecordProperties {
        // Pubsub topics are common labels: a network has few shards, so many messages share a
        // topic.
        RecordProperties {
            units_per_s: NS_PER_S,
            one_kind: true,
            has_authors: false,
            one_label: false,
            common_labels: &[topic::PUBSUB],
            listed_labels: &[],
        }
    }

    fn rules(&self) -> Box<dyn Rules> {
        Box::new(KeepAll)
    }

    fn lines(&self) -> &dyn LineFormat {
        &lines::MessageLines
    }

    fn filters(&self) -> &dyn Filters {
        &filters::MessageFilters
    }
}
