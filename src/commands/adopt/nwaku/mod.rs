//! `hark adopt nwaku`: copies the messages of an nwaku Store node (since 2026: logos-delivery) from
//! its PostgreSQL or SQLite database. The node may run or be stopped.
//!
//! Rows are read in the order of their time, in short statements, so that nwaku's own retention
//! never waits. The position of each batch is saved, and the next run continues there. Messages
//! that arrived late, by sync, have a time that the adoption has passed. The comparison at the end
//! finds these messages. The hash of each message is computed anew, and hashes in the source that
//! differ are reported.

mod adoption;
mod convert;
mod database;
mod file;
mod progress;
mod row;
mod source;
mod sweep;
mod target;

use std::process::ExitCode;

use hark_networks::waku::Waku;
use hark_networks::waku::admit::MessageBounds;

pub(super) use self::adoption::AdoptNwakuArgs;
use self::adoption::{NwakuAdoption, REASONS};
use self::progress::NwakuProgress;
use self::source::NwakuSource;
use super::pace::AdoptPace;
use super::sweep::finish;
use super::tally::AdoptTally;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print;

pub(super) fn run(args: &AdoptNwakuArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let location = &location.of(&Waku);
    let message_bytes_max = location.shelf_config().record_bytes_max;
    let mut source = NwakuSource::open(&args.from, message_bytes_max)?;
    let mut writer = location.import()?;
    hark_store_embedded::permissions::create_dir(&location.data)?;
    let mut progress = NwakuProgress::open(location, &source.name())?;
    if progress.messages > 0 {
        let messages = print::count(progress.messages, "message");
        print::note!("hark: continuing an earlier run, after {messages}");
    }
    target::warn_of_bounds(location, source.total()?);
    let bounds = MessageBounds { message_bytes_max, window_ns: None, ..MessageBounds::default() };
    let mut adoption = NwakuAdoption {
        args,
        bounds,
        pace: AdoptPace::start(args.rate, &stop),
        tally: AdoptTally::new(REASONS),
    };
    adoption.copy(&mut source, &mut writer, &mut progress)?;
    let has_followed = args.follow && !adoption.pace.is_stopped();
    if has_followed {
        adoption.follow(&mut source, &mut writer, &mut progress, location)?;
    }
    // An interrupt is the normal end of --follow, and all messages are looked up. An
    // interrupt before ends the run at once.
    let swept = sweep::run(&mut source, &mut writer, location, &mut adoption, has_followed)?;
    writer.report_held();
    finish(&adoption.tally, &adoption.pace, args.json, swept.as_ref())
}
