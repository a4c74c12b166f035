//! The tables of a comparison.

use super::table::CompareTable;
use super::{kill, sets, visible};
use crate::report::Column;

const RELAYS: [Column; 0] = [];

const LOAD: [Column; 7] = [
    Column::plain("accepted", "accepted", ""),
    Column::compared("accepted_per_s", "accepted/s", ""),
    Column::plain("limit_share_percent", "of the limit", "%"),
    Column::compared("p50_ms", "time to OK, p50", "ms"),
    Column::compared("p99_ms", "time to OK, p99", "ms"),
    Column::compared("cpu_us", "CPU an event", "us"),
    Column::plain("driver_us", "driver CPU an event", "us"),
];

const QUESTIONS: [Column; 8] = [
    Column::plain("events", "events", ""),
    Column::plain("answer_kb", "answer", "KB"),
    Column::compared("cpu_ms", "CPU a request", "ms"),
    Column::plain("null_cpu_ms", "limit", "ms"),
    Column::plain("null_ratio", "of the limit", "x"),
    Column::compared("p50_ms", "p50", "ms"),
    Column::compared("p99_ms", "p99", "ms"),
    Column::compared("requests_per_s", "requests/s", ""),
];

const ANSWERS: [Column; 6] = [
    Column::plain("checked", "answers checked", ""),
    Column::plain("wrong", "wrong", ""),
    Column::plain("short", "short", ""),
    Column::plain("unordered", "unordered", ""),
    Column::plain("refused", "refused", ""),
    Column::plain("other_ties", "other order of ties", ""),
];

const DELIVERY: [Column; 7] = [
    Column::plain("delivered", "deliveries", ""),
    Column::plain("lost", "lost", ""),
    Column::plain("doubled", "twice", ""),
    Column::compared("p50_ms", "publish to delivery, p50", "ms"),
    Column::compared("p99_ms", "publish to delivery, p99", "ms"),
    Column::compared("cpu_us_per_delivery", "CPU a delivery", "us"),
    Column::plain("ok_p50_ms", "publish to OK, p50", "ms"),
];

const RESTART: [Column; 4] = [
    Column::plain("empty_start_ms", "start, empty", "ms"),
    Column::compared("stop_ms", "stop", "ms"),
    Column::compared("start_ms", "start, loaded", "ms"),
    Column::compared("answer_ms", "start to first answer", "ms"),
];

const SIZE: [Column; 4] = [
    Column::compared("disk_mb", "disk", "MB"),
    Column::plain("event_bytes", "disk an event", "B"),
    Column::compared("loaded_rss_mb", "memory after the load", "MB"),
    Column::compared("asked_rss_mb", "memory after the questions", "MB"),
];

/// All tables, in the order of the report.
pub(super) struct CompareTables {
    /// Number of events of the file.
    pub(super) events: u64,
    /// A table without figures. The marks of its rows name the reasons why rounds of relays ended
    /// early.
    pub(super) relays: CompareTable,
    pub(super) load: CompareTable,
    pub(super) questions: CompareTable,
    pub(super) cold: CompareTable,
    pub(super) answers: CompareTable,
    pub(super) visible: CompareTable,
    pub(super) delivery: CompareTable,
    pub(super) sets: CompareTable,
    pub(super) restart: CompareTable,
    pub(super) kill: CompareTable,
    pub(super) size: CompareTable,
    /// Notes on relays that lack a feature.
    pub(super) notes: Vec<String>,
}

impl CompareTables {
    pub(super) fn new(events: u64) -> Self {
        Self {
            events,
            relays: CompareTable::new("ended", "Rounds that ended early", "", &RELAYS),
            load: CompareTable::new(
                "load",
                "Publishing the whole file",
                "The time ends with the OK of the last event. The limit is the rate at which all \
                 cores check signatures and do nothing else; the row (nothing) is a relay that \
                 answers OK and does nothing.",
                &LOAD,
            ),
            questions: CompareTable::new(
                "questions",
                "Questions",
                "Each connection sends its next question after the answer to the previous \
                 question. The limit is the CPU time of a relay that only writes an answer of \
                 this size from memory. A row with wrong, short or unordered answers has no \
                 figures.",
                &QUESTIONS,
            ),
            cold: CompareTable::new(
                "cold",
                "Questions that were never asked before",
                "The keys are drawn from the whole file, and each key is asked for once, soon \
                 after the start of the relay.",
                &QUESTIONS,
            ),
            answers: CompareTable::new(
                "answers",
                "Answers compared with the file",
                "The expected answers are computed from the file. The order of events with the \
                 same time (lowest id first, NIP-01) is counted, but marks no row.",
                &ANSWERS,
            ),
            visible: CompareTable::new(
                "visible",
                "From publishing an event to finding it",
                "One connection publishes one event after the other; another connection asks for \
                 the event until an answer has it.",
                &visible::COLUMNS,
            ),
            delivery: CompareTable::new(
                "delivery",
                "Live delivery",
                "200 events a second, each for all subscriptions. The row (nothing) is a relay \
                 that only copies each event to the sockets.",
                &DELIVERY,
            ),
            sets: CompareTable::new(
                "sets",
                "Comparisons of sets (NIP-77)",
                "The bench has the events that the first column names, and the relay has all \
                 events of the file. Only notes are compared, at most 200,000.",
                &sets::COLUMNS,
            ),
            restart: CompareTable::new(
                "restart",
                "Stop and start",
                "Stop is the time from SIGTERM to the end of the process. The first answer is the \
                 first that has an event.",
                &RESTART,
            ),
            kill: CompareTable::new(
                "kill",
                "kill -9 while events are published",
                "After the next start, the bench asks for all acknowledged events. The machine \
                 itself keeps running, so this is no test of a power failure.",
                &kill::COLUMNS,
            ),
            size: CompareTable::new(
                "size",
                "Disk and memory",
                "Disk is the space of all files after the load and a stop. Memory is resident \
                 memory of all processes, which includes mapped files.",
                &SIZE,
            ),
            notes: Vec::new(),
        }
    }

    /// Adds a note on a relay, once.
    pub(super) fn note(&mut self, relay: &str, part: &str, text: &str) {
        let note = format!("{relay}, {part}: {text}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The tables that have rows.
    pub(super) fn all(&self) -> impl Iterator<Item = &CompareTable> {
        let all = [
            &self.relays,
            &self.load,
            &self.questions,
            &self.cold,
            &self.answers,
            &self.visible,
            &self.delivery,
            &self.sets,
            &self.restart,
            &self.kill,
            &self.size,
        ];
        all.into_iter().filter(|table| !table.rows.is_empty())
    }

    /// Sorts the rows of all tables by case and relay.
    pub(super) fn sort(&mut self, relays: &[String]) {
        for table in [
            &mut self.relays,
            &mut self.load,
            &mut self.questions,
            &mut self.cold,
            &mut self.answers,
            &mut self.visible,
            &mut self.delivery,
            &mut self.sets,
            &mut self.restart,
            &mut self.kill,
            &mut self.size,
        ] {
            table.sort(relays);
        }
    }

    /// Whether a row is marked.
    pub(super) fn has_marks(&self) -> bool {
        self.all().any(|table| table.rows.iter().any(|row| !row.marks.is_empty()))
    }
}
