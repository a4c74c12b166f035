//! This store's messages that a comparison with another store needs.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::{LabelSet, Order, Query};
use hark_codec::waku::sync::{MessagePosition, SyncPayload};
use hark_codec::waku::{MessageRecord, topic};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::sync_fault::{SyncFault, answered};
use crate::rate::RateSource;
use crate::waku::node::WakuNode;

/// Maximum number of messages in a session's time span. The session's list takes 40 bytes for each
/// message.
pub(super) const ITEMS_MAX: usize = 500_000;
/// Number of list entries for which permits are acquired at once.
pub(super) const ITEMS_STEP: usize = 1_000;
/// Number of rows that a search visits between two checks for the end of the session.
pub(super) const SLICE_ROWS: u64 = 4_096;

/// This store's messages that a session compares, sorted by time and hash.
pub(super) struct OwnMessages {
    pub(super) items: Vec<MessagePosition>,
    pub(super) _room: Vec<OwnedSemaphorePermit>,
}

impl OwnMessages {
    /// Loads the messages that match a query.
    pub(super) async fn load(
        waku: &Arc<WakuNode>,
        source: RateSource,
        mut query: Query,
        room: Arc<Semaphore>,
    ) -> Result<Self, SyncFault> {
        query.normalise();
        let rows_max = waku.settings().query_rows_max;
        let loaded = waku.service.questions.search_in_turn(source, rows_max, move |search| {
            let (mut items, mut held, mut full) = (Vec::new(), Vec::new(), false);
            let mut count = 0;
            search.run(&query, SLICE_ROWS, &mut |record| {
                count += 1;
                if items.len() == held.len() * ITEMS_STEP {
                    let more = Arc::clone(&room).try_acquire_many_owned(ITEMS_STEP as u32);
                    let Ok(more) = more else {
                        full = true;
                        return ControlFlow::Break(());
                    };
                    held.push(more);
                }
                // A message without a payload is left out, because other stores would refuse it in
                // every comparison.
                if MessageRecord::new(*record).has_payload() {
                    items.push((record.time(), *record.id()));
                }
                ControlFlow::Continue(())
            })?;
            if full {
                return Err(SyncFault::Room);
            }
            if count > ITEMS_MAX {
                return Err(SyncFault::Items(ITEMS_MAX));
            }
            Ok(Self { items, _room: held })
        });
        answered(loaded.await)
    }
}

/// Returns the pubsub topics of the shards that this node serves.
pub(super) fn topics(waku: &WakuNode) -> Vec<String> {
    waku.config.served().map(|shard| shard.to_string()).collect()
}

/// Returns the query for this store's messages of a time span.
pub(super) fn span(waku: &WakuNode, from: u64, to: u64) -> Query {
    let values = topics(waku).into_iter().map(|topic| topic.into_bytes().into()).collect();
    let labels = vec![LabelSet { name: topic::PUBSUB, values }];
    let (order, limit) = (Order::OldestFirst, ITEMS_MAX + 1);
    Query { labels, from, to, order, limit, ..Query::default() }
}

/// Returns the query for this store's messages in the time span and topics of a payload.
pub(super) fn payload_query(waku: &WakuNode, payload: &SyncPayload<'_>) -> Query {
    let mut query = span(waku, payload.start, payload.end);
    let theirs = payload.pubsub_topics;
    if !theirs.is_empty() {
        query.labels[0]
            .values
            .retain(|topic| theirs.iter().any(|name| name.as_bytes() == &**topic));
    }
    if !payload.content_topics.is_empty() {
        let topics = payload.content_topics.iter();
        let values = topics.map(|topic| topic.as_bytes().into()).collect();
        query.labels.push(LabelSet { name: topic::CONTENT, values });
    }
    query
}
