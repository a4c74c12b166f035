//! `hark adopt`: copies the records of another server from its database or its files, which are
//! only read.
//!
//! A reader thread reads rows in batches, in the source's order, and converts them to records. The
//! main thread puts the records and saves the position. After a crash, the next run puts the last
//! batch again if its position was not saved. This does no harm, since each id is stored once. At
//! the end, all ids of the source are compared with the archive's.

mod copy;
mod database;
mod events;
mod mailserver;
mod nostr_rs_relay;
mod nostream;
mod pace;
mod position;
mod relay;
mod strfry;
mod sweep;
mod tally;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};

use self::mailserver::AdoptMailserverArgs;
use self::nostr_rs_relay::AdoptNostrRsRelayArgs;
use self::nostream::AdoptNostreamArgs;
use self::strfry::AdoptStrfryArgs;
use self::tally::AdoptTally;
use crate::commands::refusal::RefusalReason;
use crate::location::ArchiveLocation;
use crate::writer::HistoryWriter;

/// Number of batches to read ahead.
const AHEAD: usize = 2;

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
}

pub(crate) fn run(args: &AdoptArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    match &args.from {
        AdoptFrom::Nostream(args) => nostream::run(args, location),
        AdoptFrom::Strfry(args) => strfry::run(args, location),
        AdoptFrom::NostrRsRelay(args) => nostr_rs_relay::run(args, location),
        AdoptFrom::Mailserver(args) => mailserver::run(args, location),
    }
}

/// The result of converting rows.
#[derive(Debug, Default)]
struct ConvertedRows {
    records: Vec<Box<[u8]>>,
    /// The id of each record, as text.
    ids: Vec<String>,
    refused: Vec<(RefusalReason, String, String)>,
}

/// Makes records durable, and counts the outcomes and the refusals.
fn put(
    writer: &mut HistoryWriter,
    converted: ConvertedRows,
    tally: &mut AdoptTally,
) -> anyhow::Result<()> {
    let ConvertedRows { records, ids, refused } = converted;
    for (reason, id, words) in refused {
        tally.refuse(reason, &id, &words);
    }
    if !records.is_empty() {
        for (outcome, id) in writer.put(records)?.into_iter().zip(ids) {
            let outcome = outcome.map_err(anyhow::Error::msg).context(
                "the server could not store what it was given; look at its log, then run the \
                 adoption again: it continues where it stopped",
            )?;
            tally.outcome(outcome, &id);
        }
    }
    Ok(())
}

/// Returns an id as hex digits.
fn text(id: &[u8]) -> String {
    let mut out = Vec::with_capacity(64);
    hark_codec::hex::encode_into(id, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}
