//! The slow check: while a server runs, it reads everything in the shelf, a little at a time and over
//! and over, and compares the segments with the log.
//!
//! Of each segment it sums the sections up and compares their checksums; then it reads the segment's
//! logs frame by frame, and looks each record up in the index by its id and its terms. What is
//! derived from the log is made again by maintenance (`maintenance/mend.rs`). What is not, a damaged
//! frame, is noted: records of answers in [`crate::damage`], files in [`StoreStats::damaged_files`].
//!
//! A pass begins with the first log and ends with the last. Only the first pass of a process begins
//! with a log chosen at random: so everything is read in the long run, however often the server is
//! restarted. What is in the system's cache is not read from the disk again.
//!
//! [`StoreStats::damaged_files`]: hark_archive::store::StoreStats::damaged_files

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::query::prepared::TermMap as _;
use hark_archive::store::ScrubStats;
use hark_archive::{Record, vital};

use crate::log::{HEADER, Log, LogFrame};
use crate::maintenance::MaintenanceError;
use crate::salvage::scan::{ScannedPart, scan_part};
use crate::segment::sidecar::SidecarKind;
use crate::segment::view::Segment;
use crate::segment::{self, RecordAddress, SECTIONS};
use crate::shelf::{EmbeddedShelf, random_u32};
use crate::store::EmbeddedStore;
use crate::view::ShelfView;

/// Bytes read in one step, about. One frame may have more.
const STEP_BYTES: usize = 256 << 10;
/// Longest pause between two steps.
const PAUSE_MAX: Duration = Duration::from_hours(1);

/// Where the slow check is, and what it has found.
#[derive(Default)]
pub(crate) struct ScrubState {
    place: Option<ScrubPlace>,
    /// Whether the pass began with the first log.
    is_whole: bool,
    /// Faults found in this pass.
    faults: u64,
    stats: ScrubStats,
    ended: Option<Instant>,
}

/// The log that is being read, with the segment that covers it.
struct ScrubPlace {
    log: u32,
    /// Generation of the log, number of its segment, and generation of the segment's addresses. If
    /// one of them changes, the log is begun again.
    files: (u32, Option<(u32, u32)>),
    /// The section being read, its bytes read so far, and their checksum. Sections are read with the
    /// first log of their segment.
    section: (usize, usize, u32),
    /// Bytes of the log that are read.
    offset: usize,
    /// Records whose row was found.
    found: u64,
    /// Parts of the log in which no frame is whole.
    lost: Vec<Range<u64>>,
    /// Whether the segment was found to be damaged.
    is_suspect: bool,
}

/// A log, and the segment that covers it.
struct ScrubTarget {
    log: Arc<Log>,
    segment: Option<Arc<Segment>>,
}

impl ScrubTarget {
    /// The first log of a view from the one numbered `from` on.
    fn next(view: &ShelfView, from: u32) -> Option<Self> {
        for segment in &view.segments {
            let mut logs = segment.logs.iter().flatten();
            if let Some(log) = logs.find(|log| log.number >= from) {
                return Some(Self { log: Arc::clone(log), segment: Some(Arc::clone(segment)) });
            }
        }
        let heads = view.frozen.iter().chain([&view.active]);
        let log = heads.map(|head| &head.log).find(|log| log.number >= from)?;
        Some(Self { log: Arc::clone(log), segment: None })
    }

    fn files(&self) -> (u32, Option<(u32, u32)>) {
        let of = |segment: &Arc<Segment>| (segment.entry.number, segment.entry.addresses);
        (self.log.generation, self.segment.as_ref().map(of))
    }

    /// Whether the sections of the segment are read with this log.
    fn is_first(&self) -> bool {
        let first = self.segment.as_ref().and_then(|segment| segment.logs.iter().flatten().next());
        first.is_some_and(|first| first.number == self.log.number)
    }

    fn begin(&self) -> ScrubPlace {
        let sections = if self.is_first() { 0 } else { SECTIONS.len() };
        ScrubPlace {
            log: self.log.number,
            files: self.files(),
            section: (sections, 0, 0),
            offset: HEADER as usize,
            found: 0,
            lost: Vec::new(),
            is_suspect: false,
        }
    }
}

/// Starts the thread of the slow check, if the options call for one.
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
            // A pass over nothing takes no time.
            let pause = if has_ended {
                PAUSE_MAX.min(within)
            } else {
                within.mul_f64(share).min(PAUSE_MAX)
            };
            next = next.max(Instant::now()) + pause;
        }
    })?;
    Ok(Some(thread))
}

impl EmbeddedStore {
    /// Runs a whole pass of the slow check at full speed, then the maintenance that it calls for.
    pub fn scrub(&self) -> Result<ScrubStats, MaintenanceError> {
        let shelf = &self.shelf;
        {
            let mut state = shelf.scrub.lock();
            (state.place, state.is_whole, state.faults) = (None, true, 0);
            state.stats.pass_bytes = 0;
        }
        while !shelf.scrub_step().1 {}
        shelf.maintain_all()?;
        Ok(shelf.scrub_stats())
    }
}

impl ScrubState {
    fn end_pass(&mut self) {
        if self.is_whole {
            self.stats.passes += 1;
            self.stats.last_faults = self.faults;
            self.ended = Some(Instant::now());
        }
        (self.place, self.is_whole, self.faults) = (None, true, 0);
        self.stats.pass_bytes = 0;
    }
}

impl EmbeddedShelf {
    /// The state of the slow check.
    pub(crate) fn scrub_stats(&self) -> ScrubStats {
        let total_bytes = Self::scrubbed_bytes(&self.view.load());
        let state = self.scrub.lock();
        let last_pass_age = state.ended.map(|ended| ended.elapsed());
        ScrubStats { total_bytes, last_pass_age, ..state.stats }
    }

    /// Counts a segment that was made again because it was damaged.
    pub(crate) fn note_repaired(&self) {
        self.scrub.lock().stats.repaired += 1;
    }

    /// Bytes that a pass reads.
    fn scrubbed_bytes(view: &ShelfView) -> u64 {
        let logs = view.segments.iter().flat_map(|segment| segment.logs.iter().flatten());
        let logs = logs.chain(view.heads().map(|head| &head.log)).map(|log| log.written());
        logs.sum::<u64>() + view.segments.iter().map(|s| s.file.bytes()).sum::<u64>()
    }

    fn begin_anywhere(&self) {
        let view = self.view.load();
        let sealed = view.segments.iter().flat_map(|segment| segment.logs.iter().flatten());
        let logs: Vec<u32> = sealed.map(|log| log.number).collect();
        // Without a random number it begins with the first.
        let chosen = random_u32().unwrap_or(0) as usize % logs.len().max(1);
        let from = logs.get(chosen).copied().unwrap_or(0);
        let mut state = self.scrub.lock();
        state.is_whole = chosen == 0;
        state.place = ScrubTarget::next(&view, from).map(|target| target.begin());
    }

    /// Reads the next bytes. Returns how many, and whether the pass has ended.
    fn scrub_step(&self) -> (u64, bool) {
        let view = self.view.load_full();
        let mut state = self.scrub.lock();
        let place = state.place.take();
        let from = place.as_ref().map_or(0, |place| place.log);
        let Some(target) = ScrubTarget::next(&view, from) else {
            state.end_pass();
            return (0, true);
        };
        let is_same =
            |place: &ScrubPlace| place.log == target.log.number && place.files == target.files();
        let mut place = place.filter(is_same).unwrap_or_else(|| target.begin());
        let read = match &target.segment {
            Some(segment) if place.section.0 < SECTIONS.len() => {
                self.read_section(segment, &mut place, &mut state)
            }
            _ => self.read_frames(&target, &mut place, &mut state),
        };
        let is_read =
            place.section.0 == SECTIONS.len() && place.offset as u64 >= target.log.written();
        if is_read {
            self.end_log(&target, &mut place, &mut state);
            let next = target.log.number.saturating_add(1);
            place = match ScrubTarget::next(&view, next) {
                Some(next) => next.begin(),
                None => ScrubPlace { log: next, ..place },
            };
        }
        state.place = Some(place);
        state.stats.read_bytes += read;
        state.stats.pass_bytes += read;
        (read, false)
    }

    /// Reads a part of a section of a segment.
    fn read_section(
        &self,
        segment: &Arc<Segment>,
        place: &mut ScrubPlace,
        state: &mut ScrubState,
    ) -> u64 {
        let (at, from, sum) = place.section;
        let Some(&section) = SECTIONS.get(at) else { return 0 };
        let (sum, read) = segment.file.sum_of_part(section, from..from + STEP_BYTES, sum);
        place.section = (at, from + read, sum);
        if read < STEP_BYTES {
            place.section = (at + 1, 0, 0);
            if !segment.file.is_sum_of(section, sum) {
                let what = format!("its section {section:?} is damaged");
                self.suspect(segment, &what, place, state);
            }
        }
        if place.section.0 == SECTIONS.len() && !segment.addresses.is_sound() {
            state.faults += 1;
            let entry = &segment.entry;
            let path = SidecarKind::Addresses.path(&self.dir, entry.number, entry.addresses);
            self.note_damaged_file(path, "damaged; the next start makes it again".into());
        }
        read as u64
    }

    /// Reads the next frames of a log.
    fn read_frames(
        &self,
        target: &ScrubTarget,
        place: &mut ScrubPlace,
        state: &mut ScrubState,
    ) -> u64 {
        let (log, bytes) = (&target.log, target.log.bytes());
        let from = place.offset;
        log.read_ahead_part(from..(from + STEP_BYTES).min(bytes.len()));
        let mut terms = Vec::new();
        while place.offset < bytes.len() && place.offset < from + STEP_BYTES {
            let (part, next) = scan_part(bytes, place.offset, log.salt());
            match (part, &target.segment) {
                (ScannedPart::Frame(at, LogFrame::Put(record)), Some(segment)) => {
                    let address = u32::try_from(at).ok();
                    let address = address.map(|offset| RecordAddress { log: log.number, offset });
                    if let (Ok(record), Some(at)) = (Record::new(record), address)
                        && let Some(is_right) = self.agrees(segment, &record, at, &mut terms)
                    {
                        place.found += 1;
                        if !is_right {
                            self.suspect(segment, "it disagrees with its log", place, state);
                        }
                    }
                }
                (ScannedPart::Lost(range), _) => place.lost.push(range),
                _ => {}
            }
            place.offset = next;
        }
        (place.offset - from) as u64
    }

    /// Whether the row of a record says what the record says. `None` if there is no such row, which
    /// is so if the record was dead when the segment was made.
    fn agrees(
        &self,
        segment: &Segment,
        record: &Record<'_>,
        at: RecordAddress,
        terms: &mut Vec<u64>,
    ) -> Option<bool> {
        let file = &segment.file;
        let mut rows = file.rows_of_id(self.terms.id(record.id()));
        let row = rows.find(|&row| segment.address(row) == at)?;
        self.terms.of(record, terms);
        let has = |term: &u64| file.has_row(*term, record.kind(), row);
        Some(file.time(row) == record.time() && terms.iter().all(has))
    }

    /// Compares the number of rows that were found with that of the segment, and notes what is lost.
    fn end_log(&self, target: &ScrubTarget, place: &mut ScrubPlace, state: &mut ScrubState) {
        let log = &target.log;
        let is_lost = |at: u64| {
            let part = place.lost.partition_point(|part| part.end <= at);
            place.lost.get(part).is_some_and(|part| part.contains(&at))
        };
        let mut unfound = 0;
        if let Some(segment) = &target.segment {
            let rows = (0..segment.file.rows).map(|row| (row, segment.address(row)));
            for (row, at) in rows.filter(|(_, at)| at.log == log.number) {
                if !is_lost(u64::from(at.offset)) {
                    unfound += 1;
                } else if !segment.dead.dead.get(row) {
                    log.note_damaged(at.offset);
                }
            }
            unfound -= place.found.min(unfound);
            if unfound > 0 {
                let what = format!("{unfound} of its records are not found by their ids");
                self.suspect(segment, &what, place, state);
            }
        }
        if let Some(first) = place.lost.first() {
            state.faults += place.lost.len() as u64;
            let what =
                format!("damaged from byte {} on, in {} parts", first.start, place.lost.len());
            self.note_damaged_file(log.path().into(), what);
        }
    }

    /// Has maintenance make a segment again.
    fn suspect(
        &self,
        segment: &Segment,
        what: &str,
        place: &mut ScrubPlace,
        state: &mut ScrubState,
    ) {
        if std::mem::replace(&mut place.is_suspect, true) {
            return;
        }
        state.faults += 1;
        let number = segment.entry.number;
        if self.known.lock().suspects.insert(number) {
            let file = segment::path(&self.dir, number);
            tracing::error!(file = %file.display(), what, "the slow check found a damaged segment");
            self.call_maintenance();
        }
    }
}
