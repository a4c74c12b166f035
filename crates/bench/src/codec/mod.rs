//! `hark bench codec`: the cost of reading, writing, hashing, verifying and encoding one message,
//! compared with other libraries in the same run. The bench measures single messages, and a mix of
//! events.
//!
//! The command measures Hark and serde_json. `cargo bench -p hark-bench --bench codec` also
//! measures the `nostr` crate and counts allocations, with code that is not shipped.

mod comparison;
mod goals;
mod hark;
mod library;
mod messages;
mod meter;
mod mix;
mod owned;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

pub use comparison::{FRAME_BYTES, comparison_sides};
pub use library::Library;
pub use messages::{CodecCase, CodecSample, CodecSampleKind, follow_list, note};
use meter::Figure;
pub use meter::{CodecMeter, consume_value};
use operation::{COMPARE, FIELDS, LABELS, MATCH, VERIFY};

use crate::args::{OutputArgs, at_least_one};
use crate::report::{BenchReport, Column};

/// The names of the measured operations, the same for all libraries.
pub mod operation {
    /// Parses JSON into the library's own type.
    pub const PARSE: &str = "parse";
    /// Writes a message as JSON, in the spelling from which the message was parsed.
    pub const WRITE: &str = "JSON write";
    /// Writes a message as JSON, in another spelling than the parsed text.
    pub const REWRITE: &str = "JSON write, respelled";
    /// Writes the bytes whose hash is the id.
    pub const CANONICAL: &str = "canonical";
    /// Computes the id, the hash of the canonical bytes.
    pub const ID: &str = "id";
    /// Checks the signature, given the id and the key.
    pub const VERIFY: &str = "verify";
    /// Encodes the message in the binary form.
    pub const ENCODE: &str = "binary encode";
    /// Reads every fixed field of the binary form from its bytes.
    pub const FIELDS: &str = "binary fields";
    /// Iterates over every label of the binary form.
    pub const LABELS: &str = "binary labels";
    /// Parses, then encodes in the binary form.
    pub const STORE: &str = "JSON to binary";
    /// Parses, then writes.
    pub const JSON_TRIP: &str = "JSON to JSON";
    /// Parses, encodes, reads the fields and copies the JSON out.
    pub const BINARY_TRIP: &str = "JSON to binary to JSON";
    /// Compares two sets of events (NIP-77). Only for a mix, with the time for each event.
    pub const COMPARE: &str = "comparison";
    /// Checks whether an event matches a filter.
    pub const MATCH: &str = "match";
}

/// `hark bench codec`
#[derive(Debug, Args)]
pub struct CodecArgs {
    /// The events to measure, one a line [default: the events of `hark bench gen`]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// How many events of the file to measure, or how many to generate
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    events: usize,

    /// Measure only messages with this text in their names
    #[arg(long = "message", value_name = "NAME", default_value = "")]
    message: String,

    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the benchmark and reports the results. `others` are measured besides Hark and serde_json.
/// `allocations` returns the number of allocations of this thread so far, and is `None` if
/// allocations are not counted.
pub fn run(
    args: &CodecArgs,
    others: &[Library],
    allocations: Option<fn() -> usize>,
) -> anyhow::Result<ExitCode> {
    let cases = cases(args)?;
    let runs: anyhow::Result<Vec<BenchReport>> =
        (0..args.output.runs.max(1)).map(|_| measure(&cases, others, allocations)).collect();
    let mut report = BenchReport::median(runs?).context("nothing was measured")?;
    if let Some(mix) = cases.iter().find(|case| case.samples.len() > 1) {
        report.setting("events", mix.samples.len());
    }
    goals::judge(&mut report);
    if allocations.is_none() {
        let command = "cargo bench -p hark-bench --bench codec";
        report.note(format!("allocations, and the nostr crate beside it: {command}"));
    }
    args.output.publish(report)
}

/// Returns the cases with the wanted text in their names.
fn cases(args: &CodecArgs) -> anyhow::Result<Vec<CodecCase>> {
    let mut cases = messages::all();
    cases.push(match &args.file {
        Some(file) => mix::of_file(file, args.events)?,
        None => mix::generated(args.events)?,
    });
    let only = &*args.message;
    if !cases.iter().any(|case| case.name.contains(only)) {
        let names: Vec<_> = cases.iter().map(|case| format!("  {}", case.name)).collect();
        bail!("no message has `{only}` in its name. There are:\n{}", names.join("\n"));
    }
    cases.retain(|case| case.name.contains(only));
    Ok(cases)
}

fn measure(
    cases: &[CodecCase],
    others: &[Library],
    allocations: Option<fn() -> usize>,
) -> anyhow::Result<BenchReport> {
    let mut columns = vec![BYTES, hark::LIBRARY.ns, SPEED];
    columns.extend(allocations.map(|_| hark::LIBRARY.allocations));
    let others: Vec<&Library> = [&owned::LIBRARY].into_iter().chain(others).collect();
    for library in &others {
        columns.push(library.ns);
        columns.extend(allocations.map(|_| library.allocations));
        columns.push(library.ratio);
    }
    let mut report = BenchReport::new("codec", &columns);
    for case in cases {
        let figures_of = |library: &Library| {
            let mut meter = CodecMeter::new(case.samples.len(), allocations);
            (library.measure)(case, &mut meter).map(|()| meter.figures())
        };
        let beside: anyhow::Result<Vec<_>> =
            others.iter().map(|library| figures_of(library)).collect();
        let beside = beside?;
        let bytes: usize = case.samples.iter().map(|sample| sample.json.len()).sum();
        let bytes = bytes as f64 / case.samples.len() as f64;
        for own in figures_of(&hark::LIBRARY)? {
            let whole = ![VERIFY, FIELDS, LABELS, COMPARE, MATCH].contains(&own.operation);
            let speed = bytes * 1_000.0 / own.ns;
            let mut row = vec![Some(bytes), Some(own.ns), whole.then_some(speed)];
            let count = |figure: Option<&Figure>| {
                allocations.map(|_| figure.and_then(|figure| figure.allocations))
            };
            row.extend(count(Some(&own)));
            for figures in &beside {
                let figure = figures.iter().find(|figure| figure.operation == own.operation);
                row.push(figure.map(|figure| figure.ns));
                row.extend(count(figure));
                row.push(figure.map(|figure| own.ns / figure.ns));
            }
            report.row(format!("{}: {}", case.name, own.operation), &row);
        }
    }
    Ok(report)
}

/// The mean size of the messages as JSON.
const BYTES: Column = Column::plain("bytes", "JSON", "bytes");
/// The size divided by Hark's time. Left out for operations that do not touch the whole message.
const SPEED: Column = Column::plain("mb_per_s", "speed", "MB/s");
