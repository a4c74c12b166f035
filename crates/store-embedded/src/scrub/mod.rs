//! The slow check: while a server runs, it reads the whole shelf again and again, in small steps,
//! and compares the segments with the log.
//!
//! For each segment, the slow check verifies the checksums of the sections and of the addresses.
//! Then it reads the segment's logs frame by frame, and looks up each record in the index by the
//! record's id and terms (`read`). Maintenance makes damaged files that are derived from the log
//! again (`maintenance/mend.rs`). A damaged frame cannot be made again and is recorded: records in
//! [`crate::damage`], files in [`StoreStats::damaged_files`].
//!
//! A pass begins with the first log and ends with the last log. Only the first pass of a process
//! begins with a random log, so that all files are read in the long run, however often the server
//! restarts. Bytes in the system's cache are not read from the disk again.
//!
//! [`StoreStats::damaged_files`]: hark_archive::store::StoreStats::damaged_files

mod place;
mod read;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::store::ScrubStats;
use hark_archive::vital;
use parking_lot::Mutex;

use self::place::{ScrubPlace, ScrubTarget, SegmentScrub};
use crate::maintenance::MaintenanceError;
use crate::shelf::{EmbeddedShelf, random_u32};
use crate::store::EmbeddedStore;
use crate::view::ShelfView;

/// Approximate number of bytes read in one step. One frame may have more.
const STEP_BYTES: usize = 256 << 10;
/// Longest pause between two steps.
const PAUSE_MAX: Duration = Duration::from_hours(1);

/// The state of the slow check. A reader of the figures never waits for the disk.
#[derive(Default)]
pub(crate) struct ScrubState {
    /// Locked during a step.
    run: Mutex<ScrubRun>,
    told: Mutex<ScrubTold>,
}

/// The place of the slow check, and the number of faults.
#[derive(Default)]
struct ScrubRun {
    place: Option<ScrubPlace>,
    /// Whether the pass began with the first log.
    is_whole: bool,
    /// Faults found in this pass.
    faults: u64,
}

/// The figures of the slow check.
#[derive(Default)]
struct ScrubTold {
    stats: ScrubStats,
    ended: Option<Instant>,
}

/// Starts the thread of the slow check, if the options enable the slow check.
pub(crate) fn start(shelf: &Arc<EmbeddedShelf>) -> io::Result<Option<JoinHandle<()>>> {
    let Some(within) = shelf.options.scrub_within.filter(|within| !within.is_zero()) else {
        return Ok(None);
    };
    let shelf = Arc::clone(shelf);
    let thread = vital::spawn("hark-scrub", move || {
        shelf.begin_anywhere();
        let mut next = Instant::now();
        loop {
            let mut signal = shelf.signal.lock();
            while !signal.stop && (signal.resting || Instant::now() < next) {
                if signal.resting {
                    shelf.signalled.wait(&mut signal);
                } else {
                    shelf.signalled.wait_until(&mut signal, next);
                }
            }
            if signal.stop {
                return;
            }
            drop(signal);
            let (read, has_ended) = shelf.scrub_step();
            let total = EmbeddedShelf::scrubbed_bytes(&shelf.view.load()).max(1);
            let share = read as f64 / total as f64;
            let share = within.mul_f64(share);
            // A pass over an empty shelf takes no time.
            let pause = if has_ended { within } else { share }.min(PAUSE_MAX);
            next = next.max(Instant::now()) + pause;
        }
    })?;
    Ok(Some(thread))
}

impl EmbeddedStore {
    /// Runs a whole pass of the slow check at full speed, and then all due maintenance.
    pub fn scrub(&self) -> Result<ScrubStats, MaintenanceError> {
        let shelf = &self.shelf;
        shelf.begin_pass(&mut shelf.scrub.run.lock());
        while !shelf.scrub_step().1 {}
        shelf.maintain_all()?;
        Ok(shelf.scrub_stats())
    }
}

impl EmbeddedShelf {
    /// The figures of the slow check.
    pub(crate) fn scrub_stats(&self) -> ScrubStats {
        let total_bytes = Self::scrubbed_bytes(&self.view.load());
        let told = self.scrub.told.lock();
        let last_pass_age = told.ended.map(|ended| ended.elapsed());
        ScrubStats { total_bytes, last_pass_age, ..told.stats }
    }

    /// Counts a segment that was made again because it was damaged.
    pub(crate) fn note_repaired(&self) {
        self.scrub.told.lock().stats.repaired += 1;
    }

    /// Number of bytes that a pass reads.
    fn scrubbed_bytes(view: &ShelfView) -> u64 {
        let logs = view.segments.iter().flat_map(|segment| segment.logs.iter().flatten());
        let logs = logs.chain(view.heads().map(|head| &head.log)).map(|log| log.written());
        let index = view.segments.iter().map(|s| s.file.bytes() + s.addresses.bytes());
        logs.sum::<u64>() + index.sum::<u64>()
    }

    fn begin_anywhere(&self) {
        let view = self.view.load();
        let sealed = view.segments.iter().flat_map(|segment| segment.logs.iter().flatten());
        let logs: Vec<u32> = sealed.map(|log| log.number).collect();
        // Without a random number, the pass begins with the first log.
        let chosen = random_u32().unwrap_or(0) as usize % logs.len().max(1);
        let mut run = self.scrub.run.lock();
        run.is_whole = chosen == 0;
        run.place = logs.get(chosen).map(|&from| ScrubPlace::before(from));
    }

    fn begin_pass(&self, run: &mut ScrubRun) {
        *run = ScrubRun { place: None, is_whole: true, faults: 0 };
        self.scrub.told.lock().stats.pass_bytes = 0;
    }

    fn end_pass(&self, run: &mut ScrubRun) {
        if run.is_whole {
            let mut told = self.scrub.told.lock();
            told.stats.passes += 1;
            told.stats.last_faults = run.faults;
            told.ended = Some(Instant::now());
        }
        self.begin_pass(run);
    }

    /// Reads the next bytes. Returns the number of bytes read, and whether the pass has ended.
    fn scrub_step(&self) -> (u64, bool) {
        let view = self.view.load_full();
        let mut run = self.scrub.run.lock();
        let run = &mut *run;
        let mut place = run.place.take().unwrap_or_else(|| ScrubPlace::before(0));
        let Some(target) = ScrubTarget::next(&view, place.from) else {
            self.end_pass(run);
            return (0, true);
        };
        let (mut segment_place, mut log_place) =
            (target.segment_of(&mut place), target.log_of(&mut place));
        if let (Some(segment), Some(place)) = (&target.segment, &mut segment_place) {
            let number = segment.entry.number;
            if place.is_suspect && !self.known.lock().suspects.contains(&number) {
                // Maintenance has made the segment's addresses again.
                *place = SegmentScrub::new(number);
            }
        }
        let read = match (&target.segment, &mut segment_place) {
            (Some(segment), Some(place)) if !place.has_sections() => {
                self.scrub_section(segment, place, run)
            }
            (Some(segment), Some(place)) if !place.is_read() => {
                self.scrub_addresses(segment, place, run)
            }
            (_, place) => self.scrub_frames(&target, place.as_mut(), &mut log_place, run),
        };
        let log = &target.log;
        let is_log_read = log_place.given_up.is_some() || log_place.offset as u64 >= log.written();
        place.from = log.number;
        if is_log_read && segment_place.as_ref().is_none_or(SegmentScrub::is_read) {
            self.end_log(&target, segment_place.as_mut(), &log_place, run);
            place.from = log.number.saturating_add(1);
        } else {
            place.log = Some(log_place);
        }
        place.segment = segment_place;
        run.place = Some(place);
        let mut told = self.scrub.told.lock();
        told.stats.read_bytes += read;
        told.stats.pass_bytes += read;
        (read, false)
    }
}
