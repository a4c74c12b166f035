//! Copies the events of a relay that numbers its events in the order of their arrival.
//!
//! Rows are read in batches, by their numbers. The last number of each batch is saved, and the next
//! run continues after this number. Every batch is a separate short read, so a running relay never
//! waits for the adoption. A relay may reuse the number of a deleted event for a new event, after
//! the adoption has passed that number. The comparison at the end finds such events.

mod adoption;
mod progress;
pub(super) mod source;
pub(super) mod sweep;

use std::process::ExitCode;

use hark_networks::nostr::Nostr;

pub(super) use self::adoption::{AdoptedRelay, RelayAdoptArgs};
use self::adoption::{REASONS, RelayAdoption};
use self::progress::RelayProgress;
use self::source::RelaySource;
use super::events::ConvertOptions;
use super::pace::AdoptPace;
use super::sweep::finish;
use super::tally::AdoptTally;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print;

/// Adopts the events of a relay.
pub(super) fn run(
    mut source: impl RelaySource,
    relay: &AdoptedRelay,
    args: &RelayAdoptArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let location = &location.of(&Nostr);
    let mut writer = location.import()?;
    hark_store_embedded::permissions::create_dir(&location.data)?;
    let mut progress = RelayProgress::open(location, relay.position_file, &source.name())?;
    if progress.number > 0 {
        let events = print::count(progress.events, "event");
        print::note!("hark: continuing an earlier run, after {events}");
    }
    if !args.verify_signatures {
        print::note!(
            "hark: ids are checked, signatures are not, since {} checked them; --verify-signatures checks them again",
            relay.name
        );
    }
    let mut adoption = RelayAdoption {
        args,
        relay,
        terms: ConvertOptions::new(location, args.verify_signatures),
        pace: AdoptPace::start(args.rate, &stop),
        tally: AdoptTally::new(REASONS),
    };
    adoption.copy(&mut source, &mut writer, &mut progress)?;
    let has_followed = args.follow && !adoption.pace.is_stopped();
    if has_followed {
        adoption.follow(&mut source, &mut writer, &mut progress)?;
    }
    // An interrupt is the normal end of --follow, and all events are looked up. An
    // interrupt before ends the run at once.
    let swept = sweep::run(&mut source, &mut writer, location, &mut adoption, has_followed)?;
    writer.report_held();
    finish(&adoption.tally, &adoption.pace, args.json, swept.as_ref())
}
