//! `hark adopt nostr-rs-relay`: copies the events of a nostr-rs-relay from its SQLite database. The
//! relay may run or be stopped.

mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hark_networks::nostr::admit::longest_event;

use self::source::NostrRsSource;
use super::relay::{self, AdoptedRelay, RelayAdoptArgs};
use crate::location::ArchiveLocation;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt nostr-rs-relay /var/lib/nostr-rs-relay/nostr.db
  hark adopt nostr-rs-relay .../nostr.db --follow    beside a relay in use, until Ctrl-C
  hark adopt nostr-rs-relay .../nostr.db --verify    once more, and compare every event

The database is only read, in short statements, and the relay may keep running. SQLite needs the
files nostr.db-wal and nostr.db-shm beside the database for reading, so run this as root or as the
relay's user.

Events are copied in the order in which the relay accepted them, in batches. The position is saved
with each batch, so an interrupted run continues where it was, and nothing is stored twice. At the
end, all events are looked up in the archive, and missing events are copied. With --follow, newly
accepted events are copied until Ctrl-C; then all events are looked up once more, and the run ends.

Schemas 2 to 18 are supported, which the relay has used up to 0.9.0. Events in PostgreSQL are not
supported.

Every id must be the hash of its event, so no value can be copied wrongly. Signatures are not
checked, because the relay has checked them; --verify-signatures checks them again, in some 30 us
for each event on one core. Deleted, expired and ephemeral events are not copied. Other refused
events are counted by reason.")]
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
    let source = NostrRsSource::open(
        &args.from,
        longest_event(location.config.limits.events.event_bytes_max),
    )?;
    let relay = AdoptedRelay { name: "nostr-rs-relay", position_file: "adopt-nostr-rs-relay.json" };
    relay::run(source, &relay, &args.relay, location)
}
