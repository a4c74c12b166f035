//! The Waku node's part of the page for Prometheus, under nwaku's names.

use super::Waku;
use super::metrics::{Answered, Fate, Origin};
use crate::admin::prometheus::Page;
use crate::metrics::Label;

/// Writes it.
pub(crate) fn write(page: &mut Page, waku: &Waku) {
    let (metrics, stats) = (&waku.metrics, waku.store.stats());
    page.head("waku_archive_messages", "gauge", "Messages kept.");
    page.line("waku_archive_messages", "{type=\"stored\"}", stats.records);
    page.gauge("waku_archive_bytes", "Bytes on disk.", stats.bytes);
    page.head(
        "waku_messages_total",
        "counter",
        "Messages that came in, by where from and by what became of them.",
    );
    for (origin, fates) in metrics.messages.all() {
        for (fate, count) in fates.all() {
            let labels = format!("{{origin=\"{origin}\",result=\"{fate}\"}}");
            page.line("waku_messages_total", &labels, count.get());
        }
    }
    let relayed: u64 = metrics.messages.of(Origin::Relay).all().map(|(_, count)| count.get()).sum();
    page.head("waku_node_messages_total", "counter", "Messages that came by gossip.");
    page.line("waku_node_messages_total", "{type=\"relay\"}", relayed);
    page.head("waku_archive_errors_total", "counter", "Messages that were not kept, by why.");
    for fate in Fate::FAILED {
        let count: u64 = metrics.messages.all().map(|(_, fates)| fates.of(fate).get()).sum();
        let labels = format!("{{type=\"{}\"}}", fate.name());
        page.line("waku_archive_errors_total", &labels, count);
    }
    page.histogram(
        "waku_archive_insert_duration_seconds",
        "Time from a message's coming until it was durable.",
        &metrics.insert,
    );
    page.histogram(
        "waku_archive_query_duration_seconds",
        "Time to answer a question, with waiting for its turn.",
        &metrics.query,
    );
    let answered = |status: Answered| -> u64 {
        metrics.queries.all().map(|(_, by)| by.of(status).get()).sum()
    };
    let asked: u64 = Answered::ALL.iter().map(|(status, _)| answered(*status)).sum();
    let refused = answered(Answered::TooManyRequests) + answered(Answered::Unavailable);
    page.head("waku_store_queries_total", "counter", "Questions.");
    page.line("waku_store_queries_total", "", asked);
    page.head("waku_store_errors_total", "counter", "Questions that could not be read.");
    let unread = answered(Answered::BadRequest);
    page.line("waku_store_errors_total", "{type=\"decode_rpc_failure\"}", unread);
    page.head(
        "waku_service_requests_total",
        "counter",
        "Questions, by whether they were answered.",
    );
    for (state, count) in [("served", asked - refused), ("rejected", refused)] {
        let labels = format!("{{service=\"/vac/waku/store-query/3.0.0\",state=\"{state}\"}}");
        page.line("waku_service_requests_total", &labels, count);
    }
    page.head("waku_store_answers_total", "counter", "Questions by who asked and by status.");
    for (asker, answers) in metrics.queries.all() {
        for (status, count) in answers.all() {
            let labels = format!("{{asker=\"{asker}\",status=\"{status}\"}}");
            page.line("waku_store_answers_total", &labels, count.get());
        }
    }
    page.counter("waku_store_messages_told_total", "Messages told in answers.", &metrics.told);
    page.gauge("waku_connected_peers", "Peers connected now.", metrics.peers.get());
}
