//! `hark bench codec`: what it costs to read, write, hash, verify and store one message, beside
//! other libraries that do the same in the same run.
//!
//! The command knows Hark and serde_json. What is not shipped is measured by
//! `cargo bench -p hark-bench --bench codec`, which adds the `nostr` crate and counts allocations.

mod goals;
mod hark;
mod messages;
mod meter;
mod owned;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

pub use messages::{Message, What, follow_list, note};
use meter::Figure;
pub use meter::{Meter, keep};
use operation::{FIELDS, LABELS, MATCH, VERIFY};

use crate::cli::OutputArgs;
use crate::report::{Column, Report};

/// What is measured, named alike for all libraries.
pub mod operation {
    /// JSON to whatever the library works with.
    pub const PARSE: &str = "parse";
    /// That to JSON, from a message that came as it is to be written.
    pub const WRITE: &str = "JSON write";
    /// That to JSON, from a message that came in another spelling.
    pub const REWRITE: &str = "JSON write, respelled";
    /// The bytes whose hash is the id.
    pub const CANONICAL: &str = "canonical";
    /// The hash of these.
    pub const ID: &str = "id";
    /// The check of the signature, id and key given.
    pub const VERIFY: &str = "verify";
    /// To the binary form.
    pub const ENCODE: &str = "binary encode";
    /// From bytes to every fixed field of the binary form.
    pub const FIELDS: &str = "binary fields";
    /// Over every label of the binary form.
    pub const LABELS: &str = "binary labels";
    /// Parse, then write.
    pub const JSON_TRIP: &str = "JSON to JSON";
    /// Parse, encode, read the fields, copy the JSON out.
    pub const BINARY_TRIP: &str = "JSON to binary to JSON";
    /// Whether an event matches a filter.
    pub const MATCH: &str = "match";
}

/// A library to measure: each operation that it has, on one message.
pub struct Library {
    /// As the report calls it.
    pub ns: Column,
    /// Likewise, of allocations.
    pub allocations: Column,
    /// Likewise, of how much of this library's time Hark takes.
    pub ratio: Column,
    /// Measures.
    pub measure: fn(&Message, &mut Meter) -> anyhow::Result<()>,
}

/// `hark bench codec`
#[derive(Debug, Args)]
pub struct CodecArgs {
    /// Only messages with this in their names
    #[arg(long = "message", value_name = "NAME", default_value = "")]
    message: String,

    #[command(flatten)]
    output: OutputArgs,
}

/// Measures and reports. `others` come beside Hark and serde_json; `allocations` says how many this
/// thread has made so far, if anybody counts.
pub fn run(
    args: &CodecArgs,
    others: &[Library],
    allocations: Option<fn() -> usize>,
) -> anyhow::Result<ExitCode> {
    let runs: anyhow::Result<Vec<Report>> =
        (0..args.output.runs).map(|_| measure(&args.message, others, allocations)).collect();
    let mut report = Report::median(runs?).context("nothing was measured")?;
    goals::judge(&mut report);
    if allocations.is_none() {
        let command = "cargo bench -p hark-bench --bench codec";
        report.note(format!("allocations, and the nostr crate beside it: {command}"));
    }
    args.output.publish(report)
}

fn measure(
    only: &str,
    others: &[Library],
    allocations: Option<fn() -> usize>,
) -> anyhow::Result<Report> {
    let mut columns = vec![BYTES, hark::LIBRARY.ns, SPEED];
    columns.extend(allocations.map(|_| hark::LIBRARY.allocations));
    let others: Vec<&Library> = [&owned::LIBRARY].into_iter().chain(others).collect();
    for library in &others {
        columns.push(library.ns);
        columns.extend(allocations.map(|_| library.allocations));
        columns.push(library.ratio);
    }
    let mut report = Report::new("codec", &columns);
    let messages = messages::all();
    if !messages.iter().any(|message| message.name.contains(only)) {
        let names: Vec<_> = messages.iter().map(|message| format!("  {}", message.name)).collect();
        bail!("no message has `{only}` in its name. There are:\n{}", names.join("\n"));
    }
    for message in messages.iter().filter(|message| message.name.contains(only)) {
        let figures_of = |library: &Library| {
            let mut meter = Meter::new(allocations);
            (library.measure)(message, &mut meter).map(|()| meter.figures())
        };
        let beside: anyhow::Result<Vec<_>> =
            others.iter().map(|library| figures_of(library)).collect();
        let beside = beside?;
        for own in figures_of(&hark::LIBRARY)? {
            let whole = ![VERIFY, FIELDS, LABELS, MATCH].contains(&own.operation);
            let speed = message.json.len() as f64 * 1_000.0 / own.ns;
            let mut row =
                vec![Some(message.json.len() as f64), Some(own.ns), whole.then_some(speed)];
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
            report.row(format!("{}: {}", message.name, own.operation), &row);
        }
    }
    Ok(report)
}

/// The message as JSON.
const BYTES: Column = Column::plain("bytes", "JSON", "bytes");
/// JSON in that time; not for what does not touch all of it.
const SPEED: Column = Column::plain("mb_per_s", "speed", "MB/s");
