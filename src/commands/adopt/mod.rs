//! `hark adopt`: copies the records of another server from its database or its files, which are
//! only read.
//!
//! A reader thread reads rows in batches, in the source's order, and converts them to records. The
//! main thread stores the records and saves the position. After a crash, the next run stores the
//! last batch again if its position was not saved. This does no harm, since each id is stored once.
//! At the end, all ids of the source are compared with the archive's.

mod copy;
mod database;
mod events;
mod mailserver;
mod nostr_rs_relay;
mod nostream;
mod nwaku;
mod pace;
mod position;
mod relay;
mod rows;
mod source_file;
mod sqlite;
mod strfry;
mod sweep;
mod tally;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::mailserver::AdoptMailserverArgs;
use self::nostr_rs_relay::AdoptNostrRsRelayArgs;
use self::nostream::AdoptNostreamArgs;
use self::nwaku::AdoptNwakuArgs;
use self::strfry::AdoptStrfryArgs;
use crate::location::ArchiveLocation;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct AdoptArgs {
    #[command(subcommand)]
    from: AdoptFrom,
}

#[derive(Debug, Subcommand)]
enum AdoptFrom {
    /// Adopt from nostream: the table `events` of its PostgreSQL database
    Nostream(AdoptNostreamArgs),
    /// Adopt from strfry: its LMDB database
    Strfry(AdoptStrfryArgs),
    /// Adopt from nostr-rs-relay: its SQLite database
    NostrRsRelay(AdoptNostrRsRelayArgs),
    /// Adopt from a mail server of Status: its LevelDB directory or its PostgreSQL database
    Mailserver(AdoptMailserverArgs),
    /// Adopt from nwaku: the PostgreSQL or SQLite database of its Store
    Nwaku(AdoptNwakuArgs),
}

pub(crate) fn run(args: &AdoptArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    match &args.from {
        AdoptFrom::Nostream(args) => nostream::run(args, location),
        AdoptFrom::Strfry(args) => strfry::run(args, location),
        AdoptFrom::NostrRsRelay(args) => nostr_rs_relay::run(args, location),
        AdoptFrom::Mailserver(args) => mailserver::run(args, location),
        AdoptFrom::Nwaku(args) => nwaku::run(args, location),
    }
}
