//! `hark adopt nostr-rs-relay`: copies the events of a nostr-rs-relay from its SQLite database, while
//! it runs or is stopped.

mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::source::NostrRsSource;
use super::relay::{self, AdoptedRelay, RelayAdoptArgs};
use crate::location::ArchiveLocation;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt nostr-rs-relay /var/lib/nostr-rs-relay/nostr.db
  hark adopt nostr-rs-relay .../nostr.db --follow    beside a relay in use, until Ctrl-C
  hark adopt nostr-rs-relay .../nostr.db --verify    once more, and compare every event

Only reads there, in short statements: the relay may go on. SQLite needs its files nostr.db-wal and
nostr.db-shm beside the database for that, so run this as root or as the relay's user.
Events come in the order in which the relay took them in, a batch at a time; where it is, is remembered
with each batch, so a run that was stopped or killed goes on when run again, and nothing comes twice. At
the end all events are looked up in the archive, which brings in what came late.
--follow brings what the relay accepts meanwhile, until Ctrl-C, which compares once more and ends.

Schemas 2 to 18 are read, as the relay has made them up to 0.9.0. A relay whose events are in PostgreSQL is
not read.

Every id is checked to be the hash of its event, so no value can have come over wrong. Signatures are not
checked, since the relay has done so; --verify-signatures does it again, at some 30 us an event on a core.
Deleted, expired and ephemeral events stay behind; what else is refused is counted by reason.")]
pub(super) struct AdoptNostrRsRelayArgs {
    /// The relay's database: the file nostr.db or its directory
    #[arg(value_name = "FILE")]
    from: PathBuf,
    #[command(flatten)]
    relay: RelayAdoptArgs,
}

pub(super) fn run(
    args: &AdoptNostrRsRelayArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let source = NostrRsSource::open(&args.from, location.config.limits.events.event_bytes_max)?;
    let relay = AdoptedRelay { name: "nostr-rs-relay", position_file: "adopt-nostr-rs-relay.json" };
    relay::run(source, &relay, &args.relay, location)
}
