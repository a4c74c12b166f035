//! `hark bench`: runs the separate program `hark-bench`, so that `hark` does not contain the code
//! of the benchmarks.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::bail;
use clap::Args;

use crate::program::beside;
use crate::wrong_use::WrongUse;

/// The program with the benchmarks.
const PROGRAM: &str = "hark-bench";

#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
From nothing to a comparison:
  hark bench gen events.jsonl
  hark serve --unlimited --data bench-data
  hark bench ingest events.jsonl --pid $(pgrep -x hark)
  hark bench query events.jsonl --pid $(pgrep -x hark) --html report.html

The benchmarks are in a separate program, hark-bench, which this command runs with the same
arguments. `hark bench --help` lists the benchmarks. docs/benchmarks.md describes the measurements,
how to repeat them, and the JSON."
)]
pub(crate) struct BenchProgramArgs {
    /// The benchmark and its flags
    #[arg(value_name = "BENCHMARK", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Replaces this process with `hark-bench`. Returns only if that program could not be started.
pub(crate) fn run(args: &BenchProgramArgs, refusal: Option<&str>) -> anyhow::Result<ExitCode> {
    let names_network =
        |arg: &OsString| arg == "--network" || arg.to_string_lossy().starts_with("--network=");
    if let Some(why) = refusal.filter(|_| args.args.iter().any(names_network)) {
        return Err(WrongUse(format!("{why}; leave --network out")).into());
    }
    let error = Command::new(beside(PROGRAM)).args(&args.args).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "`hark bench` runs the program {PROGRAM}, which is neither beside this program nor in \
             PATH; put it there: Hark's packages and archives have it, and `cargo build --release -p \
             {PROGRAM}` builds it"
        );
    }
    Err(anyhow::Error::new(error).context(format!("{PROGRAM} could not be started")))
}
