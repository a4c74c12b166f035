//! The relay's part of the page for Prometheus.

use super::Relay;
use crate::metrics::MetricsPage;

/// Writes the relay's metrics.
pub(super) fn write(page: &mut MetricsPage, relay: &Relay) {
    said(page, relay);
    connections(page, relay);
    questions(page, relay);
    page.histogram(
        "hark_verify_seconds",
        "Time to check the signatures of the events that one thread had at hand.",
        &relay.metrics.verify,
    );
    page.counter("hark_verified_events_total", "Signatures checked.", &relay.metrics.verified);
}

fn said(page: &mut MetricsPage, relay: &Relay) {
    let metrics = &relay.metrics;
    page.counters_nested(
        "hark_messages_total",
        "Messages answered, by verb and by what became of them: done (ok), or the standard prefix of \
         the reason.",
        ["verb", "result"],
        metrics.answers(),
    );
    page.counters(
        "hark_rate_refusals_total",
        "Messages refused with `rate-limited:` as they came too fast, by the setting in [rates].",
        "rate",
        relay.rates.refusals(),
    );
    page.head("hark_events_total", "counter", "Events kept, or passed on if ephemeral, by kind.");
    for (kind, count) in metrics.events.all() {
        page.line("hark_events_total", &format!("kind=\"{kind}\""), count);
    }
    for (name, help, count) in [
        ("hark_received_messages_total", "Messages that came in.", &metrics.messages_in),
        ("hark_received_bytes_total", "Bytes of them.", &metrics.bytes_in),
        ("hark_sent_messages_total", "Messages that went out.", &metrics.messages_out),
        ("hark_sent_bytes_total", "Bytes of them.", &metrics.bytes_out),
    ] {
        page.counter(name, help, count);
    }
}

fn connections(page: &mut MetricsPage, relay: &Relay) {
    let metrics = &relay.metrics;
    page.gauge("hark_connections", "Connections open now.", metrics.connections_open.get());
    page.gauge("hark_websockets", "Of these, WebSockets.", metrics.websockets_open.get());
    page.counter("hark_connections_total", "Connections made.", &metrics.connections);
    page.counters(
        "hark_connections_refused_total",
        "Connections turned away before they could say anything, by reason.",
        "reason",
        &metrics.turned_away,
    );
    page.counters(
        "hark_handshakes_refused_total",
        "Requests for a WebSocket that were refused, by what is wrong with them.",
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
        "Bytes that wait for clients to take them.",
        relay.outboxes.bytes() as u64,
    );
    page.gauge(
        "hark_questions_bytes",
        "Bytes of memory that questions are reckoned to take, subscriptions included.",
        relay.questions.bytes() as u64,
    );
    page.gauge("hark_comparisons", "Comparisons open now.", metrics.comparisons_open.get());
    page.gauge(
        "hark_comparisons_bytes",
        "Bytes of the times and ids that comparisons are over.",
        relay.comparisons.bytes() as u64,
    );
    page.gauge(
        "hark_inbound_bytes",
        "Bytes of messages that have not come whole.",
        relay.inbound.bytes() as u64,
    );
}

fn questions(page: &mut MetricsPage, relay: &Relay) {
    let metrics = &relay.metrics;
    page.head(
        "hark_query_seconds",
        "histogram",
        "Time spent on the search of one filter, by what it was driven by.",
    );
    for (plan, times) in metrics.search.all() {
        page.classes("hark_query_seconds", &format!("plan=\"{plan}\""), &times.read());
    }
    page.histogram(
        "hark_query_wait_seconds",
        "Time that a question waited until its search began.",
        &metrics.search_wait,
    );
    page.histogram(
        "hark_comparison_step_seconds",
        "Time to answer one message of a comparison, once its times and ids are known.",
        &metrics.comparison_step,
    );
    for (name, help, count) in [
        ("hark_query_rows_total", "Rows visited by searches.", &metrics.rows_visited),
        ("hark_query_records_total", "Stored events sent.", &metrics.records_sent),
        ("hark_live_records_total", "Live events sent, once a subscription.", &metrics.live_sent),
    ] {
        page.counter(name, help, count);
    }
}
