//! `hark adopt strfry`: copies the events of a strfry relay from its LMDB database. The relay may
//! run or be stopped.

mod lmdb;
mod record;
mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hark_networks::nostr::admit::longest_event;

use self::source::StrfrySource;
use super::relay::{self, AdoptedRelay, RelayAdoptArgs};
use crate::location::ArchiveLocation;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt strfry /var/lib/strfry/strfry-db
  hark adopt strfry /var/lib/strfry/strfry-db --follow    beside a relay in use, until Ctrl-C
  hark adopt strfry /var/lib/strfry/strfry-db --verify    once more, and compare every event

The database is only read. Nothing is written, not even into the lock file, so strfry may keep
running and needs no restart.

Events are copied in the order in which strfry accepted them, in batches. The position is saved with
each batch, so an interrupted run continues where it was, and nothing is stored twice. At the end,
all events are looked up in the archive, and missing events are copied. With --follow, newly
accepted events are copied until Ctrl-C; then all events are looked up once more, and the run ends.

Databases of version 3 are supported, compressed or not; strfry has used this version since 1.0.0.
Copy a database of another version through an export: strfry export | hark import -

Every id must be the hash of its event, so no value can be copied wrongly. Signatures are not
checked, because strfry has checked them; --verify-signatures checks them again, in some 30 us for
each event on one core. Expired and ephemeral events are not copied. Other refused events are
counted by reason.")]
pub(super) struct AdoptStrfryArgs {
    /// strfry's database: the directory named by `db` in strfry.conf, or a file data.mdb
    #[arg(value_name = "DIR")]
    from: PathBuf,
    #[command(flatten)]
    relay: RelayAdoptArgs,
}

pub(super) fn run(args: &AdoptStrfryArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let source = StrfrySource::open(
        &args.from,
        longest_event(location.config.limits.events.event_bytes_max),
    )?;
    let relay = AdoptedRelay { name: "strfry", position_file: "adopt-strfry.json" };
    relay::run(source, &relay, &args.relay, location)
}
