//! The flags and examples of `hark bench cases`.

use std::path::PathBuf;

use clap::Args;

use super::model::ServerCores;
use crate::args::{OutputArgs, at_least_one, seconds};
use crate::websocket::Url;

#[derive(Debug, Args)]
#[command(
    mut_arg("runs", |arg| arg.help("Measure each case N times, and combine the times")),
    after_help = "\
Examples:
  hark bench cases --html cases.html             everything: minutes, 2 GB in a temporary directory
  hark bench cases --events 20000 --seconds 1    a short one
  hark bench cases --case wide --workers 1,3     four of the cases, on two sizes of the cluster
  hark bench cases events.jsonl --servers ws://10.0.0.1:7777 ws://10.0.0.2:7777

Starts servers of PostgreSQL and of Hark on this machine, and loads the same events into all of
them. Measures one pair of Hark and PostgreSQL, then several pairs in turn, then one Hark on a Citus
cluster that grows. After each measurement, the servers of PostgreSQL get a fixed share of a core,
and the questions a second are compared with the prediction from the costs. At the end, also after
Ctrl-C, all started servers are stopped, and their files are removed.

PostgreSQL 15 or newer must be installed. Without its extension `citus`, only the pairs are
measured."
)]
pub(crate) struct CasesArgs {
    /// The events to load, from which questions are drawn [default: the events of `hark bench gen`]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Start nothing, and query these servers in turn; each must hold the events of FILE, and allow
    /// pages of --page events
    #[arg(long, value_name = "URL", num_args = 1.., requires = "file")]
    pub(crate) servers: Vec<Url>,

    /// Number of events to make, if no file is given
    #[arg(long, value_name = "N", default_value_t = 100_000, conflicts_with = "file")]
    pub(crate) events: u64,

    /// The seed of the events and of the questions
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,

    /// Days that a wide question covers: all kinds and authors of these days
    #[arg(long, value_name = "DAYS", default_value_t = 7.0, value_parser = seconds)]
    pub(crate) days: f64,

    /// Number of events of a page in the cases that read everything
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = at_least_one)]
    pub(crate) page: usize,

    /// How long each case is measured, in seconds
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Only cases with this text in their names; may be given several times
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,

    /// Number of pairs of one Hark and one PostgreSQL server; each pair stores all events
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub(crate) pairs: usize,

    /// The numbers of workers at which the growing Citus cluster is measured
    #[arg(
        long,
        value_name = "N,N...",
        value_delimiter = ',',
        default_value = "1,3,4,5,6",
        value_parser = at_least_one
    )]
    pub(crate) workers: Vec<usize>,

    /// The share of a core that each worker, and each PostgreSQL without Citus, has in the model
    /// and in its check
    #[arg(long, value_name = "CORES", default_value_t = 0.1, value_parser = share)]
    pub(crate) share: f64,

    /// The share of a core that the coordinator has in the model and in its check. The coordinator
    /// does some work for each question, so it would limit the whole cluster with a share as small
    /// as a worker's
    #[arg(long, value_name = "CORES", default_value_t = 0.8, value_parser = share)]
    pub(crate) coordinator_share: f64,

    /// A setting of all servers of PostgreSQL, as name=value; settings of Citus are for its nodes
    /// only. May be given several times
    #[arg(long = "setting", value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<String>,

    /// Number of concurrent questions while the model is checked
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = at_least_one)]
    pub(crate) at_once: usize,

    /// Do not check the model; the check limits the servers' CPU
    #[arg(long)]
    pub(crate) unchecked: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Parses a setting of PostgreSQL.
fn setting(text: &str) -> Result<String, String> {
    let is_named = text.split_once('=').is_some_and(|(name, _)| !name.is_empty());
    if is_named { Ok(text.into()) } else { Err("must be name=value".into()) }
}

/// Parses a share of a core. The minimum is 0.05, because Linux grants at least 1 ms in each period
/// of 20 ms.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.05..=64.0).contains(&share) => Ok(share),
        _ => Err("must be a number of cores from 0.05 to 64".into()),
    }
}

/// The cores of Hark in the model.
const HARK_CORES: f64 = 1.0;

impl CasesArgs {
    /// The CPU that servers have in the model.
    pub(super) fn cores(&self) -> ServerCores {
        ServerCores { hark: HARK_CORES, postgres: self.share, coordinator: self.coordinator_share }
    }
}
