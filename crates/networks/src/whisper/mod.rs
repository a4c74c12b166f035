//! Whisper (EIP-627, 8/WAKU-MAIL). No envelope replaces another envelope, and clients find
//! envelopes by topic.

use hark_archive::effects::{KeepAll, Rules};
use hark_codec::whisper::record::TOPIC;

use crate::{Filters, LineFormat, Network, RecordProperties};

pub mod admit;
pub mod digits;
mod filters;
pub mod history;
mod lines;
pub mod topics;

pub use lines::write_envelope;

/// The Whisper network.
///
/// ```
/// use hark_networks::Network;
/// use hark_networks::whisper::Whisper;
///
/// let filter = r#"{"topics":["0x5c6c9b56"],"limit":10}"#;
/// let query = Whisper.filters().query(filter, &mut |_| None)?.ok_or("nothing can match")?;
/// assert_eq!(query.limit, 10);
/// assert_eq!(Whisper.filters().text(&query), filter);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Whisper;

impl Network for Whisper {
    fn name(&self) -> &'static str {
        "whisper"
    }

    fn records(&self) -> &'static str {
        "envelopes"
    }

    fn nature(&self) -> RecordProperties {
        // The store must be able to list the topics of the archive, because a bloom filter is
        // matched against each topic.
        RecordProperties {
            units_per_s: 1,
            one_kind: true,
            has_authors: false,
            one_label: true,
            common_labels: &[],
            listed_labels: &[TOPIC],
        }
    }

    fn rules(&self) -> Box<dyn Rules> {
        Box::new(KeepAll)
    }

    fn lines(&self) -> &dyn LineFormat {
        &lines::EnvelopeLines
    }

    fn filters(&self) -> &dyn Filters {
        &filters::EnvelopeFilters
    }
}
