//! The networks of an archive.
//!
//! Each network is a folder with an implementation of [`Network`]. A program chooses the networks
//! that it supports.
#![doc = include_str!("../README.md")]

use hark_archive::effects::Rules;
use std::sync::Arc;

use hark_archive::{Id, Query, Record, RecordHeader, TextSource};

pub mod nostr;
pub mod object;
pub mod search;
mod shelf;
pub mod waku;
pub mod whisper;

pub use nostr::limits::{EventLimits, FilterLimits};
pub use shelf::{FindError, NetworkShelf};

/// The interface of a network to an archive.
pub trait Network: Send + Sync {
    /// The name of the network's shelf, as used for folders, tables, `--network` and labels of
    /// metrics.
    fn name(&self) -> &'static str;
    /// The plural noun for the network's records in texts for people, such as `events`.
    fn records(&self) -> &'static str;
    /// The singular noun for a record, such as `event`: the plural without its final s.
    fn record(&self) -> &'static str {
        self.records().strip_suffix('s').unwrap_or(self.records())
    }
    /// The properties of the network's records that a store may rely on.
    fn nature(&self) -> RecordProperties;
    /// Kinds of tombstones: their records, such as Nostr's deletions, prevent deleted records from
    /// being stored again. So retention never deletes records of these kinds. By default there are
    /// none.
    fn tombstone_kinds(&self) -> &'static [u32] {
        &[]
    }
    /// The rules for the effects of a record on earlier records.
    fn rules(&self) -> Box<dyn Rules>;
    /// The network's records as lines of text, for import and export.
    fn lines(&self) -> &dyn LineFormat;
    /// The text format of the network's filters.
    fn filters(&self) -> &dyn Filters;
}

/// The properties of a network's records that a store may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordProperties {
    /// Number of units of a record's time in one second.
    pub units_per_s: u64,
    /// Whether all records have the same kind.
    pub one_kind: bool,
    /// Whether records may have an author.
    pub has_authors: bool,
    /// Whether each record has exactly one label.
    pub one_label: bool,
    /// Names of labels that have only a few different values, so that each value occurs in many
    /// records.
    pub common_labels: &'static [u8],
    /// Names of labels for which a store can list all values, because some filters, such as
    /// Whisper's bloom filters, are matched against all values.
    pub listed_labels: &'static [u8],
}

/// A network with times in seconds, whose records have nothing else in common.
impl Default for RecordProperties {
    fn default() -> Self {
        Self {
            units_per_s: 1,
            one_kind: false,
            has_authors: true,
            one_label: false,
            common_labels: &[],
            listed_labels: &[],
        }
    }
}

/// Records as lines of JSON, without line endings.
pub trait LineFormat: Send + Sync {
    /// Appends the line of a record.
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>);
    /// Returns whether lines have signatures. If so, [`ReadOptions::trusted`] skips the check of
    /// the signatures.
    fn are_signed(&self) -> bool {
        false
    }
    /// Makes a reader of lines. A reader reuses its buffers, so each thread needs its own reader.
    fn reader(&self, options: &ReadOptions) -> Box<dyn LineReader>;
    /// Makes a function that checks stored records. The check fails if the bytes of a record are
    /// not a message of this network, if the record's id is not the hash of the message, or if the
    /// record has another time, kind or author than the message. Signatures are not checked.
    fn record_check(&self) -> RecordCheck<'_> {
        let record_bytes_max = u32::MAX as usize;
        let options = ReadOptions { record_bytes_max, ..ReadOptions::default() };
        let mut reader = self.reader(&options);
        let (mut line, mut again) = (Vec::new(), Vec::new());
        Box::new(move |record| {
            line.clear();
            self.write(record, &mut line);
            reader.read(&line, &|_| false, &mut again)?;
            let message = Record::new(&again).map_err(|error| malformed(&error.to_string()))?;
            must_have_fields(record, &message.head())
        })
    }
}

/// Checks a stored record; see [`LineFormat::record_check`].
pub type RecordCheck<'a> = Box<dyn FnMut(&Record<'_>) -> Result<(), LineFault> + 'a>;

/// Returns an error if a record has another id, time, kind or author than its message.
fn must_have_fields(record: &Record<'_>, message: &RecordHeader) -> Result<(), LineFault> {
    let found = record.head();
    if found.id != message.id {
        return Err(LineFault::Id);
    }
    let is_same =
        (found.time, found.kind, found.author) == (message.time, message.kind, message.author);
    if is_same {
        Ok(())
    } else {
        Err(malformed("its time, kind or author differs from the message's"))
    }
}

fn malformed(text: &str) -> LineFault {
    LineFault::Malformed(text.into())
}

/// Options for reading lines. By default, every line is checked. Expired records are refused only
/// if `now_s` is set.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Maximum length of a record as its network sends it, in bytes. The default is 1,088 KiB, like
    /// the relay's limit for events.
    pub record_bytes_max: usize,
    /// Whether ids and signatures are trusted, and so not checked.
    pub trusted: bool,
    /// Records that have expired at this time, in seconds since 1970, are refused.
    pub now_s: u64,
    /// The URLs of this server. Some records name the servers for which they are meant.
    pub own_urls: Vec<String>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { record_bytes_max: 1_088 << 10, trusted: false, now_s: 0, own_urls: Vec::new() }
    }
}

/// Reads lines.
pub trait LineReader {
    /// Reads a line into `record`, which is cleared first. Before the expensive checks, calls
    /// `is_kept` with the record's id. `is_kept` returns whether a record with this id is already
    /// stored.
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault>;
}

/// Why a line contains no acceptable record. The texts have further details, or are empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    /// The line is not a record of this network.
    #[error("the line is not a record of this network{}", detail(.0))]
    Malformed(String),
    /// The record is longer than allowed.
    #[error("the record is longer than allowed{}", detail(.0))]
    TooLarge(String),
    /// The record's id is not the hash of its other fields.
    #[error("the record's id is not its hash")]
    Id,
    /// The record is not signed by its author.
    #[error("the record is not signed by its author")]
    Signature,
    /// The record is ephemeral, so it is never stored.
    #[error("the record is ephemeral, so it is never stored")]
    Ephemeral,
    /// The record has expired.
    #[error("the record has expired")]
    Expired,
    /// A record with this id is already stored.
    #[error("a record with this id is already stored")]
    Kept,
}

/// Returns the details of a fault after a colon. Returns an empty text if there are no details.
fn detail(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// A function that returns all values of a label in an archive, or `None` if the archive cannot be
/// read. In that case, the caller that supplied the function reports the reason.
pub type LabelValues<'a> = &'a mut dyn FnMut(u8) -> Option<Vec<Box<[u8]>>>;

/// Why the text of a filter cannot be mapped to a query.
#[derive(Debug, thiserror::Error)]
pub enum FilterTextError {
    /// The filter cannot be read, or needs something that the archive does not have.
    #[error(transparent)]
    Filter(Box<dyn std::error::Error + Send + Sync>),
    /// The filter is matched against the values of a label, but the values cannot be read.
    #[error("the values of a label could not be read")]
    Values,
}

impl FilterTextError {
    /// Makes the error for a filter that cannot be used for this reason.
    pub fn new(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Filter(reason.into())
    }
}

/// The source of the texts that are searched for words. `None` if no texts are searched.
pub type SearchedTexts<'a> = Option<&'a Arc<dyn TextSource>>;

/// The text format of a network's filters.
pub trait Filters: Send + Sync {
    /// Returns the query of a filter. In the result, `now` is 0 and `budget` is unlimited; the
    /// caller sets both. Returns `None` if nothing can match the filter. `values` looks up the
    /// values of a label in an archive. Only filters that are matched against these values need the
    /// lookup.
    fn query(&self, text: &str, values: LabelValues<'_>) -> Result<Option<Query>, FilterTextError>;
    /// Returns the same as [`Filters::query`], for an archive in which the words of `texts` can be
    /// searched.
    fn searching_query(
        &self,
        text: &str,
        values: LabelValues<'_>,
        _texts: SearchedTexts<'_>,
    ) -> Result<Option<Query>, FilterTextError> {
        self.query(text, values)
    }
    /// Returns the text of a filter that means the same as a query, on one line.
    fn text(&self, query: &Query) -> String;
    /// An example of a filter.
    fn example(&self) -> &'static str;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_shown_with_their_details() {
        for (fault, text) in [
            (LineFault::TooLarge(String::new()), "the record is longer than allowed"),
            (LineFault::TooLarge("9 bytes".into()), "the record is longer than allowed: 9 bytes"),
            (LineFault::Id, "the record's id is not its hash"),
        ] {
            assert_eq!(fault.to_string(), text);
        }
    }

    #[test]
    fn examples_of_filters_are_filters_and_are_written_as_they_were_typed() {
        let networks: [&dyn Network; 3] = [&nostr::Nostr, &waku::Waku, &whisper::Whisper];
        for network in networks {
            assert_eq!(network.records(), format!("{}s", network.record()));
            let filters = network.filters();
            let query =
                filters.query(filters.example(), &mut |_| Some(Vec::new())).unwrap().unwrap();
            assert_eq!(filters.text(&query), filters.example());
        }
    }
}
