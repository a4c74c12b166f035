//! `hark adopt nostream`: copies the events of nostream's database while the database is in use.
//!
//! A reader thread reads rows in batches, in the order of their time, and converts them to records.
//! The main thread stores the records and saves the position. After a crash, the next run stores
//! the last batch again if its position was not saved. This does no harm, since each id is stored
//! once. Late rows have a time that the adoption has already passed. The module `late` finds these
//! rows with `--follow`, and the comparison of all ids finds them at the end.

mod adoption;
mod convert;
mod late;
mod progress;
mod source;
mod sweep;

use std::process::ExitCode;

pub(crate) use self::adoption::AdoptNostreamArgs;
use self::adoption::{Adoption, REASONS};
use self::progress::NostreamProgress;
use self::source::{NostreamSource, RowCursor};
use super::events::ConvertOptions;
use super::pace::AdoptPace;
use super::sweep::{report_faulty, stopped};
use super::tally::AdoptTally;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print;

pub(crate) fn run(
    args: &AdoptNostreamArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let mut source = NostreamSource::open(&args.url)?;
    let mut writer = location.import()?;
    hark_store_embedded::permissions::create_dir(&location.data)?;
    let mut progress = NostreamProgress::open(location, &source.name())?;
    // A saved transaction number above the current number is from another database of the same
    // name.
    let transaction = source.transaction()?;
    progress.since = progress.since.filter(|since| *since <= transaction).or(Some(transaction));
    if progress.at > RowCursor::default() {
        let events = print::count(progress.events, "event");
        print::note!("hark: continuing an earlier run, after {events}");
    }
    if !args.verify_signatures {
        print::note!(
            "hark: ids are checked, signatures are not, since nostream checked them; --verify-signatures checks them again"
        );
    }
    let mut adoption = Adoption {
        args,
        terms: ConvertOptions::new(location, args.verify_signatures),
        pace: AdoptPace::start(args.rate, &stop),
        tally: AdoptTally::new(REASONS),
    };
    adoption.copy(&mut source, &mut writer, &mut progress)?;
    let has_followed = args.follow && !adoption.stopped();
    if has_followed {
        adoption.follow(&mut source, &mut writer, &mut progress)?;
    }
    // An interrupt is the normal end of --follow, and all ids are compared. An interrupt before ends
    // the run at once.
    let swept = sweep::run(&mut source, &mut writer, location, &mut adoption, has_followed)?;
    let ids = swept.as_ref().map(|swept| (swept.to_json(), swept.rows()));
    adoption.tally.report(adoption.pace.seconds(), args.json, ids)?;
    writer.report_held();
    let Some(swept) = swept else { return Ok(stopped()) };
    report_faulty(swept.faulty());
    Ok(if swept.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
