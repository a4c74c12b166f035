//! Adds a record from any source to the known nodes, or counts its refusal.

use std::time::Instant;

use super::book::AddressNetwork;
use super::record::NodeRecord;
use crate::waku::metrics::{NodeSource, RecordRefusal};
use crate::waku::node::WakuNode;

/// Adds a record to the known nodes. Returns whether the node was unknown before.
pub(super) fn add(
    waku: &WakuNode,
    record: NodeRecord,
    source: NodeSource,
    teller: Option<AddressNetwork>,
) -> bool {
    let Some(network) = waku.network.as_ref().filter(|network| network.id != record.peer) else {
        return false;
    };
    let added = if record.may_serve(waku.config.served()) {
        network.directory.book.lock().add(record, source, teller, Instant::now())
    } else {
        Err(RecordRefusal::Shard)
    };
    added.unwrap_or_else(|refusal| {
        waku.metrics.record_refusals.of(source).of(refusal).add(1);
        false
    })
}
