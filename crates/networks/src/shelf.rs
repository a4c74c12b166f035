//! A network's records in a store, for programs that embed an archive. A program stores lines, and
//! finds lines with a filter.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::resumed::ResumedSearch;
use hark_archive::{
    CommitError, Id, Outcome, Query, SearchError, SearchProgress, Store, TextSource, Write,
};

use crate::{FilterTextError, LineFault, Network, ReadOptions};

/// Number of rows that a search visits before it passes lines on.
const SLICE_ROWS: u64 = 4_096;
/// Number of bytes of found lines at which a slice of a search ends.
const READY_BYTES: usize = 256 << 10;

/// A network and the store of its records. Every [`Store`] is suitable.
///
/// The methods block until the store has answered. Any number of threads may call them at once. A
/// program that needs subscriptions, cursors or a bound on the work uses the store directly.
#[derive(Clone)]
pub struct NetworkShelf {
    network: &'static dyn Network,
    store: Arc<dyn Store>,
    texts: Option<Arc<dyn TextSource>>,
}

/// Why a filter was not answered.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The text is not a filter of the network, or this shelf cannot answer such a filter.
    #[error("the filter cannot be answered: {0}")]
    Filter(FilterTextError),
    /// The search of the store has failed. The lines that were passed on before the failure are
    /// correct.
    #[error(transparent)]
    Search(#[from] SearchError),
}

impl NetworkShelf {
    /// Makes the shelf of a network. The store must have the [rules](Network::rules) of this
    /// network.
    pub fn new(network: &'static dyn Network, store: Arc<dyn Store>) -> Self {
        Self { network, store, texts: None }
    }

    /// Allows filters to search for words of these texts. A store that indexes the same texts
    /// answers such filters from its index.
    #[must_use]
    pub fn with_texts(self, texts: Arc<dyn TextSource>) -> Self {
        Self { texts: Some(texts), ..self }
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Checks lines, and stores their records as one batch: all records are durable on return.
    /// Hundreds of lines in one call need about as many syncs as a single line. The result has an
    /// entry for each line, in order. [`Outcome::Duplicate`] means that a record with this id is
    /// already stored; such a line is not checked. A line with a fault does not affect the other
    /// lines. After an error, some of the lines may have been stored; calling `put` again with all
    /// lines is safe.
    pub fn put(
        &self,
        lines: impl IntoIterator<Item = impl AsRef<[u8]>>,
        options: &ReadOptions,
    ) -> Result<Vec<Result<Outcome, LineFault>>, CommitError> {
        let mut reader = self.network.lines().reader(options);
        // The lookup only saves the checks. If the lookup fails, the commit finds the duplicate.
        let is_kept = |id: &Id| self.store.knows(id).unwrap_or(false);
        let (mut faults, mut writes, mut record) = (Vec::new(), Vec::new(), Vec::new());
        for line in lines {
            let fault = reader.read(line.as_ref(), &is_kept, &mut record).err();
            if fault.is_none() {
                writes.push(Write::Put(record.as_slice().into()));
            }
            faults.push(fault);
        }
        let mut outcomes = self.store.commit(&writes)?.outcomes.into_iter();
        let result = |fault| match fault {
            Some(LineFault::Kept) => Ok(Ok(Outcome::Duplicate)),
            Some(fault) => Ok(Err(fault)),
            None => outcomes.next().map(Ok).ok_or_else(|| {
                CommitError::Stopped("the store returned no outcome for a write".into())
            }),
        };
        faults.into_iter().map(result).collect()
    }

    /// Calls `each` for the line of each record that matches a filter, in the order of the filter:
    /// newest first, or the best first in a search for words. Records that have expired at `now_s`,
    /// in seconds since 1970, are left out. Returns the number of damaged records that may match
    /// but could not be read. A record may count more than once.
    pub fn find(
        &self,
        filter: &str,
        now_s: u64,
        mut each: impl FnMut(&[u8]),
    ) -> Result<u64, FindError> {
        let Some(query) = self.query(filter, now_s)? else { return Ok(0) };
        let lines = self.network.lines();
        let mut search = ResumedSearch::new(&*self.store, query)?;
        let mut ready = VecDeque::new();
        loop {
            let mut bytes = 0;
            let progress = search.gather(SLICE_ROWS, &mut ready, &mut |record| {
                let mut line = Vec::new();
                lines.write(record, &mut line);
                bytes += line.len();
                let is_enough = bytes >= READY_BYTES;
                let flow =
                    if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                (line, flow)
            })?;
            ready.drain(..).for_each(|(_, line)| each(&line));
            if progress != SearchProgress::Paused {
                return Ok(search.damaged());
            }
        }
    }

    /// Returns the query of a filter. `None` if nothing can match.
    fn query(&self, filter: &str, now_s: u64) -> Result<Option<Query>, FindError> {
        // The filter's parser reports only faults of the filter, so a failure of the store is kept
        // here.
        let mut unread = None;
        let mut values = |name| {
            let mut values = Vec::new();
            match self.store.label_values(name, &mut |value, _| values.push(value.into())) {
                Ok(()) => Some(values),
                Err(error) => {
                    unread = Some(error);
                    None
                }
            }
        };
        let filters = self.network.filters();
        let query = filters.searching_query(filter, &mut values, self.texts.as_ref());
        if let Some(error) = unread {
            return Err(error.into());
        }
        let now = now_s.saturating_mul(self.network.nature().units_per_s);
        Ok(query.map_err(FindError::Filter)?.map(|query| Query { now, ..query }))
    }
}

#[cfg(test)]
mod tests {
    use hark_archive::effects::Refusal;
    use hark_archive::store::memory::MemoryStore;
    use hark_codec::crypto::KeyPair;
    use hark_codec::hex::encode_into;
    use hark_codec::nostr::EventDraft;
    use hark_codec::whisper::Bloom;

    use super::*;
    use crate::nostr::Nostr;
    use crate::nostr::texts::TextChoice;
    use crate::whisper::Whisper;

    const NOW_S: u64 = 1_700_000_000;

    fn shelf_of(network: &'static dyn Network) -> NetworkShelf {
        NetworkShelf::new(network, Arc::new(MemoryStore::new(network.rules())))
    }

    fn shelf() -> NetworkShelf {
        shelf_of(&Nostr)
    }

    fn hex(bytes: &[u8]) -> Vec<u8> {
        let mut digits = Vec::new();
        encode_into(bytes, &mut digits);
        digits
    }

    /// An event of the only author.
    fn event(created_at: u64, kind: u16, tags: &[&[&str]], content: &str) -> String {
        let keys = KeyPair::from_secret([7; 32]).unwrap();
        let mut json = Vec::new();
        EventDraft { created_at, kind, tags, content }.sign(&keys, &mut json);
        String::from_utf8(json).unwrap()
    }

    fn put(shelf: &NetworkShelf, lines: &[&str]) -> Vec<Result<Outcome, LineFault>> {
        shelf.put(lines, &ReadOptions { now_s: NOW_S, ..ReadOptions::default() }).unwrap()
    }

    fn find(shelf: &NetworkShelf, filter: &str, now_s: u64) -> Vec<String> {
        let mut found = Vec::new();
        let push = |line: &[u8]| found.push(String::from_utf8(line.to_vec()).unwrap());
        assert_eq!(shelf.find(filter, now_s, push).unwrap(), 0);
        found
    }

    #[test]
    fn each_line_has_its_outcome_and_faults_stop_no_other_line() {
        let shelf = shelf();
        let (one, two) = (event(1, 1, &[], "one"), event(2, 1, &[], "two"));
        let forged = one.replace("\"content\":\"one\"", "\"content\":\"One\"");
        let ephemeral = event(3, 20_001, &[], "");
        let results = put(&shelf, &[&one, &forged, "no event", &ephemeral, &one, &two]);
        assert!(matches!(results[2], Err(LineFault::Malformed(_))), "{results:?}");
        assert_eq!(
            [&results[..2], &results[3..]].concat(),
            [
                Ok(Outcome::Stored { seq: 1 }),
                Err(LineFault::Id),
                Err(LineFault::Ephemeral),
                Ok(Outcome::Duplicate),
                Ok(Outcome::Stored { seq: 2 }),
            ]
        );
        assert_eq!(put(&shelf, &[&two]), [Ok(Outcome::Duplicate)]);
        assert!(put(&shelf, &[]).is_empty());
        assert_eq!(find(&shelf, "{}", NOW_S), [two.clone(), one]);
        assert_eq!(find(&shelf, r#"{"limit":1}"#, NOW_S), [two]);
        assert!(find(&shelf, r#"{"kinds":[]}"#, NOW_S).is_empty());
    }

    #[test]
    fn rules_of_the_network_apply() {
        let shelf = shelf();
        let (old, new) = (event(1, 0, &[], "old"), event(2, 0, &[], "new"));
        put(&shelf, &[&old, &new]);
        assert_eq!(put(&shelf, &[&old]), [Ok(Outcome::Superseded)]);
        let id = &new[7..71];
        put(&shelf, &[&event(3, 5, &[&["e", id]], "")]);
        assert_eq!(put(&shelf, &[&new]), [Ok(Outcome::Refused(Refusal::Deleted))]);
        assert!(find(&shelf, r#"{"kinds":[0]}"#, NOW_S).is_empty());
    }

    #[test]
    fn expired_records_are_neither_stored_nor_found() {
        let shelf = shelf();
        let at = NOW_S.to_string();
        let expired = event(1, 1, &[&["expiration", &at]], "");
        assert_eq!(put(&shelf, &[&expired]), [Err(LineFault::Expired)]);
        let later = (NOW_S + 1).to_string();
        let expiring = event(1, 1, &[&["expiration", &later]], "");
        put(&shelf, &[&expiring]);
        assert_eq!(find(&shelf, "{}", NOW_S), [expiring]);
        assert!(find(&shelf, "{}", NOW_S + 1).is_empty());
    }

    #[test]
    fn words_are_found_if_texts_are_searched() {
        let bare = shelf();
        let bread = event(1, 1, &[], "Good bread");
        put(&bare, &[&bread, &event(2, 1, &[], "Good morning")]);
        let search = r#"{"search":"bread"}"#;
        assert!(matches!(bare.find(search, NOW_S, |_| {}), Err(FindError::Filter(_))));
        let searched = bare.with_texts(TextChoice::default().source(&[]));
        assert_eq!(find(&searched, search, NOW_S), [bread]);
    }

    #[test]
    fn a_text_that_is_no_filter_is_refused_with_the_reason() {
        let error = shelf().find(r#"{"kinds":1}"#, NOW_S, |_| {}).unwrap_err();
        assert!(error.to_string().contains("kinds"), "{error}");
    }

    #[test]
    fn a_bloom_filter_is_matched_against_the_topics_of_the_store() {
        let shelf = shelf_of(&Whisper);
        let line = |topic: [u8; 4], nonce: u64| {
            let topic = String::from_utf8(hex(&topic)).unwrap();
            format!(r#"{{"expiry":60,"ttl":50,"topic":"0x{topic}","data":"0x7f","nonce":{nonce}}}"#)
        };
        let (one, two) = ([0x5c, 0x6c, 0x9b, 0x56], [0x1a, 0x2b, 0x3c, 0x4d]);
        let results = put(&shelf, &[&line(one, 1), &line(two, 2)]);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        let bloom = String::from_utf8(hex(&Bloom::of_topic_or(one).0)).unwrap();
        let found = find(&shelf, &format!(r#"{{"bloom":"0x{bloom}"}}"#), NOW_S);
        assert!(found.len() == 1 && found[0].contains("\"nonce\":1}"), "{found:?}");
    }

    #[test]
    fn a_long_answer_comes_whole_and_in_order() {
        let shelf = shelf();
        let content = "x".repeat(20_000);
        let events: Vec<String> = (1..=40).map(|time| event(time, 1, &[], &content)).collect();
        put(&shelf, &events.iter().map(String::as_str).collect::<Vec<_>>());
        let newest_first: Vec<String> = events.into_iter().rev().collect();
        assert_eq!(find(&shelf, "{}", NOW_S), newest_first);
    }
}
