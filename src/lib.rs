//! What the binary does: the command line, the configuration, and the only place that names a store.
//! Another binary can serve further networks: it calls [`run`] with its own list.
//!
//! Read `cli` for what can be typed, `place` for how a command gets at the archive, whether a
//! server runs on it or not, then the commands one by one.

mod cli;
mod commands;
mod config;
mod handover;
mod interrupt;
mod notify;
mod place;
mod print;
mod question;
mod when;

use std::process::ExitCode;

use clap::Parser as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use crate::config::{Config, NETWORKS, Reload, Room, Served, ShelfConfig, StoreIs};

use crate::cli::{Cli, Command};
use crate::commands::adopt::AdoptFrom;
use crate::place::Place;

/// Wrong flags, filter or configuration. Clap's own faults have the same code.
const WRONG_USE: u8 = 2;

/// Flags that do not go together.
#[derive(Debug)]
struct WrongUse(String);

impl std::fmt::Display for WrongUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUse {}

/// Does what the command line says, with these networks. The first is meant where none is named.
pub fn run(networks: &'static [Room]) -> ExitCode {
    config::serve_these(networks);
    let cli = Cli::parse();
    allow_files();
    match carry_out(cli) {
        Ok(code) => code,
        // The reader of the output has closed it.
        Err(error) if print::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hark: {error:#}");
            let wrong_use = error.chain().any(|cause| {
                cause.is::<config::Faults>()
                    || cause.is::<question::FilterFault>()
                    || cause.is::<WrongUse>()
            });
            if wrong_use { ExitCode::from(WRONG_USE) } else { ExitCode::FAILURE }
        }
    }
}

/// Lets the process have as many open files as it may ask for: connections are files, and the usual
/// 1,024 are meant for programs that keep them in a bit set.
fn allow_files() {
    let allowed = getrlimit(Resource::Nofile);
    // What it may ask for is not refused; and the server says so if it is still too little.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: allowed.maximum, ..allowed });
}

fn carry_out(cli: Cli) -> anyhow::Result<ExitCode> {
    if let Some(why) = cli.command.of_no_network().filter(|_| cli.place.network.is_some()) {
        return Err(WrongUse(format!("{why}; leave --network out")).into());
    }
    // These two need no archive, so no configuration must be right either.
    match &cli.command {
        Command::Config(args) => return commands::config::run(args, &cli.place),
        Command::Bench(args) => return hark_bench::run(args, &commands::bench::open),
        _ => {}
    }
    let place = Place::new(cli.place)?;
    match cli.command {
        Command::Serve(args) => commands::serve::run(&args, &place),
        Command::Import(args) => commands::import::run(&args, &place),
        Command::Export(args) => commands::export::run(&args, &place),
        Command::Copy(args) => commands::copy::run(&args, &place),
        Command::Adopt(args) => match args.from {
            AdoptFrom::Nostream(args) => commands::adopt::run(&args, &place),
        },
        Command::Query(args) => commands::query::run(&args, &place),
        Command::Count(args) => commands::count::run(&args, &place),
        Command::Delete(args) => commands::delete::run(&args, &place),
        Command::Explain(args) => commands::explain::run(&args, &place),
        Command::Stats(args) => commands::stats::run(&args, &place),
        Command::Compact(args) => commands::upkeep::compact(&args, &place),
        Command::Check(args) => commands::upkeep::check(&args, &place),
        Command::Rebuild(args) => commands::upkeep::rebuild(&args, &place),
        Command::Migrate(args) => commands::migrate::run(&args, &place),
        Command::Config(_) | Command::Bench(_) => {
            unreachable!("handled above, before the configuration is loaded")
        }
    }
}
