//! The filters of the newest subscriptions. Every record is compared with each of these filters.
//! Most subscriptions are closed as soon as the stored records are sent. Their filters never enter
//! the index, where a filter for hundreds of authors would need hundreds of entries.

use std::collections::VecDeque;
use std::sync::Arc;

use hark_codec::record::Record;

use super::list::{ListedQuery, bit, mask};
use super::subscription::Subscription;

/// The filters of subscriptions, oldest first.
#[derive(Default)]
pub(super) struct NewestQueries(VecDeque<NewestQuery>);

/// A filter, and the fields that are compared first. Most filters differ from a record in kind,
/// time or author.
struct NewestQuery {
    kinds: u64,
    /// A mask of the authors: the first byte of an author's key chooses the bit. Several authors
    /// may share a bit.
    authors: u64,
    ids: u64,
    from: u64,
    to: u64,
    filter: ListedQuery,
}

/// Returns the mask of these keys. `None` accepts any key, so all bits are set.
fn keys(keys: Option<&Vec<[u8; 32]>>) -> u64 {
    keys.map_or(u64::MAX, |keys| keys.iter().fold(0, |all, key| all | key_bit(key)))
}

fn key_bit(key: &[u8; 32]) -> u64 {
    1 << (key[0] & 63)
}

impl NewestQueries {
    /// Adds those filters of a subscription that can match a record.
    pub(super) fn add(&mut self, subscription: &Arc<Subscription>) {
        for (at, query) in (0..).zip(&subscription.queries).filter(|(_, query)| !query.is_void()) {
            let filter = ListedQuery { subscription: Arc::clone(subscription), query: at };
            self.0.push_back(NewestQuery {
                kinds: mask(query),
                authors: keys(query.authors.as_ref()),
                ids: keys(query.ids.as_ref()),
                from: query.from,
                to: query.to,
                filter,
            });
        }
    }

    /// Removes the filters of a subscription.
    pub(super) fn remove(&mut self, subscription: &Subscription) {
        self.0.retain(|one| one.filter.subscription.number != subscription.number);
        if self.0.is_empty() {
            self.0 = VecDeque::new();
        }
    }

    /// Returns the oldest of the subscriptions.
    pub(super) fn oldest(&self) -> Option<&Arc<Subscription>> {
        self.0.front().map(|one| &one.filter.subscription)
    }

    /// Returns the number of filters.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Calls `each` for each filter that could match a record.
    pub(super) fn find(&self, record: &Record<'_>, each: &mut impl FnMut(&ListedQuery)) {
        let (time, kind) = (record.time(), bit(record.kind()));
        // A record without an author matches no filter that names authors.
        let author = record.author().map_or(0, key_bit);
        let id = key_bit(record.id());
        for one in &self.0 {
            if one.kinds & kind != 0
                && (one.authors & author != 0 || one.authors == u64::MAX)
                && one.ids & id != 0
                && one.from <= time
                && time <= one.to
            {
                each(&one.filter);
            }
        }
    }
}
