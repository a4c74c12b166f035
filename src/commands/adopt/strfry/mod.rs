//! `hark adopt strfry`: copies the events of a strfry relay from its LMDB database, while it runs or
//! is stopped.

mod lmdb;
mod record;
mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::source::StrfrySource;
use super::relay::{self, AdoptedRelay, RelayAdoptArgs};
use crate::location::ArchiveLocation;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt strfry /var/lib/strfry/strfry-db
  hark adopt strfry /var/lib/strfry/strfry-db --follow    beside a relay in use, until Ctrl-C
  hark adopt strfry /var/lib/strfry/strfry-db --verify    once more, and compare every event

Only reads there, and writes nothing, not even into the lock file: strfry may go on, and needs no restart.
Events come in the order in which strfry took them in, a batch at a time; where it is, is remembered with
each batch, so a run that was stopped or killed goes on when run again, and nothing comes twice. At the
end all events are looked up in the archive, which brings in what came late.
--follow brings what strfry accepts meanwhile, until Ctrl-C, which compares once more and ends.

Databases of version 3 are read, as strfry makes them since 1.0.0, compressed or not. Any other comes over
by way of a file: strfry export | hark import -

Every id is checked to be the hash of its event, so no value can have come over wrong. Signatures are not
checked, since strfry has done so; --verify-signatures does it again, at some 30 us an event on a core.
Expired and ephemeral events stay behind; what else is refused is counted by reason.")]
pub(super) struct AdoptStrfryArgs {
    /// strfry's database: the directory named by `db` in strfry.conf, or a file data.mdb
    #[arg(value_name = "DIR")]
    from: PathBuf,
    #[command(flatten)]
    relay: RelayAdoptArgs,
}

pub(super) fn run(args: &AdoptStrfryArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let source = StrfrySource::open(&args.from, location.config.limits.events.event_bytes_max)?;
    let relay = AdoptedRelay { name: "strfry", position_file: "adopt-strfry.json" };
    relay::run(source, &relay, &args.relay, location)
}
