//! The Waku node's part of the page for Prometheus, under nwaku's names.

#[cfg(feature = "libp2p")]
use super::metrics::NodeSource;
use super::metrics::{AnswerStatus, MessageFate, NodeMetrics, ValueHistogram};
use super::node::WakuNode;
use crate::metrics::{MetricLabel as _, MetricsPage};

/// Writes the node's metrics.
pub(crate) fn write(page: &mut MetricsPage, waku: &WakuNode) {
    page.head("waku_version", "gauge", "Version of this server.");
    let version = concat!("version=\"hark-v", env!("CARGO_PKG_VERSION"), "\"");
    page.line("waku_version", version, 1);
    messages(page, waku);
    questions(page, &waku.metrics);
    sync(page, &waku.metrics);
    discovery(page, waku);
    page.gauge("waku_connected_peers", "Peers connected now.", waku.metrics.peers.get());
    page.counters(
        "waku_gossip_losses_total",
        "Messages not sent to a peer (message), messages stored but not forwarded (unforwarded), \
         and connections closed because their gossip had ended (broken).",
        "what",
        &waku.metrics.gossip_losses,
    );
}

/// Writes the metrics of nodes that are found by themselves, without configuration.
fn discovery(page: &mut MetricsPage, waku: &WakuNode) {
    #[cfg(feature = "libp2p")]
    if let Some(network) = &waku.network {
        page.head("waku_known_nodes", "gauge", "Nodes whose records are known, by source.");
        for (source, name) in NodeSource::ALL {
            let labels = format!("source=\"{name}\"");
            page.line("waku_known_nodes", &labels, network.directory.book.lock().count(*source));
        }
    }
    page.counters_nested(
        "waku_node_dials_total",
        "Attempts to connect to discovered nodes, by source and by result.",
        ["source", "result"],
        &waku.metrics.dials,
    );
    page.counters_nested(
        "waku_node_records_refused_total",
        "Records of discovered nodes that were refused, by source and by reason.",
        ["source", "reason"],
        &waku.metrics.record_refusals,
    );
    page.counters_nested(
        "waku_peer_exchanges_total",
        "Answers of the peer exchange, sent and received, by status.",
        ["direction", "status"],
        &waku.metrics.exchanges,
    );
}

fn messages(page: &mut MetricsPage, waku: &WakuNode) {
    let (metrics, stats) = (&waku.metrics, waku.service.shelf.store().stats());
    page.head("waku_archive_messages", "gauge", "Messages stored now.");
    page.line("waku_archive_messages", "type=\"stored\"", stats.records);
    page.gauge("waku_archive_bytes", "Bytes that the archive uses on disk.", stats.bytes);
    page.head(
        "waku_archive_messages_per_shard",
        "counter",
        "Messages stored since the start, by shard. Deleted messages are not subtracted.",
    );
    for (shard, count) in metrics.stored_by_shard() {
        let labels = format!("shard=\"{shard}\"");
        page.line("waku_archive_messages_per_shard", &labels, count);
    }
    page.counters_nested(
        "waku_messages_total",
        "Messages received, by origin and by result.",
        ["origin", "result"],
        &metrics.messages,
    );
    page.head(
        "waku_node_messages_total",
        "counter",
        "Valid messages that were received by gossip or published here.",
    );
    let relayed: u64 = metrics.payload_bytes.classes().iter().sum();
    page.line("waku_node_messages_total", "type=\"relay\"", relayed);
    tally(
        page,
        "waku_histogram_message_size",
        "Payload sizes of the messages in waku_node_messages_total, in kB.",
        &metrics.payload_bytes,
        1e3,
    );
    page.head("waku_archive_errors_total", "counter", "Messages that were not stored, by reason.");
    for fate in MessageFate::FAILED {
        let labels = format!("type=\"{}\"", fate.name());
        page.line("waku_archive_errors_total", &labels, metrics.messages.sum(|it| it == fate));
    }
    page.histogram(
        "waku_archive_insert_duration_seconds",
        "Time from the arrival of a message until the message was durable, in seconds.",
        &metrics.insert,
    );
}

fn questions(page: &mut MetricsPage, metrics: &NodeMetrics) {
    page.histogram(
        "waku_archive_query_duration_seconds",
        "Time to find the answer to a request for history, including the wait, in seconds.",
        &metrics.query,
    );
    page.head(
        "waku_store_time_seconds",
        "gauge",
        "Time to find the answer to the last request for history, in seconds.",
    );
    let last_s = metrics.last_query().as_secs_f64();
    page.line("waku_store_time_seconds", "phase=\"query-db-time\"", last_s);
    let asked = metrics.queries.sum(|_| true);
    let refused = [AnswerStatus::TooManyRequests, AnswerStatus::Unavailable];
    let refused = metrics.queries.sum(|status| refused.contains(&status));
    page.head("waku_store_queries_total", "counter", "Requests for history.");
    page.line("waku_store_queries_total", "", asked);
    page.head("waku_store_errors_total", "counter", "Malformed requests for history.");
    let unread = metrics.queries.sum(|status| status == AnswerStatus::BadRequest);
    page.line("waku_store_errors_total", "type=\"decode_rpc_failure\"", unread);
    page.head(
        "waku_service_requests_total",
        "counter",
        "Requests for history, by state: rejected (status 429 or 503), or served.",
    );
    for (state, count) in [("served", asked - refused), ("rejected", refused)] {
        let labels = format!("service=\"/vac/waku/store-query/3.0.0\",state=\"{state}\"");
        page.line("waku_service_requests_total", &labels, count);
    }
    page.counters_nested(
        "waku_store_answers_total",
        "Requests for history, by source and by status of the answer.",
        ["asker", "status"],
        &metrics.queries,
    );
    page.counter(
        "waku_store_gone_total",
        "Requests for history dropped because the peer disconnected or sent unrequested data.",
        &metrics.gone,
    );
    page.counter("waku_store_messages_told_total", "Messages sent in answers.", &metrics.sent);
    page.counter(
        "waku_store_damaged_answers_total",
        "Answers that omit a damaged message.",
        &metrics.damaged,
    );
}

/// Writes the metrics of exchanges with other stores. nwaku's names of these metrics have no
/// prefix.
fn sync(page: &mut MetricsPage, metrics: &NodeMetrics) {
    page.counters_nested(
        "waku_catch_ups_total",
        "Fetches after an absence (resume) and comparisons (sync) that this node began, by result.",
        ["by", "result"],
        &metrics.caught_up,
    );
    let sync = &metrics.sync;
    tally(
        page,
        "reconciliation_roundtrips",
        "Payloads received in one comparison with another store.",
        &sync.round_trips,
        1.0,
    );
    tally(
        page,
        "reconciliation_differences",
        "Messages that only one side of a comparison has, for each comparison.",
        &sync.differences,
        1.0,
    );
    page.counters_nested(
        "total_bytes_exchanged_total",
        "Bytes of comparisons with other stores, and of the transfers after the comparisons.",
        ["protocol", "direction"],
        &sync.bytes,
    );
    page.counters(
        "total_transfer_messages_exchanged_total",
        "Messages transferred after comparisons with other stores.",
        "direction",
        &sync.messages,
    );
}

/// Writes a histogram of numbers, each divided by `unit`.
fn tally(page: &mut MetricsPage, name: &str, help: &str, tally: &ValueHistogram, unit: f64) {
    page.head(name, "histogram", help);
    page.buckets(name, "", tally.bounds, &tally.classes(), tally.sum(), unit);
}
