//! The Waku node's part of the page for Prometheus, under nwaku's names.

use serde_json::Value;

use super::Waku;
use super::metrics::{Answered, Fate, Metrics, Tally};
use crate::metrics::{By, Label, Page};

/// Writes it.
pub(crate) fn write(page: &mut Page, waku: &Waku) {
    page.head("waku_version", "gauge", "Version of this server.");
    let version = concat!("version=\"hark-v", env!("CARGO_PKG_VERSION"), "\"");
    page.line("waku_version", version, 1);
    messages(page, waku);
    questions(page, &waku.metrics);
    sync(page, &waku.metrics);
    page.gauge("waku_connected_peers", "Peers connected now.", waku.metrics.peers.get());
}

fn messages(page: &mut Page, waku: &Waku) {
    let (metrics, stats) = (&waku.metrics, waku.shelf.store().stats());
    page.head("waku_archive_messages", "gauge", "Messages kept.");
    page.line("waku_archive_messages", "type=\"stored\"", stats.records);
    page.gauge("waku_archive_bytes", "Bytes on disk.", stats.bytes);
    page.head("waku_archive_messages_per_shard", "gauge", "Messages stored since the start.");
    for (shard, count) in metrics.stored_by_shard() {
        let labels = format!("shard=\"{shard}\"");
        page.line("waku_archive_messages_per_shard", &labels, count);
    }
    page.head(
        "waku_messages_total",
        "counter",
        "Messages that came in, by where from and by what became of them.",
    );
    for (origin, fates) in metrics.messages.all() {
        for (fate, count) in fates.all() {
            let labels = format!("origin=\"{origin}\",result=\"{fate}\"");
            page.line("waku_messages_total", &labels, count.get());
        }
    }
    page.head(
        "waku_node_messages_total",
        "counter",
        "Messages that came by gossip or were published here, and are valid.",
    );
    let relayed: u64 = metrics.payload_bytes.classes().iter().sum();
    page.line("waku_node_messages_total", "type=\"relay\"", relayed);
    tally(
        page,
        "waku_histogram_message_size",
        "Their payloads, in kB.",
        &metrics.payload_bytes,
        1e3,
    );
    page.head("waku_archive_errors_total", "counter", "Messages that were not kept, by why.");
    for fate in Fate::FAILED {
        let count: u64 = metrics.messages.all().map(|(_, fates)| fates.of(fate).get()).sum();
        let labels = format!("type=\"{}\"", fate.name());
        page.line("waku_archive_errors_total", &labels, count);
    }
    page.histogram(
        "waku_archive_insert_duration_seconds",
        "Time from a message's coming until it was durable.",
        &metrics.insert,
    );
}

/// Messages by where they came from and by what became of them, as far as there were any.
pub(super) fn by_fate(metrics: &Metrics) -> Value {
    nested(&metrics.messages)
}

/// Questions by who asked and by the status of the answer, as far as there were any.
pub(super) fn by_status(metrics: &Metrics) -> Value {
    nested(&metrics.queries)
}

fn nested<A: Label, B: Label>(counts: &By<A, By<B>>) -> Value {
    let inner = |counts: &By<B>| -> Value {
        let counts = counts.all().filter(|(_, count)| count.get() > 0);
        counts.map(|(name, count)| (name.to_owned(), count.get())).collect()
    };
    counts.all().map(|(name, counts)| (name.to_owned(), inner(counts))).collect()
}

fn questions(page: &mut Page, metrics: &Metrics) {
    page.histogram(
        "waku_archive_query_duration_seconds",
        "Time to answer a question, with waiting for its turn.",
        &metrics.query,
    );
    page.head("waku_store_time_seconds", "gauge", "Time to answer the last question.");
    let last_s = metrics.last_query().as_secs_f64();
    page.line("waku_store_time_seconds", "phase=\"query-db-time\"", last_s);
    let answered = |status: Answered| -> u64 {
        metrics.queries.all().map(|(_, by)| by.of(status).get()).sum()
    };
    let asked: u64 = Answered::ALL.iter().map(|(status, _)| answered(*status)).sum();
    let refused = answered(Answered::TooManyRequests) + answered(Answered::Unavailable);
    page.head("waku_store_queries_total", "counter", "Questions.");
    page.line("waku_store_queries_total", "", asked);
    page.head("waku_store_errors_total", "counter", "Questions that could not be read.");
    let unread = answered(Answered::BadRequest);
    page.line("waku_store_errors_total", "type=\"decode_rpc_failure\"", unread);
    page.head(
        "waku_service_requests_total",
        "counter",
        "Questions, by whether they were answered.",
    );
    for (state, count) in [("served", asked - refused), ("rejected", refused)] {
        let labels = format!("service=\"/vac/waku/store-query/3.0.0\",state=\"{state}\"");
        page.line("waku_service_requests_total", &labels, count);
    }
    page.head("waku_store_answers_total", "counter", "Questions by who asked and by status.");
    for (asker, answers) in metrics.queries.all() {
        for (status, count) in answers.all() {
            let labels = format!("asker=\"{asker}\",status=\"{status}\"");
            page.line("waku_store_answers_total", &labels, count.get());
        }
    }
    page.counter("waku_store_messages_told_total", "Messages told in answers.", &metrics.told);
}

/// What is exchanged with other stores. nwaku's names of it have no prefix.
fn sync(page: &mut Page, metrics: &Metrics) {
    page.head(
        "waku_catch_ups_total",
        "counter",
        "Fetches after an absence (resume) and comparisons (sync) that this node began, by whether they \
         got to their end.",
    );
    for (by, outcomes) in metrics.caught_up.all() {
        for (outcome, count) in outcomes.all() {
            let labels = format!("by=\"{by}\",result=\"{outcome}\"");
            page.line("waku_catch_ups_total", &labels, count.get());
        }
    }
    let sync = &metrics.sync;
    tally(
        page,
        "reconciliation_roundtrips",
        "Payloads heard in a comparison with another store.",
        &sync.round_trips,
        1.0,
    );
    tally(
        page,
        "reconciliation_differences",
        "Messages found in a comparison that only one side has.",
        &sync.differences,
        1.0,
    );
    page.head(
        "total_bytes_exchanged_total",
        "counter",
        "Bytes of comparisons with other stores, and of the messages that followed.",
    );
    for (protocol, directions) in sync.bytes.all() {
        for (direction, count) in directions.all() {
            let labels = format!("protocol=\"{protocol}\",direction=\"{direction}\"");
            page.line("total_bytes_exchanged_total", &labels, count.get());
        }
    }
    page.counters(
        "total_transfer_messages_exchanged_total",
        "Messages that followed comparisons with other stores.",
        "direction",
        &sync.messages,
    );
}

/// A histogram of numbers, told in a unit so many times as large.
fn tally(page: &mut Page, name: &str, help: &str, tally: &Tally, unit: f64) {
    page.head(name, "histogram", help);
    page.buckets(name, "", tally.bounds, &tally.classes(), tally.sum(), unit);
}
