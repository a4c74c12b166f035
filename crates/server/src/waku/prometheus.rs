//! The Waku node's part of the page for Prometheus, under nwaku's names.

#[cfg(feature = "libp2p")]
use super::metrics::NodeSource;
use super::metrics::{
    AnswerStatus, FilterRequestKind, FilterStatus, LightPushStatus, LightPushVersion, MessageFate,
    NodeMetrics, PushOutcome, ValueHistogram,
};
use super::node::WakuNode;
use crate::metrics::{MetricLabel as _, MetricsPage};

/// Writes the node's metrics.
pub(crate) fn write(page: &mut MetricsPage, waku: &WakuNode) {
    page.head("waku_version", "gauge", "Version of this server.");
    let version = concat!("version=\"hark-v", env!("CARGO_PKG_VERSION"), "\"");
    page.line("waku_version", version, 1);
    messages(page, waku);
    questions(page, &waku.metrics);
    light_clients(page, waku);
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

/// Writes the metrics of discovery: the nodes that this node finds without configuration.
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
        "Requests of peers and clients, by protocol and by state: rejected (status 429 or 503), or \
         served.",
    );
    service(page, "/vac/waku/store-query/3.0.0", asked, refused);
    light_services(page, metrics);
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

/// Writes how many of the `asked` requests of a protocol were served and how many rejected.
fn service(page: &mut MetricsPage, protocol: &str, asked: u64, rejected: u64) {
    for (state, count) in [("served", asked.saturating_sub(rejected)), ("rejected", rejected)] {
        let labels = format!("service=\"{protocol}\",state=\"{state}\"");
        page.line("waku_service_requests_total", &labels, count);
    }
}

/// Writes the requests of the protocols for light clients.
fn light_services(page: &mut MetricsPage, metrics: &NodeMetrics) {
    let answers = &metrics.filter.answers;
    let is_rejected =
        |status| matches!(status, FilterStatus::TooManyRequests | FilterStatus::Unavailable);
    let (asked, rejected) = (answers.sum(|_| true), answers.sum(is_rejected));
    service(page, "/vac/waku/filter-subscribe/2.0.0-beta1", asked, rejected);
    for (version, protocol) in [
        (LightPushVersion::Three, "/vac/waku/lightpush/3.0.0"),
        (LightPushVersion::Two, "/vac/waku/lightpush/2.0.0-beta1"),
    ] {
        let answers = metrics.light_pushes.of(version);
        let is_rejected = |status| {
            matches!(status, LightPushStatus::TooManyRequests | LightPushStatus::Unavailable)
        };
        service(page, protocol, answers.sum(|_| true), answers.sum(is_rejected));
    }
}

/// Writes the metrics of filter and light push.
fn light_clients(page: &mut MetricsPage, waku: &WakuNode) {
    let NodeMetrics { filter, light_pushes, .. } = &waku.metrics;
    page.gauge("waku_filter_subscriptions", "Peers with subscriptions.", waku.subscribers());
    page.counters(
        "waku_filter_requests_total",
        "Requests to subscribe, by type.",
        "type",
        &filter.requests,
    );
    page.head("waku_filter_errors_total", "counter", "Faults of subscribers, by type.");
    let malformed = filter.requests.of(FilterRequestKind::Malformed).get();
    let pushes = &filter.pushes;
    for (kind, count) in [
        ("decode_rpc_failure", malformed),
        ("push_timeout_failure", pushes.of(PushOutcome::Unread).get()),
        ("dial_failure", pushes.of(PushOutcome::Broken).get()),
    ] {
        page.line("waku_filter_errors_total", &format!("type=\"{kind}\""), count);
    }
    page.counters(
        "waku_filter_answers_total",
        "Requests to subscribe, by status of the answer.",
        "status",
        &filter.answers,
    );
    page.counters(
        "waku_filter_pushes_total",
        "Messages for subscribers, by result.",
        "result",
        pushes,
    );
    page.histogram(
        "waku_filter_handle_message_duration_seconds",
        "Time from the moment at which a message was durable until it was sent to a subscriber, in \
         seconds.",
        &filter.push,
    );
    page.counter(
        "waku_not_announced_messages_total",
        "Messages of imports and of other servers of the database that subscribers did not get, \
         because the messages were too old.",
        &waku.metrics.not_announced,
    );
    page.head(
        "waku_lightpush_v3_messages_total",
        "counter",
        "Requests to publish by light push, version 3.",
    );
    let pushed = light_pushes.of(LightPushVersion::Three);
    let labels = "type=\"PushRequest\"";
    page.line("waku_lightpush_v3_messages_total", labels, pushed.sum(|_| true));
    page.head(
        "waku_lightpush_v3_errors_total",
        "counter",
        "Refused requests to publish by light push, version 3, by status.",
    );
    for (status, count) in pushed.all().filter(|(status, _)| *status != "200") {
        page.line("waku_lightpush_v3_errors_total", &format!("type=\"{status}\""), count.get());
    }
    page.head(
        "waku_lightpush_messages_total",
        "counter",
        "Requests to publish by light push, version 2.",
    );
    let pushed = light_pushes.of(LightPushVersion::Two);
    page.line("waku_lightpush_messages_total", labels, pushed.sum(|_| true));
    page.head(
        "waku_lightpush_errors_total",
        "counter",
        "Refused requests to publish by light push, version 2, by the status of version 3.",
    );
    for (status, count) in pushed.all().filter(|(status, _)| *status != "200") {
        page.line("waku_lightpush_errors_total", &format!("type=\"{status}\""), count.get());
    }
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
