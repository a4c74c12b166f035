//! The flags of `hark bench crowd`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::common::{OutputArgs, TargetArgs, at_least_one, seconds};

/// The constant activity of a heavy client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Habit {
    /// Read all events, page by page
    Crawler,
    /// Publish old events one after the other, without a pause
    Backfill,
    /// Search for words
    Search,
    /// Compare all events (NIP-77)
    Comparison,
    /// Publish 500 events at once, again and again
    Burst,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench gen events.jsonl --events 200000
  hark bench crowd events.jsonl --pid $(pgrep -x hark)
  hark bench crowd events.jsonl --clients 1000 --habit crawler --habit search

A normal client has one subscription, and asks a question or publishes an event at each --pace. Its
times count from the due time. The normal clients are measured alone, then beside a client of each
heavy habit, then beside all heavy clients, and at the end alone again. On a loopback address, each
client has an address of its own, so a relay that divides its resources by address treats these
clients as it treats strangers. The first half of the file is loaded before; with --loaded N, the
relay already has the first N events. All other events of the file are published during the run.")]
pub(crate) struct CrowdArgs {
    /// The events to load, publish and ask for
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Number of normal clients
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one)]
    pub(crate) clients: usize,

    /// Seconds between two requests of a normal client
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) pace: f64,

    /// How long each round takes, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Number of clients of each heavy habit
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub(crate) heavy: usize,

    /// Only these heavy habits [default: all]
    #[arg(long = "habit", value_name = "HABIT", value_enum)]
    pub(crate) habits: Vec<Habit>,

    /// The relay already has the first N events
    #[arg(long, value_name = "N")]
    pub(crate) loaded: Option<u64>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
