//! The program `hark-bench`, which `hark bench` runs.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use hark_bench::BenchArgs;

/// The allocator that Hark ships with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let matches = hark::reflowed(BenchArgs::command()).get_matches();
    let args = BenchArgs::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    hark::allow_files();
    hark::exit_code(hark_bench::run(&args))
}
