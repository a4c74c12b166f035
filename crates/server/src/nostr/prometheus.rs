//! The relay's part of the page for Prometheus.

use hark_plugin::PluginCounters;

use super::Relay;
use super::rule_mode::RuleMode;
use super::trust::Trust;
use crate::metrics::MetricsPage;

/// Writes the relay's metrics.
pub(super) fn write(page: &mut MetricsPage, relay: &Relay) {
    write_messages(page, relay);
    connections(page, relay);
    questions(page, relay);
    page.histogram(
        "hark_verify_seconds",
        "Time to check the signatures of one batch of events, in seconds.",
        &relay.metrics.verify,
    );
    page.counter("hark_verified_events_total", "Signatures checked.", &relay.metrics.verified);
    if relay.trust.mode() != RuleMode::Off {
        trust(page, &relay.trust);
    }
    if relay.plugin.options().is_on() {
        plugin(page, relay.plugin.counters());
    }
    if relay.policy.load().names.is_on() {
        names(page, relay);
    }
}

fn names(page: &mut MetricsPage, relay: &Relay) {
    let metrics = &relay.names.metrics;
    page.counters(
        "hark_name_checks_total",
        "Checks of names (NIP-05), by result.",
        "result",
        &metrics.results,
    );
    page.counter(
        "hark_unnamed_events_total",
        "Events whose authors need a verified name and have none, refused or not.",
        &metrics.unnamed,
    );
    page.gauge(
        "hark_name_checks_waiting",
        "Names that wait for a check now.",
        relay.names.waiting_len(),
    );
    page.gauge("hark_verified_names", "Keys with a verified name.", relay.moderation.names_len());
}

fn plugin(page: &mut MetricsPage, counters: &PluginCounters) {
    let name = "hark_plugin_events_total";
    page.head(name, "counter", "Events given to the plugin, by its action; none: not decided.");
    for (action, count) in [
        ("accept", &counters.accepted),
        ("reject", &counters.rejected),
        ("shadowReject", &counters.shadow_rejected),
        ("none", &counters.undecided),
    ] {
        page.line(name, &format!("action=\"{action}\""), count.get());
    }
    let name = "hark_plugin_failures_total";
    page.head(name, "counter", "Failures of the plugin's processes, by cause.");
    for (cause, count) in [
        ("start", &counters.failed_starts),
        ("ended", &counters.ended),
        ("timeout", &counters.timeouts),
        ("answer", &counters.garbled),
    ] {
        page.line(name, &format!("cause=\"{cause}\""), count.get());
    }
    page.counter(
        "hark_plugin_starts_total",
        "Processes of the plugin that were started.",
        &counters.starts,
    );
    page.gauge(
        "hark_plugin_waiting_events",
        "Events that wait for the plugin now.",
        counters.waiting.get(),
    );
    page.histogram(
        "hark_plugin_seconds",
        "Time of the plugin's answer to an event, in seconds.",
        &counters.answers,
    );
}

fn trust(page: &mut MetricsPage, trust: &Trust) {
    let stats = trust.stats();
    let name = "hark_trust_keys";
    page.head(name, "gauge", "Trusted keys, by ring: 0 for the roots.");
    for (ring, keys) in stats.rings.iter().enumerate() {
        page.line(name, &format!("ring=\"{ring}\""), *keys as u64);
    }
    for (name, help, value) in [
        ("hark_trust_lists", "Follow lists that decide about trusted keys.", stats.lists as u64),
        ("hark_trust_bytes", "Memory of trusted keys and follow lists.", stats.bytes as u64),
    ] {
        page.gauge(name, help, value);
    }
    let name = "hark_trust_events_total";
    page.head(
        name,
        "counter",
        "Events of keys that are not trusted, by result: refused, deferred while follow lists are read, \
         or accepted in the mode watch.",
    );
    let counts = trust.counts();
    for (result, count) in
        [("refused", &counts.refused), ("deferred", &counts.deferred), ("watched", &counts.watched)]
    {
        page.line(name, &format!("result=\"{result}\""), count.get());
    }
}

fn write_messages(page: &mut MetricsPage, relay: &Relay) {
    let metrics = &relay.metrics;
    page.counters_nested(
        "hark_messages_total",
        "Messages answered, by verb and by result: ok, or the standard prefix of the reason.",
        ["verb", "result"],
        metrics.answers(),
    );
    page.counters(
        "hark_rate_refusals_total",
        "Messages refused with `rate-limited:` because a rate was exceeded, by setting in [rates].",
        "rate",
        relay.rates.refusals(),
    );
    let name = "hark_rate_group_refusals_total";
    page.head(name, "counter", "Messages that a rate of a group refused, by group in [rates].");
    for (group, count) in relay.settings().rate_groups.refusals() {
        page.line(name, &format!("group=\"{group}\""), count);
    }
    page.counters(
        "hark_management_requests_total",
        "Requests to the relay management API (NIP-86), by result.",
        "result",
        &relay.management.results,
    );
    page.head(
        "hark_events_total",
        "counter",
        "Events stored, and ephemeral events passed on, by kind.",
    );
    for (kind, count) in metrics.events.all() {
        page.line("hark_events_total", &format!("kind=\"{kind}\""), count);
    }
    for (name, help, count) in [
        ("hark_received_messages_total", "Messages received from clients.", &metrics.messages_in),
        (
            "hark_received_bytes_total",
            "Uncompressed bytes of the messages received.",
            &metrics.bytes_in,
        ),
        ("hark_sent_messages_total", "Messages sent to clients.", &metrics.messages_out),
        ("hark_sent_bytes_total", "Uncompressed bytes of the messages sent.", &metrics.bytes_out),
    ] {
        page.counter(name, help, count);
    }
}

fn connections(page: &mut MetricsPage, relay: &Relay) {
    let metrics = &relay.metrics;
    page.gauge("hark_connections", "Connections open now.", metrics.connections_open.get());
    page.gauge("hark_websockets", "WebSockets open now.", metrics.websockets_open.get());
    page.counter("hark_connections_total", "Connections opened.", &metrics.connections);
    page.counters(
        "hark_connections_refused_total",
        "Connections refused before their first message, by reason.",
        "reason",
        &metrics.turned_away,
    );
    page.counters(
        "hark_handshakes_refused_total",
        "Requests for a WebSocket that were refused, by the fault of the request.",
        "reason",
        &metrics.handshakes_refused,
    );
    page.counters(
        "hark_connections_ended_total",
        "WebSockets that ended, by reason.",
        "reason",
        &metrics.ended,
    );
    page.gauge("hark_subscriptions", "Subscriptions open now.", relay.live.len());
    page.gauge(
        "hark_outbox_bytes",
        "Bytes of output that clients have not read yet.",
        relay.outboxes.bytes() as u64,
    );
    page.gauge(
        "hark_questions_bytes",
        "Bytes of memory charged to queries, including subscriptions.",
        relay.questions.bytes() as u64,
    );
    page.gauge("hark_comparisons", "Comparisons open now.", metrics.comparisons_open.get());
    page.gauge(
        "hark_comparisons_bytes",
        "Bytes of the times and ids that open comparisons hold in memory.",
        relay.comparisons.bytes() as u64,
    );
    page.gauge(
        "hark_inbound_bytes",
        "Bytes of messages that are incomplete or wait to be processed.",
        relay.inbound.bytes() as u64,
    );
}

fn questions(page: &mut MetricsPage, relay: &Relay) {
    let metrics = &relay.metrics;
    page.head(
        "hark_query_seconds",
        "histogram",
        "Time of the search for one filter, by the condition that drives the search, in seconds.",
    );
    for (plan, times) in metrics.search.all() {
        page.classes("hark_query_seconds", &format!("plan=\"{plan}\""), &times.read());
    }
    page.histogram(
        "hark_query_wait_seconds",
        "Time that a query waited until its search began, in seconds.",
        &metrics.search_wait,
    );
    page.histogram(
        "hark_comparison_step_seconds",
        "Time to answer one message of a comparison, without the search for events, in seconds.",
        &metrics.comparison_step,
    );
    for (name, help, count) in [
        (
            "hark_query_rows_total",
            "Rows visited by searches, counts and comparisons.",
            &metrics.rows_visited,
        ),
        ("hark_query_records_total", "Stored events sent to clients.", &metrics.records_sent),
        (
            "hark_live_records_total",
            "Live events sent, counted once for each subscription.",
            &metrics.live_sent,
        ),
    ] {
        page.counter(name, help, count);
    }
}
