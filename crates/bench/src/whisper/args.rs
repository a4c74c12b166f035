//! The flags and examples of `hark bench whisper`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Number of envelopes in the generated month.
pub(crate) const ENVELOPES: u64 = 1_467_846;
use crate::args::{OutputArgs, seconds};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    mut_arg("runs", |arg| {
        arg.default_value("5").help("Measure each figure N times; medians and minima are reported")
    }),
    after_help = "\
Examples:
  hark bench whisper --html whisper.html                          in files, 1.5 GB on disk
  hark bench whisper --server postgres://me@127.0.0.1:5432        and in PostgreSQL, 5 GB more
  hark bench whisper --envelopes 100000 --single --runs 3         a short one
  hark bench whisper --data bench-data                            loads, and keeps the files
  hark bench whisper --data bench-data --again --question 256     queries the kept files again
  hark bench whisper gen envelopes.bin && hark bench whisper envelopes.bin

Loads a month of envelopes, and queries the envelopes of few and of many topics, by topics and by
bloom filter. Every answer is copied as a whole. On the same data, Hark's ways of answering are
compared with those of Status' mail server: a scan that decodes each envelope, a scan that compares
topics and, with --server, its table in PostgreSQL, by bloom filter and by topic. All ways must find
the same envelopes; otherwise the run fails."
)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command")]
pub(crate) struct WhisperBenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<WhisperBenchCommand>,

    /// The envelopes to load [default: the envelopes that `gen` writes, made during the load]
    #[arg(value_name = "FILE", conflicts_with_all = ["envelopes", "seed"])]
    pub(crate) file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) made: MadeEnvelopesArgs,

    /// Measure in PostgreSQL too: a store of Hark, and the mail server's table. The databases
    /// hark_bench_whisper and hark_bench_mailserver are created on this server, and removed at the
    /// end
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,

    /// Query this server over HTTP too, at the address of its REST interface; the server must have
    /// the same envelopes (`hark serve` on a copy of the files in --data)
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// The directory for Hark's files, which are kept; it should be empty [default: a temporary
    /// directory, which is removed]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Do not remove the databases afterwards
    #[arg(long, requires = "server")]
    pub(crate) keep: bool,

    /// Replace existing databases with these names
    #[arg(long, requires = "server")]
    pub(crate) replace: bool,

    /// Query the stores that an earlier run kept (--data, --keep); nothing is loaded or removed
    #[arg(long, requires = "data", conflicts_with_all = ["replace", "file", "envelopes"])]
    pub(crate) again: bool,

    /// Measure with one thread only, and skip the measurements with 2, 4 and 8 threads
    #[arg(long)]
    pub(crate) single: bool,

    /// The longest time to measure a figure, in seconds; each figure is measured at least once
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Only questions with this text in their names; may be given several times
    #[arg(long = "question", value_name = "NAME")]
    pub(crate) questions: Vec<String>,

    /// Only ways of answering with this text in their names; may be given several times
    #[arg(long = "way", value_name = "NAME")]
    pub(crate) ways: Vec<String>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WhisperBenchCommand {
    /// Write the month of envelopes to a file; the same seed gives the same envelopes
    Gen(WhisperGenArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench whisper gen envelopes.bin                        1,467,846 envelopes, 671 MB
  hark bench whisper gen small.bin --envelopes 10000

The file has the envelopes in the order of sending. Each envelope is a length of four bytes, big
endian, followed by its RLP. No proof of work is computed. The same flags give the same bytes on
every machine.")]
pub(crate) struct WhisperGenArgs {
    /// The file to write; compressed if its name ends in .zst
    #[arg(value_name = "FILE")]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) made: MadeEnvelopesArgs,
}

/// The generated envelopes.
#[derive(Clone, Debug, Args)]
pub(crate) struct MadeEnvelopesArgs {
    /// Number of envelopes to make
    #[arg(long, value_name = "N", default_value_t = ENVELOPES)]
    pub(crate) envelopes: u64,

    /// The seed; other seeds give other envelopes
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,
}
