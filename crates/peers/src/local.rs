//! Reads the local archive: the items to compare, and the events to send.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::blocking::may_block;
use hark_archive::query::HiddenRecords;
use hark_archive::resumed::ResumedSearch;
use hark_archive::{Id, Order, Position, Query, Record, SearchProgress, Store};
use hark_codec::nostr::negentropy::NegentropyItem;
use hark_networks::Network;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::now_s;
use crate::error::PeerError;

/// Number of rows that a search visits before it pauses.
const SLICE_ROWS: u64 = 1 << 14;
/// Maximum number of items in one comparison, at 48 bytes each.
const ITEMS_MAX: usize = 4 << 20;
/// Permits for the items of all comparisons in this process, each for [`ITEMS_TOGETHER`] items.
/// `READING` is held while items are read.
static ITEMS: Semaphore = Semaphore::const_new(2 * ITEMS_MAX / ITEMS_TOGETHER);
static READING: Semaphore = Semaphore::const_new(1);
const ITEMS_TOGETHER: usize = 1024;

/// A sample consists of 3 of the newest 48 items.
const SAMPLED: usize = 48;
const SAMPLES: usize = 3;

/// This archive, one end of an exchange with a relay.
#[derive(Clone)]
pub struct LocalEnd {
    /// The network of the events.
    pub network: &'static dyn Network,
    /// The store from which events are read.
    pub store: Arc<dyn Store>,
    /// The stored events that do not leave this archive. `None`: all may leave the archive.
    pub hidden: Option<HiddenRecords>,
}

/// The items in the last part of a query's time range.
#[derive(Default)]
pub(crate) struct LocalWindow {
    /// The earliest time of the part, which ends where the query's time range ends.
    pub(crate) from: u64,
    pub(crate) items: Vec<NegentropyItem>,
    /// The permit for these items, which counts towards the limit for all comparisons.
    pub(crate) permit: Option<SemaphorePermit<'static>>,
}

/// Returns the newest items of a query, up to the limit of one comparison. If the limit is reached,
/// the items of the oldest second are left out.
pub(crate) async fn newest(store: Arc<dyn Store>, query: Query) -> Result<LocalWindow, PeerError> {
    let turn = READING.acquire().await.ok();
    let window = blocking(move || {
        let from = query.from;
        let limited = Query { limit: ITEMS_MAX + 1, ..query.clone() };
        let mut items = items(&*store, limited)?;
        if items.len() <= ITEMS_MAX {
            return Ok(LocalWindow { from, items, permit: None });
        }
        // The limit may have cut off items of the oldest second.
        let last = items.last().map_or(0, |item| item.time);
        if items.first().is_some_and(|item| item.time > last) {
            items.retain(|item| item.time > last);
            return Ok(LocalWindow { from: last + 1, items, permit: None });
        }
        let second = Query { from: last, to: last, ..query };
        Ok(LocalWindow { from: last, items: self::items(&*store, second)?, permit: None })
    });
    let window = window.await?;
    let parts = (window.items.len() / ITEMS_TOGETHER + 1).min(ITEMS_MAX / ITEMS_TOGETHER);
    let permit = ITEMS.acquire_many(parts as u32).await.ok();
    drop(turn);
    Ok(LocalWindow { permit, ..window })
}

/// Returns a few of the newest items of a query.
pub(crate) async fn sample(
    store: Arc<dyn Store>,
    query: Query,
) -> Result<Vec<NegentropyItem>, PeerError> {
    blocking(move || {
        let items = items(&*store, Query { limit: SAMPLED, ..query })?;
        Ok(items.into_iter().rev().step_by(SAMPLED / SAMPLES).take(SAMPLES).collect())
    })
    .await
}

fn items(store: &dyn Store, query: Query) -> Result<Vec<NegentropyItem>, PeerError> {
    let mut items = Vec::new();
    each(store, query, |_| (), |at, ()| items.push(NegentropyItem { time: at.time, id: at.id }))?;
    Ok(items)
}

/// Returns the ids of which the store has no record, whether hidden or not.
pub(crate) fn missing(store: &dyn Store, mut ids: Vec<Id>) -> Result<Vec<Id>, PeerError> {
    if ids.is_empty() {
        return Ok(ids);
    }
    let mut query = Query { ids: Some(ids.clone()), ..Query::default() };
    query.normalise();
    let mut kept = HashSet::new();
    each(store, query, |_| (), |at, ()| kept.extend([at.id]))?;
    ids.retain(|id| !kept.contains(id));
    Ok(ids)
}

/// An event that is to be sent.
pub(crate) struct LocalEvent {
    pub(crate) id: Id,
    pub(crate) time: u64,
    pub(crate) kind: u32,
    pub(crate) json: Arc<str>,
}

/// Returns the events with these ids. Events that were deleted or hidden in the meantime are left
/// out.
pub(crate) async fn events(from: &LocalEnd, ids: Vec<Id>) -> Result<Vec<LocalEvent>, PeerError> {
    let LocalEnd { store, hidden, .. } = from.clone();
    blocking(move || {
        let (ids, order) = (Some(ids), Order::OldestFirst);
        let mut query = Query { ids, hidden, now: now_s(), order, ..Query::default() };
        query.normalise();
        let mut events = Vec::new();
        let read = |record: &Record<'_>| {
            (record.kind(), Arc::<str>::from(String::from_utf8_lossy(record.wire())))
        };
        each(&*store, query, read, |at, (kind, json)| {
            events.push(LocalEvent { id: at.id, time: at.time, kind, json });
        })?;
        Ok(events)
    })
    .await
}

/// Calls `keep` for each record of a query, and passes the results to `found`.
fn each<T>(
    store: &dyn Store,
    query: Query,
    keep: impl Fn(&Record<'_>) -> T,
    mut found: impl FnMut(Position, T),
) -> Result<(), PeerError> {
    let failed = |error| PeerError::Archive(format!("{error}; `hark check` says more"));
    let mut search = ResumedSearch::new(store, query).map_err(failed)?;
    let mut ready = VecDeque::new();
    loop {
        let progress = search.gather(SLICE_ROWS, &mut ready, &mut |record| {
            (keep(record), ControlFlow::Continue(()))
        });
        let progress = progress.map_err(failed)?;
        ready.drain(..).for_each(|(position, kept)| found(position, kept));
        if progress != SearchProgress::Paused {
            return Ok(());
        }
    }
}

/// Runs `work`, which reads the archive, on a thread for blocking work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PeerError> + Send + 'static,
) -> Result<T, PeerError> {
    let done = tokio::task::spawn_blocking(|| may_block(work)).await;
    done.unwrap_or_else(|error| Err(PeerError::Archive(format!("a search failed: {error}"))))
}
