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
mod program;
mod question;
mod stores;
mod successor;
mod waiting;
mod watch;
mod when;
mod writer;
mod wrong_use;

use std::process::ExitCode;

use clap::FromArgMatches as _;

pub use crate::config::{
    Config, DoorFacts, NETWORKS, NetworkService, NetworkSetup, ReloadCallback, ShelfConfig,
};
pub use crate::location::ArchiveLocation;
pub use crate::program::{VERSION, allow_files, beside, exit_code, reflowed};
pub use crate::stores::{
    AddressForm, ArchiveCheck, ArchiveStore, CheckMeter, STORES, ServedShelf, ServedStore,
    ShelfOpener, ShelfPlace, StoreFacts, StoreLock, StoreSetup,
};
pub use crate::writer::OwnedStore;

use hark_server::moderation::Ruling;

use crate::cli::{Cli, Command};
use crate::wrong_use::WrongUse;

/// Runs the command line with the given networks and stores. The first network and the first store
/// are the defaults.
pub fn run(networks: &'static [NetworkSetup], stores: &'static [StoreSetup]) -> ExitCode {
    config::serve_these(networks);
    stores::open_these(stores);
    let matches = cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    allow_files();
    exit_code(carry_out(cli))
}

fn carry_out(cli: Cli) -> anyhow::Result<ExitCode> {
    if let Some(why) = cli.command.of_no_network().filter(|_| cli.location.network.is_some()) {
        return Err(WrongUse(format!("{why}; leave --network out")).into());
    }
    // These commands need no archive, so they run even if the configuration is invalid.
    match &cli.command {
        Command::Config(args) => return commands::config::run(args, &cli.location),
        Command::Init(args) => return commands::init::run(args, &cli.location),
        Command::Completions(args) => return commands::help::completions(args, cli::completed()),
        Command::Man(args) => return commands::help::man(args, cli::command()),
        Command::Bench(args) => {
            return commands::bench::run(args, cli.command.of_no_network());
        }
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
        Command::Clients(args) => commands::clients::run(&args, &location),
        Command::Kick(args) => commands::kick::run(&args, &location),
        Command::Invite(args) => commands::moderation::invite::run(&args, &location),
        Command::Ban(args) => commands::moderation::change::ban(&args, &location),
        Command::Unban(args) => commands::moderation::change::lift(Ruling::Ban, &args, &location),
        Command::Allow(args) => commands::moderation::change::allow(&args, &location),
        Command::Unallow(args) => {
            commands::moderation::change::lift(Ruling::Allow, &args, &location)
        }
        Command::Reports(args) => commands::reports::run(&args, &location),
        Command::Admin(args) => commands::admin::run(&args, &location),
        Command::List(args) => commands::moderation::list::run(&args, &location),
        Command::Log(args) => commands::moderation::log::run(&args, &location),
        Command::Healthz(args) => commands::healthz::run(&args, &location),
        Command::Doctor(args) => commands::doctor::run(&args, &location),
        Command::Stats(args) => commands::stats::run(&args, &location),
        Command::Top(args) => commands::top::run(&args, &location),
        Command::Compact(args) => commands::compact::run(&args, &location),
        Command::Check(args) => commands::check::run(&args, &location),
        Command::Rebuild(args) => commands::rebuild::run(&args, &location),
        Command::Salvage(args) => commands::salvage::run(&args, &location, one_shelf),
        Command::Migrate(args) => commands::migrate::run(&args, &location),
        Command::Cluster(args) => commands::cluster::run(&args, &location),
        Command::Waku(args) => commands::waku::run(&args, &location),
        #[cfg(feature = "devp2p")]
        Command::Whisper(args) => commands::whisper::run(&args, &location),
        Command::Config(_)
        | Command::Init(_)
        | Command::Bench(_)
        | Command::Completions(_)
        | Command::Man(_) => {
            unreachable!("handled above, before the configuration is loaded")
        }
    }
}
