//! `hark adopt mailserver`: copies the envelopes of a mail server of Status or go-ethereum, from
//! its LevelDB directory or from its PostgreSQL database.
//!
//! Rows are read in the order of their keys, which is the order of time. The last key of each batch
//! is saved, and the next run continues after this key.

mod adoption;
mod convert;
mod leveldb;
mod progress;
mod source;
mod sweep;

use std::process::ExitCode;

use hark_networks::whisper::Whisper;
use hark_networks::whisper::admit::EnvelopeBounds;

pub(super) use self::adoption::AdoptMailserverArgs;
use self::adoption::{MailAdoption, REASONS};
use self::progress::MailProgress;
use self::source::MailSource;
use super::pace::AdoptPace;
use super::sweep::finish;
use super::tally::AdoptTally;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print;

pub(super) fn run(
    args: &AdoptMailserverArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let mut source = MailSource::open(&args.from)?;
    let location = &location.of(&Whisper);
    let mut writer = location.import()?;
    hark_store_embedded::permissions::create_dir(&location.data)?;
    let mut progress = MailProgress::open(location, &source.name())?;
    if !progress.key.is_empty() {
        let envelopes = print::count(progress.envelopes, "envelope");
        print::note!("hark: continuing an earlier run, after {envelopes}");
    }
    let envelope_bytes_max = location.shelf_config().record_bytes_max;
    let mut adoption = MailAdoption {
        args,
        // No minimum proof of work applies here: the mail server has already compared each envelope
        // with the minimum of its time.
        bounds: EnvelopeBounds { envelope_bytes_max, pow_min: 0.0 },
        pace: AdoptPace::start(args.rate, &stop),
        tally: AdoptTally::new(REASONS),
    };
    adoption.copy(&mut source, &mut writer, &mut progress)?;
    let swept = if adoption.pace.is_stopped() {
        None
    } else {
        let swept = sweep::run(&mut source, &mut writer, location, &mut adoption)?;
        Some(swept).filter(|_| !adoption.pace.is_stopped())
    };
    writer.report_held();
    finish(&adoption.tally, &adoption.pace, args.json, swept.as_ref())
}
