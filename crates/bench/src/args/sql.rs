//! The flags of the benches of databases and stores.

use std::path::PathBuf;

use clap::Args;

use super::common::{OutputArgs, at_least_one, seconds};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench gen million.jsonl --events 1000000
  hark bench sql million.jsonl --server postgres://me@127.0.0.1:5432 --html sql.html
  hark bench sql million.jsonl --server postgres://me@127.0.0.1:5432 --events 250000 --store bench-data

Creates two databases on the server: hark_bench_nostream, with the tables and indices of nostream's
migrations, and hark_bench_hark. Loads the same events into both, runs the same queries on both in
turns, and removes both. The queries are drawn from the events. nostream's tables are queried in two
forms: by tags in the jsonb column, and by a join with event_tags. All answers must have the same
number of events; otherwise the run fails. The role must have the right to create databases.
1,000,000 events take some 6 GB and ten minutes.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command")]
pub(crate) struct SqlArgs {
    /// The events to load, from which queries are drawn
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The server to measure on
    #[arg(long, value_name = "URL")]
    pub(crate) server: String,

    /// Measure with the first N events of the file, then with more; sizes in ascending order
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [250_000, 1_000_000])]
    pub(crate) events: Vec<u64>,

    /// Hark's store, a directory or a URL; it should be empty [default: a database on the server]
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<String>,

    /// Number of concurrent queries
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub(crate) connections: usize,

    /// How long each shape is measured in each form, in seconds
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Replace existing databases with these names
    #[arg(long)]
    pub(crate) replace: bool,

    /// Query the databases that an earlier run kept with --keep; nothing is loaded or removed
    #[arg(long, conflicts_with_all = ["replace", "store"])]
    pub(crate) again: bool,

    /// Only shapes (kinds of queries) with this text in their names; may be given several times
    #[arg(long = "shape", value_name = "NAME")]
    pub(crate) shapes: Vec<String>,

    /// Measure Hark alone: neither create nor query nostream's tables
    #[arg(long)]
    pub(crate) alone: bool,

    /// Do not remove the databases afterwards
    #[arg(long)]
    pub(crate) keep: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench hammer events.jsonl ws://127.0.0.1:7777 --rate 500 --insert-rate 1000 --html hammer.html
  hark bench hammer events.jsonl postgres://me@127.0.0.1/hark_test --questions 16 --rate 2000
  hark bench hammer events.jsonl bench-data --rate 5000 --insert-rate 20000 --batch 100

The first half of the file is loaded before the run; with --loaded N, the target already has the
first N events. Queries are drawn from these events, in the shapes of `hark bench sql`. The rest of
the file is inserted during the run. Each query and each insertion has a due time, and latencies
count from the due time. So a target that cannot keep up has long latencies.")]
pub(crate) struct HammerArgs {
    /// The events to load, insert and query
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// A relay by its ws:// address, or a store of Hark: a directory or a postgres:// URL
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,

    /// Number of concurrent queries
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub(crate) questions: usize,

    /// Queries a second, over all connections
    #[arg(long, value_name = "N", default_value_t = 200.0, value_parser = seconds)]
    pub(crate) rate: f64,

    /// Number of concurrent insertions
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    pub(crate) inserters: usize,

    /// Events inserted per second by all inserters together
    #[arg(long, value_name = "N", default_value_t = 500.0, value_parser = seconds)]
    pub(crate) insert_rate: f64,

    /// Number of events in one insertion
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub(crate) batch: usize,

    /// How long to run, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// The target already has the first N events
    #[arg(long, value_name = "N")]
    pub(crate) loaded: Option<u64>,

    /// Only shapes (kinds of queries) with this text in their names; may be given several times
    #[arg(long = "shape", value_name = "NAME")]
    pub(crate) shapes: Vec<String>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench gen million.jsonl --events 1000000
  hark bench nostream million.jsonl postgres://me@127.0.0.1:5432/nostream
  hark adopt nostream postgres://me@127.0.0.1:5432/nostream

Tables and indices are those of nostream's migrations, without the full-text index. As in nostream,
only the newest version of a replaceable event is kept.")]
pub(crate) struct NostreamArgs {
    /// The events to load
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The database to create
    #[arg(value_name = "URL")]
    pub(crate) database: String,

    /// Load only the first N events
    #[arg(long, value_name = "N")]
    pub(crate) events: Option<u64>,

    /// Leave out the table event_tags, which nostream has had since 2024
    #[arg(long)]
    pub(crate) without_event_tags: bool,

    /// Replace an existing database of this name
    #[arg(long)]
    pub(crate) replace: bool,
}
