//! The cost of an import besides reading and checking: the store's maintenance, and peak memory.

use std::time::{Duration, Instant};

use hark_archive::store::{JobTotals, MaintenanceStats};

use crate::print;

/// Minimum interval between two measurements of the memory in use.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The peak of this process's anonymous memory. Mapped files do not count, since the system
/// reclaims their pages when it needs memory.
#[derive(Default)]
pub(super) struct PeakMemory {
    most_bytes: Option<u64>,
    looked: Option<Instant>,
}

impl PeakMemory {
    /// Measures the memory in use, at most once per [`LOOK_EVERY`].
    pub(super) fn measure_if_due(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        self.most_bytes = self.most_bytes.max(kib.map(|kib| kib * 1024));
    }
}

/// The cost of an import.
pub(super) struct ImportCost {
    maintenance: MaintenanceStats,
    memory_bytes_max: Option<u64>,
}

impl ImportCost {
    pub(super) fn of(maintenance: &MaintenanceStats, memory: &PeakMemory) -> Self {
        Self { maintenance: *maintenance, memory_bytes_max: memory.most_bytes }
    }

    fn jobs(&self) -> [(&'static str, JobTotals); 3] {
        let MaintenanceStats { sealing, merging, rewriting } = self.maintenance;
        [("sealing", sealing), ("merging", merging), ("rewriting", rewriting)]
    }

    /// Returns the cost per event as text, given the number of stored events.
    pub(super) fn to_text(&self, stored: u64) -> String {
        let stored = stored.max(1) as f64;
        let mut rows = Vec::new();
        for (name, job) in self.jobs() {
            if job.records > 0 {
                let cpu_us = job.cpu.as_secs_f64() * 1e6 / stored;
                let (times, bytes) = (job.records as f64 / stored, job.bytes as f64 / stored);
                let rest = format!("of CPU an event, {bytes:.0} bytes written, {times:.2} times");
                rows.push((name, format!("{cpu_us:.2} us"), rest));
            }
        }
        if let Some(most) = self.memory_bytes_max {
            let rest = "at most, without mapped files".into();
            rows.push(("memory", print::bytes(most), rest));
        }
        print::table(&rows)
    }

    /// Returns the cost as a JSON object.
    pub(super) fn to_json(&self) -> serde_json::Value {
        let mut jobs = serde_json::Map::new();
        for (name, job) in self.jobs() {
            let JobTotals { records, bytes, cpu } = job;
            let job = serde_json::json!({
                "records": records, "bytes": bytes, "cpu_s": cpu.as_secs_f64(),
            });
            jobs.insert(name.into(), job);
        }
        jobs.insert("memory_bytes_max".into(), self.memory_bytes_max.into());
        jobs.into()
    }
}
