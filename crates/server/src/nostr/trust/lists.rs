//! Reads follow lists from the archive.

use std::collections::HashSet;

use hark_archive::query::HiddenRecords;
use hark_archive::{Query, SearchError, Store};
use hark_codec::hex;
use hark_codec::record::{Key, Record};

/// Kind of a follow list (NIP-02).
pub(super) const FOLLOW_LIST: u32 = 3;

/// Passes the newest follow list of each author to `each`; an author without a list has an empty
/// list.
pub(super) fn read_lists(
    store: &dyn Store,
    authors: Vec<Key>,
    now_s: u64,
    hidden: Option<HiddenRecords>,
    each: &mut dyn FnMut(&Key, &[Key]),
) -> Result<(), SearchError> {
    if authors.is_empty() {
        return Ok(());
    }
    let mut unread: HashSet<Key> = authors.iter().copied().collect();
    let query = Query {
        authors: Some(authors),
        kinds: Some(vec![FOLLOW_LIST]),
        now: now_s,
        hidden,
        ..Query::default()
    };
    let mut follows = Vec::new();
    store.search(&query)?.read_all(&mut |record| {
        // The newest list comes first.
        if let Some(author) = record.author().filter(|author| unread.remove(*author)) {
            follows.clear();
            follows.extend(follows_of(record));
            each(author, &follows);
        }
    })?;
    for author in unread {
        each(&author, &[]);
    }
    Ok(())
}

/// The keys in the `p` tags of a list.
fn follows_of<'a>(record: &Record<'a>) -> impl Iterator<Item = Key> + use<'a> {
    let values = record.labels().filter(|(name, _)| *name == b'p');
    values.filter_map(|(_, value)| hex::decode_32(value))
}
