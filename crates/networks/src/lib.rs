//! What each network adds to the archive: the rules of its records, what may come in, its records as lines
//! and its filters as queries. A folder each. Nothing here does I/O, reads a clock or needs an async runtime.
//!
//! A new network is a folder with its [`Network`]. Which ones a program knows is for the program to say.

use hark_archive::admission::Rules;
use hark_archive::{Id, Query, Record};

pub mod nostr;
pub mod waku;

/// A network, as an archive sees it.
pub trait Network: Send + Sync {
    /// Names its shelf: the folder, the tables, `--network`, the label of metrics.
    fn name(&self) -> &'static str;
    /// What its records are called in messages to people: `events`.
    fn records(&self) -> &'static str;
    /// What a store may build on.
    fn nature(&self) -> Nature;
    /// What a record does to those before it.
    fn rules(&self) -> Box<dyn Rules>;
    /// Its records as lines of text, for import and export.
    fn lines(&self) -> &dyn Lines;
    /// Its filters, for the commands that take some.
    fn filters(&self) -> &dyn Filters;
}

/// What a store may build on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Units that a second has in the times of its records.
    pub units_per_s: u64,
    /// Whether all records are of one kind.
    pub one_kind: bool,
    /// Labels of which there are few values, each of them on many records.
    pub common_labels: &'static [u8],
}

/// Records as lines of JSON, without the ends of the lines.
pub trait Lines: Send + Sync {
    /// Appends the line of a record.
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>);
    /// Whether lines have signatures, of which the check can be left out.
    fn are_signed(&self) -> bool {
        false
    }
    /// A reader of lines. It has buffers of its own, so each thread needs one.
    fn reader(&self, terms: &ReadTerms) -> Box<dyn ReadLine>;
}

/// What holds for all lines that are read.
#[derive(Clone, Debug, Default)]
pub struct ReadTerms {
    /// Bytes of a record as its network sends it, at most.
    pub record_bytes_max: usize,
    /// Ids and signatures are believed.
    pub trusted: bool,
    /// Records that have expired by this second since 1970 are refused.
    pub now_s: u64,
    /// URLs of this server, which records may name.
    pub own_urls: Vec<String>,
}

/// Reads lines.
pub trait ReadLine {
    /// Reads a line into `record`, which is cleared before. `is_kept` says whether an id is known, before
    /// what is expensive is checked.
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault>;
}

/// Why a line has no record. The texts say more than the variant does, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineFault {
    /// It is not a record of this network.
    Malformed(String),
    /// It is longer than it may be.
    TooLarge(String),
    /// Its id is not the hash of the rest.
    Id,
    /// It is not signed by its author.
    Signature,
    /// It is never kept.
    Ephemeral,
    /// Its time is over.
    Expired,
    /// Its id is kept already.
    Kept,
}

/// Filters as people type them.
pub trait Filters: Send + Sync {
    /// The query of a filter, as of 1970, without a bound of rows. `None` if nothing can match it; an error
    /// in words for people if it cannot be read, or asks for what the archive does not have.
    fn query(&self, text: &str) -> Result<Option<Query>, String>;
    /// The filter that asks a query, on one line.
    fn text(&self, query: &Query) -> String;
    /// A filter that shows how they look.
    fn example(&self) -> &'static str;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_filters_are_filters_and_are_told_as_they_were_typed() {
        let networks: [&dyn Network; 2] = [&nostr::Nostr, &waku::Waku];
        for network in networks {
            let filters = network.filters();
            let query = filters.query(filters.example()).unwrap().unwrap();
            assert_eq!(filters.text(&query), filters.example());
        }
    }
}
