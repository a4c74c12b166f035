//! The flags that several benches have in common.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use crate::report::BenchReport;
use crate::target::BenchTarget;
use crate::websocket::Url;

/// The target to measure.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// The relay to measure
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:7777")]
    pub(crate) url: Url,

    /// The server's process id on this machine, for CPU and memory; may be given several times
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
}

/// The target to measure, and optionally another server; the two are measured in turns.
#[derive(Debug, Args)]
pub(crate) struct AgainstArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Measure this server too, in turns with the first; adds its figures and the ratios of the two
    #[arg(long, value_name = "URL", conflicts_with = "baseline")]
    against: Option<Url>,

    /// The other server's process id
    #[arg(long, value_name = "PID", requires = "against")]
    against_pid: Vec<u32>,

    /// The other server's name in tables
    #[arg(long, value_name = "NAME", default_value = "other", requires = "against")]
    against_name: String,
}

/// The number of runs and the output of results.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Measure N times and report the median of each figure
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) runs: usize,

    /// Print JSON, as docs/benchmarks.md describes the format
    #[arg(long)]
    json: bool,

    /// Write a report with plots, all in one HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Compare with the JSON of another run; adds the other run's figures and the ratios
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
}

impl TargetArgs {
    pub(crate) fn target(&self) -> anyhow::Result<BenchTarget> {
        BenchTarget::new(&self.url, &self.pid)
    }
}

impl AgainstArgs {
    /// Returns the first target, and the other target if one was given.
    pub(crate) fn targets(&self) -> anyhow::Result<Vec<BenchTarget>> {
        let mut targets = vec![self.target.target()?];
        if let Some(url) = &self.against {
            targets.push(BenchTarget::new(url, &self.against_pid)?);
        }
        Ok(targets)
    }

    pub(crate) fn against_name(&self) -> &str {
        &self.against_name
    }
}

impl OutputArgs {
    /// Measures `--runs` times and publishes the median.
    pub(crate) fn measure(
        &self,
        mut measure: impl AsyncFnMut() -> anyhow::Result<BenchReport>,
    ) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut runs = Vec::new();
        for _ in 0..self.runs.max(1) {
            runs.push(runtime.block_on(measure())?);
        }
        self.publish(BenchReport::median(runs).context("there was no run")?)
    }

    /// Prints the report in the requested form. The exit code of a doubtful report is a failure, so
    /// that no script mistakes the report for a valid result.
    pub(crate) fn publish(&self, mut report: BenchReport) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.baseline {
            report.compare_file(path)?;
        }
        report.publish(self.json, self.html.as_deref())?;
        Ok(if report.is_faulty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(count) => Ok(count),
        Err(_) => Err("must be a number".into()),
    }
}

/// The units of sizes, and the bytes of each.
const UNITS: [(&str, usize); 7] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("b", 1),
];

/// Parses a size above zero: a number of bytes, or a number with a unit, such as `10KiB`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((lower.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((&lower, 1));
    match number.trim_end().parse::<usize>().ok().and_then(|number| number.checked_mul(unit)) {
        Some(0) => Err("must be at least 1".into()),
        Some(bytes) => Ok(bytes),
        None => Err("must be a number of bytes, or a size like 10KiB or 2MB".into()),
    }
}

/// Parses a number above zero, with or without a fraction.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1e6 => Ok(number),
        _ => Err("must be a number above 0".into()),
    }
}
