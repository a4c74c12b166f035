//! The command line of `hark bench` as typed: flags, help and examples.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `hark bench …`
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Make signed events, the same from the same seed, to load a relay with
    Gen(GenArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench gen events.jsonl                       100,000 events, 110 MB
  hark bench gen million.jsonl --events 1000000     with one author of 200,000 events

Made once and used often: the same count and seed give the same bytes on every machine. Signing takes
some 30 us an event on a core, and all cores sign.")]
pub(crate) struct GenArgs {
    /// The file to write, one event a line
    #[arg(value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// How many
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) events: u64,

    /// Other seeds give other events, of the same authors
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,
}

/// What every measurement takes.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print JSON (docs/benchmarks.md says what is in it)
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a report with plots, all in one HTML file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Compare with the JSON of another run: adds its figures and the ratios to them
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
}
