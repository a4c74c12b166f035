//! The command line of `hark bench compare`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::{at_least_one, seconds};
use crate::events::SEED;

/// A part of the comparison that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SkippedPart {
    /// The start of a stopped relay
    Restart,
    /// Questions for keys that were never asked for before
    Cold,
    /// The types of questions, with their answers
    Questions,
    /// Comparisons of sets of events (NIP-77)
    Sets,
    /// The time until a published event is found
    Visible,
    /// Live delivery to subscriptions
    Delivery,
    /// kill -9 while events are published
    Kill,
}

/// The flags of the command.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench compare relays.toml --html report.html
  hark bench compare relays.toml --events 20000 --rounds 1 --seconds 1        a short run
  hark bench compare relays.toml --corpus dump.jsonl --work /disk/compare --json > report.json

The file names the relays, how to start each, and how to recognize that it is ready; the page
docs/compare/README.md explains it, with examples. Each relay runs alone, on the same events, and in
another order in every other round. A relay that does not start, dies, or answers wrongly has its
rows marked, and the comparison goes on; the exit code is then 1. All processes that the comparison
starts are ended with it, even after Ctrl-C.")]
pub(crate) struct CompareArgs {
    /// The relays to compare, in TOML
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,

    /// The events to load, one a line, such as a dump of a relay [default: events of the seed]
    #[arg(long, value_name = "FILE")]
    pub(super) corpus: Option<PathBuf>,

    /// Number of events to make if no corpus is given
    #[arg(long, value_name = "N", default_value_t = 100_000, conflicts_with = "corpus")]
    pub(super) events: u64,

    /// The seed of these events
    #[arg(long, value_name = "N", default_value_t = SEED, conflicts_with = "corpus")]
    pub(super) seed: u64,

    /// How often each relay is measured; figures are medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub(super) rounds: usize,

    /// How long each type of question is measured, in seconds
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    pub(super) seconds: f64,

    /// Number of connections that publish or query at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub(super) connections: usize,

    /// Only relays with this text in their names; may be given several times
    #[arg(long = "relay", value_name = "NAME")]
    pub(super) relays: Vec<String>,

    /// Only types of questions with this text in their names; may be given several times
    #[arg(long = "shape", value_name = "NAME")]
    pub(super) shapes: Vec<String>,

    /// Leave out a part; may be given several times
    #[arg(long, value_name = "PART", value_enum)]
    pub(super) skip: Vec<SkippedPart>,

    /// Number of subscriptions that receive each published event
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one)]
    pub(super) subscriptions: usize,

    /// Drop this machine's caches of files before the cold questions; requires root
    #[arg(long)]
    pub(super) drop_caches: bool,

    /// The directory for the relays' data, on the disk to be measured; it keeps the events that were
    /// made [default: a temporary directory, which is removed]
    #[arg(long, value_name = "DIR")]
    pub(super) work: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,

    /// Write the result as one HTML page
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl CompareArgs {
    /// Whether a part is measured.
    pub(super) fn has(&self, part: SkippedPart) -> bool {
        !self.skip.contains(&part)
    }
}
