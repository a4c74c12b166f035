//! The mail server's part of the page for Prometheus. A metric that status-go also has is written
//! under status-go's name. All other metrics have names of Hark.

use super::mail_server::MailServer;
use super::metrics::{EnvelopeFate, RequestFate};
use crate::metrics::MetricsPage;

/// Writes the mail server's metrics.
pub(crate) fn write(page: &mut MetricsPage, mail: &MailServer) {
    let metrics = &mail.metrics;
    let database = mail.config.database;
    let labels = format!("db=\"{database}\"");
    let fates = |fate: EnvelopeFate| metrics.envelopes.sum(|it| it == fate);
    let all = metrics.envelopes.sum(|_| true);
    page.head("mailserver_envelopes_total", "counter", "Envelopes received.");
    page.line("mailserver_envelopes_total", "", all);
    page.head("mailserver_archived_envelopes_total", "counter", "Envelopes stored.");
    let stored = fates(EnvelopeFate::Stored);
    page.line("mailserver_archived_envelopes_total", &labels, stored);
    // The spelling is status-go's.
    let failures = "mailserver_archived_envelopes_falures_total";
    page.head(failures, "counter", "Envelopes that the archive failed to store.");
    page.line(failures, &labels, fates(EnvelopeFate::Failed));
    let bytes = "mailserver_archived_envelopes_bytes_total";
    page.counter(bytes, "Bytes of the envelopes stored.", &metrics.stored_bytes);
    page.counters_nested(
        "hark_whisper_envelopes_total",
        "Envelopes received, by source and by result.",
        ["source", "result"],
        &metrics.envelopes,
    );
    page.histogram(
        "hark_whisper_insert_duration_seconds",
        "Time from the arrival of an envelope until the envelope was durable, in seconds.",
        &metrics.insert,
    );
    page.head("mailserver_delivery_attempts_total", "counter", "Requests for history.");
    page.line("mailserver_delivery_attempts_total", "", metrics.requests.sum(|_| true));
    let failures = "mailserver_delivery_failures_total";
    page.head(failures, "counter", "Unanswered requests for history, by reason.");
    for (name, fate) in [
        ("validation", RequestFate::Refused),
        ("rate_limit", RequestFate::TooMany),
        ("archive", RequestFate::Failed),
    ] {
        let count = metrics.requests.sum(|it| it == fate);
        page.line(failures, &format!("type=\"{name}\""), count);
    }
    page.counters_nested(
        "hark_whisper_requests_total",
        "Requests for history, by source and by result.",
        ["source", "result"],
        &metrics.requests,
    );
    page.histogram(
        "mailserver_delivery_duration_seconds",
        "Time to find one page of an answer, in seconds.",
        &metrics.page,
    );
    page.counters(
        "hark_whisper_sent_envelopes_total",
        "Envelopes sent in answers.",
        "source",
        &metrics.sent,
    );
    page.counters(
        "hark_whisper_sent_bytes_total",
        "Bytes of the envelopes sent in answers.",
        "source",
        &metrics.sent_bytes,
    );
    page.counters(
        "hark_whisper_damaged_pages_total",
        "Pages of answers that omit a damaged envelope.",
        "source",
        &metrics.damaged,
    );
    page.gauge("hark_whisper_peers", "Peers connected now.", metrics.peers.get());
    page.counters(
        "hark_whisper_handshakes_total",
        "Handshakes with peers, by result.",
        "result",
        &metrics.handshakes,
    );
    page.counters(
        "hark_whisper_peers_left_total",
        "Sessions of peers that have ended, by reason.",
        "reason",
        &metrics.left,
    );
    page.gauge(
        "hark_whisper_topics",
        "Known topics, for requests by bloom filter.",
        mail.topics.len(),
    );
}
