//! The program of the binary: the command line, the configuration, and the only code that refers to
//! concrete stores. Another binary can serve further networks and open further stores: it calls
//! [`run`] with its own lists.
//!
//! Read `cli` first (the command line), then `location` (opening an archive with or without a
//! running server) and `stores` (each kind of store), then the commands.

mod cli;
mod commands;
mod config;
mod control;
mod damage;
mod interrupt;
mod location;
mod log;
#[cfg(all(test, feature = "libp2p", feature = "devp2p"))]
mod manual;
mod notify;
mod owner;
mod print;
mod question;
mod stores;
mod successor;
mod waiting;
mod watch;
mod when;
mod writer;

use std::process::ExitCode;

use clap::FromArgMatches as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use crate::config::{
    Config, DoorFacts, NETWORKS, NetworkService, NetworkSetup, ReloadCallback, ShelfConfig,
};
pub use crate::stores::{
    AddressForm, ArchiveStore, STORES, ServedShelf, ServedStore, ShelfOpener, ShelfPlace,
    StoreFacts, StoreLock, StoreSetup,
};

use crate::cli::{Cli, Command};
use crate::location::ArchiveLocation;

/// Exit code for wrong flags, filters or configuration. Clap's own errors have the same code.
const WRONG_USE: u8 = 2;

/// The error for an invalid use of the command line, such as flags that cannot be combined.
#[derive(Debug)]
struct WrongUse(String);

impl std::fmt::Display for WrongUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUse {}

/// Runs the command line with the given networks and stores. The first of each is the default.
pub fn run(networks: &'static [NetworkSetup], stores: &'static [StoreSetup]) -> ExitCode {
    config::serve_these(networks);
    stores::open_these(stores);
    let matches = cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    allow_files();
    match carry_out(cli) {
        Ok(code) => code,
        // The reader of the output has closed its end of the pipe.
        Err(error) if print::is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If the server's log contains the error, it is not printed as well.
            if !log::failure(&error) {
                print::note!("hark: {error:#}");
            }
            let wrong_use = error.chain().any(|cause| {
                cause.is::<config::Faults>()
                    || cause.is::<question::FilterFault>()
                    || cause.is::<WrongUse>()
            });
            if wrong_use { ExitCode::from(WRONG_USE) } else { ExitCode::FAILURE }
        }
    }
}

/// Raises the limit of open files to the maximum that this process may set, since every connection
/// is a file. The usual limit of 1,024 is meant for programs that keep files in a bit set.
fn allow_files() {
    let allowed = getrlimit(Resource::Nofile);
    // Raising the limit to its maximum does not fail. The server reports a limit that is too low.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: allowed.maximum, ..allowed });
}

fn carry_out(cli: Cli) -> anyhow::Result<ExitCode> {
    if let Some(why) = cli.command.of_no_network().filter(|_| cli.location.network.is_some()) {
        return Err(WrongUse(format!("{why}; leave --network out")).into());
    }
    // These commands need no archive, so they run even if the configuration is invalid.
    match &cli.command {
        Command::Config(args) => return commands::config::run(args, &cli.location),
        Command::Completions(args) => return commands::help::completions(args, cli::completed()),
        Command::Man(args) => return commands::help::man(args, cli::command()),
        Command::Bench(args) => return hark_bench::run(args, commands::bench::OPENERS),
        _ => {}
    }
    let one_shelf = cli.location.network.is_some();
    let location = ArchiveLocation::new(cli.location).inspect_err(|_| {
        if let Command::Serve(args) = &cli.command {
            args.log_faults();
        }
    })?;
    match cli.command {
        Command::Serve(args) => commands::serve::run(&args, &location),
        Command::Import(args) => commands::import::run(&args, &location),
        Command::Export(args) => commands::export::run(&args, &location),
        Command::Backup(args) => commands::backup::run(&args, &location),
        Command::Restore(args) => commands::restore::run(&args, &location),
        Command::Copy(args) => commands::copy::run(&args, &location),
        Command::Adopt(args) => commands::adopt::run(&args, &location),
        Command::Sync(args) => commands::relays::sync::run(&args, &location),
        Command::Stream(args) => commands::relays::stream::run(&args, &location),
        Command::Router(args) => commands::relays::router::run(&args, &location),
        Command::Query(args) => commands::query::run(&args, &location),
        Command::Count(args) => commands::count::run(&args, &location),
        Command::Delete(args) => commands::delete::run(&args, &location),
        Command::Explain(args) => commands::explain::run(&args, &location),
        Command::Reload(args) => commands::reload::run(&args, &location),
        Command::Healthz(args) => commands::healthz::run(&args, &location),
        Command::Doctor(args) => commands::doctor::run(&args, &location),
        Command::Stats(args) => commands::stats::run(&args, &location),
        Command::Compact(args) => commands::maintenance::compact(&args, &location),
        Command::Check(args) => commands::maintenance::check(&args, &location),
        Command::Rebuild(args) => commands::maintenance::rebuild(&args, &location),
        Command::Salvage(args) => commands::salvage::run(&args, &location, one_shelf),
        Command::Migrate(args) => commands::migrate::run(&args, &location),
        Command::Cluster(args) => commands::cluster::run(&args, &location),
        #[cfg(feature = "devp2p")]
        Command::Whisper(args) => commands::whisper::run(&args, &location),
        Command::Config(_) | Command::Bench(_) | Command::Completions(_) | Command::Man(_) => {
            unreachable!("handled above, before the configuration is loaded")
        }
    }
}
