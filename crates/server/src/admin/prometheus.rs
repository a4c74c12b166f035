//! The page for Prometheus: all that is counted, in its text format.

use std::fmt::{Display, Write as _};

use hark_archive::meter::{BOUNDS_NS, Times};
use hark_archive::mirror::Lag;

use super::process::Process;
use crate::metrics::{By, Count, Histogram, Label};
use crate::nostr::Relay;
use crate::waku::{self, Waku};

/// The type that Prometheus asks for.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page as it is now.
pub(crate) fn page(relay: &Relay, waku: Option<&Waku>) -> String {
    let mut page = Page::default();
    let version = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    page.head("hark_build_info", "gauge", "Version of this server.");
    page.line("hark_build_info", &version, 1);
    said(&mut page, relay);
    connections(&mut page, relay);
    questions(&mut page, relay);
    store(&mut page, relay);
    if let Some(waku) = waku {
        waku::prometheus::write(&mut page, waku);
    }
    let started_s = relay.metrics.started_s();
    page.gauge("process_start_time_seconds", "When it began, in seconds since 1970.", started_s);
    process(&mut page, &Process::now());
    page.0
}

fn said(page: &mut Page, relay: &Relay) {
    let metrics = &relay.metrics;
    page.head(
        "hark_messages_total",
        "counter",
        "Messages answered, by verb and by what became of them: done (ok), or the standard prefix of \
         the reason.",
    );
    for (verb, verdicts) in metrics.answers().all() {
        for (verdict, count) in verdicts.all() {
            let labels = format!("{{verb=\"{verb}\",result=\"{verdict}\"}}");
            page.line("hark_messages_total", &labels, count.get());
        }
    }
    page.head("hark_events_total", "counter", "Events kept, or passed on if ephemeral, by kind.");
    for (kind, count) in metrics.events.all() {
        page.line("hark_events_total", &format!("{{kind=\"{kind}\"}}"), count);
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

fn connections(page: &mut Page, relay: &Relay) {
    let metrics = &relay.metrics;
    page.gauge("hark_connections", "Connections open now.", metrics.connections_open.get());
    page.counter("hark_connections_total", "Connections made.", &metrics.connections);
    page.counters(
        "hark_connections_refused_total",
        "Connections turned away before they could say anything, by reason.",
        "reason",
        &metrics.turned_away,
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
    page.gauge(
        "hark_inbound_bytes",
        "Bytes of messages that have not come whole.",
        relay.inbound.bytes() as u64,
    );
}

fn questions(page: &mut Page, relay: &Relay) {
    let metrics = &relay.metrics;
    page.head(
        "hark_query_seconds",
        "histogram",
        "Time spent on the search of one filter, by what it was driven by.",
    );
    for (plan, times) in metrics.search.all() {
        page.classes("hark_query_seconds", &format!("plan=\"{plan}\","), &times.read());
    }
    page.histogram(
        "hark_query_wait_seconds",
        "Time that a REQ or COUNT waited until its search began.",
        &metrics.search_wait,
    );
    for (name, help, count) in [
        ("hark_query_rows_total", "Rows visited by searches.", &metrics.rows_visited),
        ("hark_query_records_total", "Stored events sent.", &metrics.records_told),
        ("hark_live_records_total", "Live events sent, once a subscription.", &metrics.live_told),
    ] {
        page.counter(name, help, count);
    }
}

fn store(page: &mut Page, relay: &Relay) {
    let (metrics, written, stats) = (&relay.metrics, relay.writer.counters(), relay.store.stats());
    page.histogram(
        "hark_verify_seconds",
        "Time to check the signatures of the events that one thread had at hand.",
        &metrics.verify,
    );
    page.counter("hark_verified_events_total", "Signatures checked.", &metrics.verified);
    page.histogram(
        "hark_commit_seconds",
        "Time to make one batch of writes durable.",
        &written.batches,
    );
    page.counter("hark_committed_writes_total", "Writes in those batches.", &written.writes);
    page.head("hark_sync_seconds", "histogram", "Time that the disk took to sync a batch.");
    page.classes("hark_sync_seconds", "", &stats.syncs);
    let writing = u8::from(relay.trouble().is_none());
    page.gauge("hark_store_writing", "1 while the archive takes writes, else 0.", writing);
    let share = stats.dead_bytes as f64 / stats.log_bytes.max(1) as f64;
    for (name, help, value) in [
        ("hark_store_records", "Events kept.", stats.records),
        ("hark_store_dead_records", "Deleted events that still take room.", stats.dead),
        ("hark_store_bytes", "Bytes on disk.", stats.bytes),
        ("hark_store_log_bytes", "Bytes of them that are events.", stats.log_bytes),
        ("hark_store_index_bytes", "Bytes of them that are indices.", stats.index_bytes),
        ("hark_store_dead_bytes", "Bytes of deleted events in the log.", stats.dead_bytes),
        ("hark_store_head_records", "Events not in a segment yet.", stats.head_records),
        ("hark_store_segments", "Sealed segments.", stats.segments),
        ("hark_store_heads_waiting", "Full heads that wait to be sealed.", stats.heads_waiting),
        (
            "hark_store_merge_due_records",
            "Events in segments that wait to be merged.",
            stats.merge_due_records,
        ),
    ] {
        page.gauge(name, help, value);
    }
    if let Some(database) = &stats.database {
        for (name, help, value) in [
            ("hark_database_connections", "Connections for questions.", database.connections),
            ("hark_database_connections_used", "Those at work.", database.connections_used),
            (
                "hark_database_news_behind",
                "Events of other servers that subscribers have not been told.",
                database.news_behind,
            ),
        ] {
            page.gauge(name, help, value);
        }
        page.head(
            "hark_database_waits_total",
            "counter",
            "How often a question had to wait for a connection.",
        );
        page.line("hark_database_waits_total", "", database.waits);
        if let Some((asked, passed)) = database.replica {
            let name = "hark_database_replica_total";
            page.head(name, "counter", "Questions to the replica, and those it was not ready for.");
            page.line(name, "{result=\"asked\"}", asked);
            page.line(name, "{result=\"passed\"}", passed);
        }
        page.head("hark_statement_seconds", "histogram", "Time of statements, by form.");
        for (form, times) in &database.statements {
            page.classes("hark_statement_seconds", &format!("form=\"{form}\","), times);
        }
    }
    if let Some(lag) = &stats.mirror {
        mirror(page, lag);
    }
    let failing = u8::from(stats.upkeep_failed.is_some());
    page.gauge("hark_store_upkeep_failing", "1 while sealing or merging fails, else 0.", failing);
    page.gauge(
        "hark_store_damaged_files",
        "Files that are damaged or could not be read, and are not made anew.",
        stats.damaged_files.len(),
    );
    page.gauge("hark_store_dead_share", "Share of the log that is deleted events.", share);
    for (name, help, value) in [
        ("hark_store_damaged_total", "Events found damaged.", stats.damaged),
        ("hark_store_written_bytes_total", "Bytes written to disk.", stats.written_bytes),
    ] {
        page.head(name, "counter", help);
        page.line(name, "", value);
    }
}

fn mirror(page: &mut Page, lag: &Lag) {
    page.gauge(
        "hark_mirror_in_step",
        "1 while the mirror has all but what is queued for it, else 0.",
        u8::from(lag.in_step),
    );
    page.gauge(
        "hark_mirror_lag_seconds",
        "Age of the oldest write that waits for the mirror, or since when it is not in step.",
        lag.behind_ms as f64 / 1e3,
    );
    for (name, help, value) in [
        ("hark_mirror_queued_writes", "Writes that wait for the mirror.", lag.queued),
        ("hark_mirror_queued_bytes", "Bytes of them.", lag.queued_bytes),
        ("hark_mirror_extra_records", "Events that only the mirror has.", lag.extra),
        ("hark_mirror_refused_records", "Events that the mirror refused.", lag.refused),
    ] {
        page.gauge(name, help, value);
    }
    let name = "hark_mirror_copied_total";
    page.head(name, "counter", "Writes that the mirror took.");
    page.line(name, "", lag.copied);
}

fn process(page: &mut Page, process: &Process) {
    let whole = [
        ("process_resident_memory_bytes", "Bytes of memory in use.", process.resident_bytes),
        (
            "process_virtual_memory_bytes",
            "Bytes of address space, mapped files included.",
            process.virtual_bytes,
        ),
        ("process_open_fds", "Open files and sockets.", process.open_fds),
        ("process_max_fds", "How many there may be.", process.max_fds),
    ];
    for (name, help, value) in whole {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
    if let Some(cpu_s) = process.cpu_s {
        page.head("process_cpu_seconds_total", "counter", "Processor time used.");
        page.line("process_cpu_seconds_total", "", cpu_s);
    }
}

/// What is written so far.
#[derive(Default)]
pub(crate) struct Page(String);

impl Page {
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(crate) fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.line(name, "", value);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, count: &Count) {
        self.head(name, "counter", help);
        self.line(name, "", count.get());
    }

    pub(crate) fn counters<L: Label>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        counts: &By<L>,
    ) {
        self.head(name, "counter", help);
        for (value, count) in counts.all() {
            self.line(name, &format!("{{{label}=\"{value}\"}}"), count.get());
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        self.classes(name, "", &histogram.read());
    }

    /// A histogram's lines. `labels` ends with a comma, or is empty.
    fn classes(&mut self, name: &str, labels: &str, times: &Times) {
        self.buckets(name, labels, &BOUNDS_NS, &times.classes, times.sum_ns, 1e9);
    }

    /// The same of numbers in any unit, told in one that is so many times as large. `classes` has one
    /// more than `bounds`, for what is above them.
    pub(crate) fn buckets(
        &mut self,
        name: &str,
        labels: &str,
        bounds: &[u64],
        classes: &[u64],
        sum: u64,
        unit: f64,
    ) {
        let mut count = 0;
        for (bound, class) in bounds.iter().zip(classes) {
            count += class;
            let bound = *bound as f64 / unit;
            let _ = writeln!(self.0, "{name}_bucket{{{labels}le=\"{bound}\"}} {count}");
        }
        let count: u64 = classes.iter().sum();
        let _ = writeln!(self.0, "{name}_bucket{{{labels}le=\"+Inf\"}} {count}");
        let labels = labels.trim_end_matches(',');
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        self.line(&format!("{name}_sum"), &labels, sum as f64 / unit);
        self.line(&format!("{name}_count"), &labels, count);
    }
}
