//! The measured relay or node: its address, its processes, its reported software and its refusals.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::process::{CpuTime, MemoryUse, Processes};
use crate::report::BenchReport;
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, Url, fields};

/// A relay or a node under load.
#[derive(Clone, Debug)]
pub(crate) struct BenchTarget {
    pub(crate) url: Url,
    processes: Processes,
    driver: Processes,
}

/// The start of a measurement: its time, and the CPU time used by then.
pub(crate) struct MeasurementStart {
    server: CpuTime,
    driver: CpuTime,
    at: std::time::Instant,
}

/// The CPU time and the elapsed time of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeSpent {
    /// CPU time of the server, if its processes are known.
    pub(crate) server: Option<Duration>,
    pub(crate) driver: Option<Duration>,
    pub(crate) elapsed: Duration,
}

impl BenchTarget {
    pub(crate) fn new(url: &Url, pids: &[u32]) -> anyhow::Result<Self> {
        let processes = Processes::new(pids)?;
        Ok(Self { url: url.clone(), processes, driver: Processes::own() })
    }

    /// Whether the server's processes are known.
    pub(crate) fn has_processes(&self) -> bool {
        !self.processes.is_empty()
    }

    pub(crate) async fn connect(&self, kind: ConnectionKind) -> anyhow::Result<RelayConnection> {
        RelayConnection::open(&self.url, kind).await
    }

    /// Opens `count` connections for load.
    pub(crate) async fn connect_all(&self, count: usize) -> anyhow::Result<Vec<RelayConnection>> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(self.connect(ConnectionKind::Busy).await?);
        }
        Ok(all)
    }

    pub(crate) fn start(&self) -> anyhow::Result<MeasurementStart> {
        let (server, driver) = (self.processes.used()?, self.driver.used()?);
        Ok(MeasurementStart { server, driver, at: std::time::Instant::now() })
    }

    pub(crate) fn stop(&self, start: &MeasurementStart) -> anyhow::Result<TimeSpent> {
        Ok(TimeSpent {
            elapsed: start.at.elapsed(),
            server: self.processes.since(&start.server)?,
            driver: self.driver.since(&start.driver)?,
        })
    }

    /// Returns the server's current memory.
    pub(crate) fn memory(&self) -> Option<MemoryUse> {
        self.processes.memory()
    }

    /// Adds the target and the machine to the settings of the report.
    pub(crate) async fn describe(&self, report: &mut BenchReport) {
        report.setting("url", self.url.text.clone());
        let software = tokio::time::timeout(Duration::from_secs(5), self.software()).await;
        report.setting("relay", software.ok().flatten().unwrap_or_else(|| "unknown".into()));
        describe_machine(report);
    }

    /// Reads software and version from the relay's information document (NIP-11).
    async fn software(&self) -> Option<String> {
        let mut stream = TcpStream::connect(&self.url.authority).await.ok()?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: application/nostr+json\r\nConnection: close\r\n\r\n",
            self.url.path, self.url.authority
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.take(1 << 20).read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8_lossy(&answer);
        // The body may be chunked. The document is the JSON object in the body.
        let json = answer.get(answer.find("\r\n\r\n")?..)?;
        let json = json.get(json.find('{')?..=json.rfind('}')?)?;
        let document: Value = serde_json::from_str(json).ok()?;
        let field = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
        Some(format!("{} {}", field("software"), field("version")).trim().to_owned())
    }
}

/// Adds the machine to the settings of the report.
pub(crate) fn describe_machine(report: &mut BenchReport) {
    report.setting("cpu", cpu_model());
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    report.setting("cores", cores);
    let system = std::fs::read_to_string("/proc/version").unwrap_or_default();
    report.setting("system", system.split(" (").next().unwrap_or_default());
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':'])).to_owned()
}

/// The number of a relay's refusals, by reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(BTreeMap<String, u64>);

impl Refusals {
    /// Counts a refusal, with the reason that the relay gave.
    pub(crate) fn add(&mut self, what: &str, reason: &str) {
        // Only a hundred different reasons are counted, because a relay may put ids into its
        // reasons.
        let key = format!("{what}: {reason}");
        let key = if self.0.contains_key(&key) || self.0.len() < 100 {
            key
        } else {
            format!("{what}: (other reasons)")
        };
        *self.0.entry(key).or_default() += 1;
    }

    /// Counts a CLOSED or a NOTICE.
    pub(crate) fn add_message(&mut self, message: RelayMessage<'_>) {
        let (what, text) = match message {
            RelayMessage::Closed(text) => ("CLOSED", text),
            RelayMessage::Notice(text) => ("NOTICE", text),
            _ => return,
        };
        let reason = fields(text).pop().unwrap_or_default();
        self.add(what, &reason);
    }

    /// Returns the number of refusals.
    pub(crate) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns one of the reasons.
    pub(crate) fn first(&self) -> Option<&str> {
        self.0.keys().next().map(String::as_str)
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (reason, count) in other.0 {
            *self.0.entry(reason).or_default() += count;
        }
    }

    /// Adds the refusals to the report as faults.
    pub(crate) fn add_to(&self, report: &mut BenchReport, of: &str) {
        for (reason, count) in &self.0 {
            let advice = if reason.contains("rate-limited") {
                "; turn the relay's rate limits off (hark serve --unlimited)"
            } else {
                ""
            };
            report.fault(format!("{of}: refused {count} times with {reason}{advice}"));
        }
    }
}
