//! The whole page for Prometheus: metrics of the doors, of each shelf and of the process.
//!
//! Lines of the first shelf have no label, as most servers have only one shelf. Lines of other
//! shelves have the label `shelf`.

use std::time::Duration;

use hark_archive::store::{DatabaseStats, MirrorLag, ScrubStats, StoreStats};

use super::process::ProcessStats;
use super::reload::LastReload;
use crate::door::OpenNetwork;
use crate::growth::{Growth, GrowthRecorder, now_s};
use crate::metrics::MetricsPage;
use crate::shelf::Shelf;
use crate::tls::TlsEndpoint;

/// Writes the page, with current values.
pub(crate) fn page(
    version: &str,
    networks: &[OpenNetwork],
    reload: &LastReload,
    tls: Option<&TlsEndpoint>,
    recorder: Option<&GrowthRecorder>,
) -> String {
    let mut page = MetricsPage::default();
    page.head("hark_build_info", "gauge", "Version of this server.");
    page.line("hark_build_info", &format!("version=\"{version}\""), 1);
    page.gauge(
        "hark_config_last_reload_successful",
        "1 if the last configuration read is in force, 0 if the server refused that configuration.",
        u8::from(reload.refusal.is_none()),
    );
    page.gauge(
        "hark_config_last_reload_success_timestamp_seconds",
        "Time at which the configuration in force was read, in seconds since 1970.",
        reload.in_force_since_s,
    );
    if let Some(tls) = tls {
        certificate(&mut page, tls);
    }
    for network in networks {
        network.door.metrics(&mut page);
    }
    let shelves: Vec<_> = networks
        .iter()
        .enumerate()
        .map(|(at, network)| {
            let shelf = &network.shelf;
            let label = if at == 0 { String::new() } else { format!("shelf=\"{}\"", shelf.name()) };
            LabelledShelf { shelf, stats: shelf.store().stats(), label }
        })
        .collect();
    written(&mut page, &shelves);
    store(&mut page, &shelves);
    disk(&mut page, &shelves);
    if let Some(recorder) = recorder {
        growth(&mut page, &shelves, recorder);
    }
    scrub(&mut page, &shelves);
    database(&mut page, &shelves);
    mirror(&mut page, &shelves);
    let started_s =
        networks.iter().map(|network| network.shelf.since_s()).min().unwrap_or_default();
    page.gauge(
        "process_start_time_seconds",
        "Start time of the server, in seconds since 1970.",
        started_s,
    );
    process(&mut page, &ProcessStats::now());
    page.into_text()
}

fn certificate(page: &mut MetricsPage, tls: &TlsEndpoint) {
    page.gauge(
        "hark_tls_certificate_expiry_timestamp_seconds",
        "Time at which the certificate in force expires, in seconds since 1970.",
        tls.expires_s(),
    );
    page.counters(
        "hark_tls_handshakes_failed_total",
        "TLS handshakes that failed, by cause.",
        "reason",
        &tls.failed,
    );
}

/// A shelf, the statistics of its store, and the label of its lines.
struct LabelledShelf<'a> {
    shelf: &'a Shelf,
    stats: StoreStats,
    label: String,
}

impl LabelledShelf<'_> {
    /// The shelf's label, followed by other labels.
    fn and(&self, others: &str) -> String {
        if self.label.is_empty() { others.into() } else { format!("{},{others}", self.label) }
    }
}

/// Returns the shelves for which `of` returns a value, each with this value.
fn having<'a, T>(
    shelves: &'a [LabelledShelf<'a>],
    of: fn(&'a StoreStats) -> Option<&'a T>,
) -> Vec<(&'a LabelledShelf<'a>, &'a T)> {
    shelves.iter().filter_map(|described| Some((described, of(&described.stats)?))).collect()
}

/// A metric of each shelf: the name, the help text, and a function that returns the value.
type ShelfNumber<T> = (&'static str, &'static str, fn(&T) -> f64);

/// Writes metrics of the type `kind`, with one line for each of these shelves.
fn lines<'a, T: 'a>(
    page: &mut MetricsPage,
    kind: &str,
    shelves: &[(&'a LabelledShelf<'a>, &'a T)],
    numbers: &[ShelfNumber<T>],
) {
    for (name, help, number) in numbers.iter().filter(|_| !shelves.is_empty()) {
        page.head(name, kind, help);
        for (described, of) in shelves {
            page.line(name, &described.label, number(of));
        }
    }
}

fn written(page: &mut MetricsPage, shelves: &[LabelledShelf<'_>]) {
    let name = "hark_commit_seconds";
    page.head(name, "histogram", "Time to make one batch of writes durable, in seconds.");
    for described in shelves {
        let batches = described.shelf.writer().counters().batches.read();
        page.classes(name, &described.label, &batches);
    }
    let name = "hark_committed_writes_total";
    page.head(name, "counter", "Writes in the batches of hark_commit_seconds.");
    for described in shelves {
        page.line(name, &described.label, described.shelf.writer().counters().writes.get());
    }
    let name = "hark_sync_seconds";
    page.head(name, "histogram", "Time to sync one batch of writes to disk, in seconds.");
    for described in shelves {
        page.classes(name, &described.label, &described.stats.syncs);
    }
    let name = "hark_store_writing";
    page.head(name, "gauge", "1 while the archive accepts writes, else 0.");
    for described in shelves {
        page.line(name, &described.label, u8::from(described.shelf.trouble().is_none()));
    }
}

fn store(page: &mut MetricsPage, shelves: &[LabelledShelf<'_>]) {
    let all = having(shelves, Some);
    lines(
        page,
        "gauge",
        &all,
        &[
            ("hark_store_records", "Records stored now, without deleted records.", |stats| {
                stats.records as f64
            }),
            ("hark_store_dead_records", "Deleted records that still use space.", |stats| {
                stats.dead as f64
            }),
            ("hark_store_bytes", "Bytes that the archive uses on disk.", |stats| {
                stats.bytes as f64
            }),
            (
                "hark_store_log_bytes",
                "Bytes of hark_store_bytes that belong to records.",
                |stats| stats.log_bytes as f64,
            ),
            (
                "hark_store_index_bytes",
                "Bytes of hark_store_bytes that belong to indices.",
                |stats| stats.index_bytes as f64,
            ),
            (
                "hark_store_dead_bytes",
                "Bytes of the log that belong to deleted records.",
                |stats| stats.dead_bytes as f64,
            ),
            (
                "hark_store_head_records",
                "Records that are not sealed into a segment yet.",
                |stats| stats.head_records as f64,
            ),
            ("hark_store_segments", "Sealed segments.", |stats| stats.segments as f64),
            ("hark_store_heads_waiting", "Full heads that wait to be sealed.", |stats| {
                stats.heads_waiting as f64
            }),
            (
                "hark_store_merge_due_records",
                "Records in the segments of the next due merge.",
                |stats| stats.merge_due_records as f64,
            ),
            (
                "hark_store_maintenance_failing",
                "1 while sealing or merging fails, else 0.",
                |stats| f64::from(u8::from(stats.maintenance_failed.is_some())),
            ),
            (
                "hark_store_damaged_files",
                "Files found damaged or unreadable since the start and not rebuilt.",
                |stats| stats.damaged_files.len() as f64,
            ),
            (
                "hark_store_damaged_records",
                "Stored records found damaged since the start. Answers omit these records.",
                |stats| stats.damaged as f64,
            ),
            (
                "hark_store_dead_share",
                "Share of the log's bytes that belongs to deleted records, from 0 to 1.",
                |stats| stats.dead_bytes as f64 / stats.log_bytes.max(1) as f64,
            ),
        ],
    );
    lines(
        page,
        "counter",
        &all,
        &[("hark_store_written_bytes_total", "Bytes written to disk.", |stats| {
            stats.written_bytes as f64
        })],
    );
}

fn scrub(page: &mut MetricsPage, shelves: &[LabelledShelf<'_>]) {
    let all: Vec<(_, &ScrubStats)> = having(shelves, |stats| stats.scrub.as_ref());
    lines(
        page,
        "counter",
        &all,
        &[
            (
                "hark_scrub_read_bytes_total",
                "Bytes read by the slow check of the archive.",
                |scrub| scrub.read_bytes as f64,
            ),
            (
                "hark_scrub_passes_total",
                "Passes of the slow check that have read the whole archive.",
                |scrub| scrub.passes as f64,
            ),
            ("hark_scrub_repaired_total", "Damaged segments that were rebuilt.", |scrub| {
                scrub.repaired as f64
            }),
        ],
    );
    lines(
        page,
        "gauge",
        &all,
        &[
            (
                "hark_scrub_pass_share",
                "Share of the archive read in the current pass of the slow check, from 0 to 1.",
                |scrub| (scrub.pass_bytes as f64 / scrub.total_bytes.max(1) as f64).min(1.0),
            ),
            (
                "hark_scrub_last_faults",
                "Faults found by the last complete pass of the slow check.",
                |scrub| scrub.last_faults as f64,
            ),
        ],
    );
    let ended = having(shelves, |stats| stats.scrub.as_ref()?.last_pass_age.as_ref());
    let age: &[ShelfNumber<Duration>] = &[(
        "hark_scrub_last_pass_age_seconds",
        "Time since the last complete pass of the slow check ended, in seconds.",
        Duration::as_secs_f64,
    )];
    lines(page, "gauge", &ended, age);
}

fn disk(page: &mut MetricsPage, shelves: &[LabelledShelf<'_>]) {
    let all = having(shelves, |stats| stats.free_bytes.as_ref());
    let help = "Free bytes of the file system that contains the archive.";
    lines(page, "gauge", &all, &[("hark_store_free_bytes", help, |free| *free as f64)]);
}

fn growth(page: &mut MetricsPage, shelves: &[LabelledShelf<'_>], recorder: &GrowthRecorder) {
    let (log, now_s) = (recorder.log(), now_s());
    let of = |described: &LabelledShelf<'_>| log.of(described.shelf.name(), now_s);
    let all: Vec<_> = shelves.iter().filter_map(|one| Some((one, of(one)?))).collect();
    let all: Vec<_> = all.iter().map(|(described, growth)| (*described, growth)).collect();
    lines(
        page,
        "gauge",
        &all,
        &[
            (
                "hark_store_growth_records",
                "Records that the archive gains a day, measured over up to seven days.",
                |growth: &Growth| growth.records_per_day,
            ),
            (
                "hark_store_growth_bytes",
                "Bytes that the archive gains a day, measured over up to seven days.",
                |growth: &Growth| growth.bytes_per_day,
            ),
        ],
    );
    let free = shelves.iter().find_map(|described| described.stats.free_bytes);
    if let Some(days) = free.and_then(|free| log.days_until_full(free, now_s)) {
        page.gauge(
            "hark_store_full_in_days",
            "Days until the archive fills its file system, if it grows as before.",
            days,
        );
    }
}

fn database(page: &mut MetricsPage, shelves: &[LabelledShelf<'_>]) {
    let all = having(shelves, |stats| stats.database.as_ref());
    if all.is_empty() {
        return;
    }
    lines(
        page,
        "gauge",
        &all,
        &[
            (
                "hark_database_connections",
                "Open connections to the database for queries.",
                |database| database.connections as f64,
            ),
            (
                "hark_database_connections_used",
                "Connections to the database that queries use now.",
                |database| database.connections_used as f64,
            ),
            (
                "hark_database_news_behind",
                "Records of all servers that are not yet delivered to this server's subscribers.",
                |database| database.news_behind as f64,
            ),
        ],
    );
    let waits: &[ShelfNumber<DatabaseStats>] = &[(
        "hark_database_waits_total",
        "Waits of queries for a connection to the database.",
        |database| database.waits as f64,
    )];
    lines(page, "counter", &all, waits);
    if all.iter().any(|(_, database)| database.replica.is_some()) {
        let name = "hark_database_replica_total";
        page.head(
            name,
            "counter",
            "Queries sent to the replica (asked), or to the primary instead (passed).",
        );
        for (described, database) in &all {
            if let Some((asked, passed)) = database.replica {
                page.line(name, &described.and("result=\"asked\""), asked);
                page.line(name, &described.and("result=\"passed\""), passed);
            }
        }
    }
    let name = "hark_statement_seconds";
    page.head(
        name,
        "histogram",
        "Time of SQL statements, by the form of the statement, in seconds.",
    );
    for (described, database) in all {
        for (form, times) in &database.statements {
            page.classes(name, &described.and(&format!("form=\"{form}\"")), times);
        }
    }
}

fn mirror(page: &mut MetricsPage, shelves: &[LabelledShelf<'_>]) {
    let all = having(shelves, |stats| stats.mirror.as_ref());
    lines(
        page,
        "gauge",
        &all,
        &[
            (
                "hark_mirror_in_step",
                "1 while the mirror has all writes except the queued writes, else 0.",
                |lag| f64::from(u8::from(lag.in_step)),
            ),
            (
                "hark_mirror_lag_seconds",
                "Age of the oldest queued write, or time spent out of step, in seconds.",
                |lag| lag.behind_ms as f64 / 1e3,
            ),
            (
                "hark_mirror_idle_seconds",
                "Time without progress of the mirror while writes wait, in seconds.",
                |lag| lag.idle_ms as f64 / 1e3,
            ),
            ("hark_mirror_queued_writes", "Writes queued for the mirror.", |lag| lag.queued as f64),
            ("hark_mirror_queued_bytes", "Bytes of the writes queued for the mirror.", |lag| {
                lag.queued_bytes as f64
            }),
            ("hark_mirror_extra_records", "Records that only the mirror has.", |lag| {
                lag.extra as f64
            }),
            (
                "hark_mirror_refused_records",
                "Records that the mirror refused in its last comparison.",
                |lag| lag.refused as f64,
            ),
        ],
    );
    let copied: &[ShelfNumber<MirrorLag>] =
        &[("hark_mirror_copied_total", "Writes copied to the mirror.", |lag| lag.copied as f64)];
    lines(page, "counter", &all, copied);
}

fn process(page: &mut MetricsPage, process: &ProcessStats) {
    let whole = [
        ("process_resident_memory_bytes", "Bytes of memory in use.", process.resident_bytes),
        (
            "process_virtual_memory_bytes",
            "Bytes of address space, including mapped files.",
            process.virtual_bytes,
        ),
        ("process_open_fds", "Open files and sockets.", process.open_fds),
        ("process_max_fds", "Maximum number of open files and sockets.", process.max_fds),
    ];
    for (name, help, value) in whole {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
    if let Some(cpu_s) = process.cpu_s {
        page.head("process_cpu_seconds_total", "counter", "Processor time used, in seconds.");
        page.line("process_cpu_seconds_total", "", cpu_s);
    }
}
