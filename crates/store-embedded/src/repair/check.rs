//! Checking a shelf: every checksum, and every posting list and rank against the records.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::query::prepared::TermMap as _;
use hark_archive::query::source::Source;
use hark_archive::{Id, Record};
use hark_codec::id_sum::IdSum;

use super::salvage::scan::{ScannedPart, scan};
use super::segments::DeletionMap;
use crate::disk::Disk;
use crate::engine::open_error::ShelfOpenError;
use crate::engine::shelf_dir::existing_manifest;
use crate::head::{Head, HeadView, ROWS_MAX};
use crate::log::{self, Log, LogEnd, LogError, LogFrame};
use crate::manifest::{Manifest, SegmentEntry};
use crate::map::unreadable;
use crate::options::{EmbeddedOptions, JobProgress, OnProgress};
use crate::segment::file::SegmentFile;
use crate::segment::open::open_segment;
use crate::segment::values::Value;
use crate::segment::view::{Segment, SegmentView};
use crate::segment::{self, RecordAddress, SECTIONS, SUMMED_ROWS};
use crate::term::{TermBuffers, TermHasher, WORDS, lists_words};

/// A fault in a file of a shelf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The file with the fault.
    pub file: PathBuf,
    /// A description of the fault.
    pub what: String,
    /// Whether `hark rebuild` repairs the fault: the log is sound, and only files derived from the
    /// log are damaged.
    pub mendable: bool,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.what)?;
        f.write_str(if self.mendable {
            " (`hark rebuild` makes it again from the log)"
        } else {
            " (restore it from a backup, or salvage the rest)"
        })
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Live records.
    pub records: u64,
    /// Deleted records that still take disk space.
    pub dead: u64,
    /// Segments.
    pub segments: u64,
    /// Logs.
    pub logs: u64,
    /// Bytes of an unfinished batch at the end of the last log, which the next start cuts off.
    pub torn_bytes: u64,
    /// The faults found; empty if the shelf is sound.
    pub faults: Vec<FileFault>,
}

/// Maximum number of faults of one file that are listed one by one; further faults are summed up.
const FAULTS_EACH: usize = 5;

struct ShelfCheck<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    manifest: Manifest,
    terms: TermHasher,
    deletes: DeletionMap,
    report: CheckReport,
    /// Number of live records by log, according to the logs.
    live: HashMap<u32, u64>,
}

/// Maximum number of attempts at a check while the maintenance of a running server removes files.
const TRIES: usize = 200;

/// Checks a shelf. A server may be running on it: if the server replaces files meanwhile, the check
/// begins again.
pub fn check(
    dir: &Path,
    options: &EmbeddedOptions,
    progress: OnProgress<'_>,
) -> Result<CheckReport, ShelfOpenError> {
    let read = || existing_manifest(&*options.disk, dir);
    let mut manifest = read()?;
    for _ in 1..TRIES {
        let report = check_files(dir, options, manifest.clone(), progress);
        let now = read()?;
        if report.faults.is_empty() || now == manifest {
            return Ok(report);
        }
        manifest = now;
    }
    Ok(check_files(dir, options, manifest, progress))
}

fn check_files(
    dir: &Path,
    options: &EmbeddedOptions,
    manifest: Manifest,
    progress: OnProgress<'_>,
) -> CheckReport {
    let disk = &*options.disk;
    let terms = TermHasher::new(&manifest.secret, options);
    let deletes = DeletionMap::none();
    let (report, live) = (CheckReport::default(), HashMap::new());
    let mut check = ShelfCheck { disk, dir, manifest, terms, deletes, report, live };
    // All segments are opened at the start: files that a server's maintenance removes later can
    // still be read.
    let entries = check.manifest.segments.clone();
    let opened: Vec<Result<Segment, ShelfOpenError>> = entries
        .iter()
        .map(|entry| {
            open_segment(
                (disk, dir),
                entry,
                &check.manifest,
                check.terms.clone(),
                None,
                &Arc::default(),
            )
        })
        .collect();
    let total = (check.manifest.logs.len() * 2 + check.manifest.segments.len()) as u64;
    let mut done = 0;
    let mut step = |what| {
        progress(JobProgress { what, done, total });
        done += 1;
    };
    for at in 0..check.manifest.logs.len() {
        step("reading deletions");
        check.read_deletes(at);
    }
    for at in 0..check.manifest.logs.len() {
        step("checking logs");
        check.log(at);
    }
    for (entry, opened) in entries.iter().zip(opened) {
        step("checking segments");
        check.segment(entry, opened);
    }
    progress(JobProgress { what: "checked", done: total, total });
    check.report
}

/// Whether a log may have more records after this end of a replay, which only `hark salvage`
/// recovers.
fn has_more(end: &Result<LogEnd, LogError>, is_last: bool) -> bool {
    match end {
        Ok(end) => end.good < end.len && !is_last,
        Err(error) => matches!(error, LogError::Damaged { .. }),
    }
}

impl ShelfCheck<'_> {
    fn fault(&mut self, file: PathBuf, what: impl Into<String>, mendable: bool) {
        self.report.faults.push(FileFault { file, what: what.into(), mendable });
    }

    fn read_deletes(&mut self, at: usize) {
        let entry = &self.manifest.logs[at];
        let path = log::path(self.dir, entry.number, entry.generation);
        let is_last = at + 1 == self.manifest.logs.len();
        let (number, generation, deletes) = (entry.number, entry.generation, &mut self.deletes);
        let mut add = |offset, frame: LogFrame<'_>| {
            if let LogFrame::Delete { id, log } = frame {
                deletes.add(id, log, RecordAddress { log: number, offset });
            }
        };
        let end = log::replay(self.disk, &path, (number, generation), &mut add);
        if has_more(&end, is_last) {
            // `log` below reports the faults of a log.
            let _ = scan_file(self.disk, &path, (number, generation), &mut add);
        }
    }

    fn log(&mut self, at: usize) {
        let entry = self.manifest.logs[at].clone();
        let path = log::path(self.dir, entry.number, entry.generation);
        let last = at + 1 == self.manifest.logs.len();
        let (mut live, mut dead, mut bad) = (0, 0, 0);
        let deletes = &self.deletes;
        let id = (entry.number, entry.generation);
        let mut lost_parts = Vec::new();
        // Records that no segment covers are found through a head, which every start builds from
        // the log.
        let is_sealed = self.manifest.is_sealed(entry.number);
        let mut head =
            (!is_sealed).then(|| OpenLog::new(self.disk, self.dir, id, self.terms.clone()));
        let end = log::replay(self.disk, &path, id, &mut |offset, frame| {
            let LogFrame::Put(bytes) = frame else { return };
            match Record::new(bytes) {
                Ok(record) if record.check().is_ok() => {
                    let at = RecordAddress { log: entry.number, offset };
                    let is_dead = deletes.hit(record.id(), at);
                    *if is_dead { &mut dead } else { &mut live } += 1;
                    if let Some(Ok(head)) = &mut head {
                        head.put(&record, offset, is_dead);
                    }
                }
                _ => bad += 1,
            }
        });
        if has_more(&end, last) {
            (live, dead, bad) = (0, 0, 0);
            let scanned = scan_file(self.disk, &path, id, &mut |offset, frame| {
                if let LogFrame::Put(bytes) = frame
                    && let Ok(record) = Record::new(bytes)
                {
                    let at = RecordAddress { log: entry.number, offset };
                    *if deletes.hit(record.id(), at) { &mut dead } else { &mut live } += 1;
                }
            });
            lost_parts = scanned.unwrap_or_default();
        }
        let lost = match (head, &end) {
            (Some(Ok(head)), Ok(end)) => head.lost(end.good),
            // Reported below as a fault of the log.
            _ => 0,
        };
        self.report.logs += 1;
        self.report.records += live;
        self.report.dead += dead;
        self.live.insert(entry.number, live);
        match end {
            Err(error) => {
                let mendable = matches!(error, LogError::TooLong { .. });
                // The fault names the file.
                let what = match &error {
                    LogError::Damaged { offset, .. } => format!("damaged at byte {offset}"),
                    error => error.to_string(),
                };
                self.fault(path.clone(), what, mendable);
            }
            Ok(end) if end.good < end.len && last => self.report.torn_bytes = end.len - end.good,
            Ok(end) if end.good < end.len => {
                self.fault(path.clone(), format!("damaged at byte {}", end.good), false);
            }
            Ok(_) => {}
        }
        // The first part is reported above.
        for part in lost_parts.iter().skip(1).take(FAULTS_EACH) {
            self.fault(path.clone(), format!("damaged at byte {}", part.start), false);
        }
        let more = lost_parts.len().saturating_sub(FAULTS_EACH + 1);
        if more > 0 {
            self.fault(path.clone(), format!("damaged in {more} more parts"), false);
        }
        if lost > 0 {
            let what = format!("{lost} of its {live} live records are not found by their ids");
            self.fault(path.clone(), what, false);
        }
        if bad > 0 {
            self.fault(path, format!("{bad} records cannot be read"), false);
        }
    }

    fn segment(&mut self, entry: &SegmentEntry, opened: Result<Segment, ShelfOpenError>) {
        let path = segment::path(self.dir, entry.number);
        self.report.segments += 1;
        let segment = match opened {
            Ok(segment) => Arc::new(segment),
            Err(ShelfOpenError::Io { path, cause }) => {
                let mendable = path.extension().is_none_or(|ending| ending != "log")
                    || cause.kind() == io::ErrorKind::FileTooLarge;
                return self.fault(path, cause.to_string(), mendable);
            }
            Err(error) => return self.fault(path, error.to_string(), true),
        };
        for section in segment.file.damaged_sections() {
            self.fault(path.clone(), format!("section {section:?} is damaged"), true);
        }
        if segment.is_unreadable() {
            return self.fault(path, unreadable().to_string(), true);
        }
        let mut faults = FaultCount { path: path.clone(), count: 0 };
        self.rows(&segment, &mut faults);
        self.lists(&segment, &mut faults);
        if faults.count > FAULTS_EACH {
            let more = faults.count - FAULTS_EACH;
            self.fault(path, format!("{more} more faults of the same kinds"), true);
        }
    }

    fn count_fault(&mut self, faults: &mut FaultCount, what: String) {
        faults.count += 1;
        if faults.count <= FAULTS_EACH {
            self.fault(faults.path.clone(), what, true);
        }
    }

    /// Checks every row against its record: time, order, id index, dead or alive.
    fn rows(&mut self, segment: &Arc<Segment>, faults: &mut FaultCount) {
        let view = SegmentView { segment: Arc::clone(segment), writing: false };
        let mut before: Option<(u64, Id)> = None;
        let mut live: HashMap<u32, u64> = HashMap::new();
        for row in 0..segment.file.rows {
            let (dead, address) = (segment.dead.dead.get(row), segment.address(row));
            if address == RecordAddress::GONE {
                if !dead {
                    self.count_fault(faults, format!("row {row} is alive, but its record is gone"));
                }
                continue;
            }
            let Some(record) = segment.record(row) else {
                self.count_fault(faults, format!("row {row} does not lead to its record"));
                continue;
            };
            let here = (record.time(), *record.id());
            if segment.file.id(row).is_some_and(|id| id != here.1) {
                self.count_fault(faults, format!("row {row} has the id of another record"));
            }
            if before.is_some_and(|(time, id)| (time, here.1) < (here.0, id)) {
                self.count_fault(faults, format!("row {row} is out of order"));
            }
            before = Some(here);
            if !dead {
                *live.entry(address.log).or_default() += 1;
                if view.find(record.id(), self.terms.id(record.id())) != Some(row) {
                    self.count_fault(faults, format!("row {row} is not found by its id"));
                }
            }
            let deleted_while_sealed = self.deletes.hit(record.id(), address);
            if dead && !deleted_while_sealed {
                self.count_fault(
                    faults,
                    format!("row {row} is dead, but the log does not delete it"),
                );
            }
        }
        // Every start applies the deletions in logs that are not sealed yet.
        let first_open = self.manifest.logs.iter().find(|l| !self.manifest.is_sealed(l.number));
        let pending: u64 = first_open.map_or(0, |open| self.deletes.since(open.number));
        for log in segment.logs.iter().flatten() {
            let said = self.live.get(&log.number).copied().unwrap_or(0);
            let found = live.get(&log.number).copied().unwrap_or(0);
            if found < said || found > said + pending {
                self.count_fault(
                    faults,
                    format!("{found} rows of log {} are alive, {said} should be", log.number),
                );
            }
        }
    }

    /// Checks the posting lists against the records, by sums that do not depend on the order. So
    /// the check keeps no list in memory.
    fn lists(&mut self, segment: &Arc<Segment>, faults: &mut FaultCount) {
        let file = &segment.file;
        let gone = |row: u32| segment.address(row) == RecordAddress::GONE;
        let mut sums = [(0u64, 0u64); 2];
        let mut add = |at: usize, term: u64, kind: u32, row: u32| {
            let mixed = (term ^ u64::from(kind).rotate_left(40) ^ u64::from(row))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let (sum, count) = &mut sums[at];
            (*sum, *count) = (sum.wrapping_add(mixed ^ mixed >> 32), *count + 1);
        };
        let mut terms = TermBuffers::default();
        for row in (0..file.rows).filter(|&row| !gone(row)) {
            if let Some(record) = segment.record(row) {
                if segment.has_words() {
                    self.terms.of(&record, &mut terms);
                } else {
                    self.terms.of_labels(&record, &mut terms);
                }
                for &term in &terms.terms {
                    add(0, term, record.kind(), row);
                }
                for term in terms.word_terms() {
                    add(0, term, record.kind(), row);
                }
            }
        }
        let mut last = None;
        for entry in 0..file.entries() {
            let here = (file.entry_term(entry), file.kind(entry));
            if last.is_some_and(|last| last >= here) {
                self.count_fault(
                    faults,
                    format!("entry {entry} of the dictionary is out of order"),
                );
            }
            last = Some(here);
            let mut before = None;
            for row in file.list(entry).map(|at| file.posting(at)) {
                if before.is_some_and(|before| before >= row) || row >= file.rows {
                    self.count_fault(faults, format!("list {entry} is out of order"));
                    break;
                }
                before = Some(row);
                if !gone(row) {
                    add(1, here.0, here.1, row);
                }
            }
        }
        if segment.has_words() {
            self.words(segment, faults, &mut |term, kind, row| {
                if !gone(row) {
                    add(1, term, kind, row);
                }
            });
        }
        // The check cannot know which words a segment of another configuration has indexed.
        let has_other_words = lists_words(file.listed()) && !segment.has_words();
        if sums[0] != sums[1] && !has_other_words {
            let what = format!(
                "the lists do not agree with the records ({} entries, {} expected)",
                sums[1].1, sums[0].1
            );
            self.count_fault(faults, what);
        }
        let expiring: Vec<(u64, u32)> = file.expiries().collect();
        let listed: std::collections::HashSet<(u64, u32)> = expiring.iter().copied().collect();
        for row in (0..file.rows).filter(|&row| !gone(row)) {
            let expires = segment.record(row).and_then(|record| record.expires());
            if expires.is_some_and(|at| !listed.contains(&(at, row))) {
                self.count_fault(faults, format!("row {row} is missing from the list of expiries"));
            }
        }
        if !expiring.is_sorted() {
            self.count_fault(faults, "the list of expiries is out of order".into());
        }
        self.values(segment, faults);
        self.sums(file, faults);
        debug_assert_eq!(SECTIONS.len(), 15, "a new section needs its check here");
    }

    /// Checks the order of the words and of their lists, and passes the term, kind and row of each
    /// posting to `each`.
    fn words(
        &mut self,
        segment: &Segment,
        faults: &mut FaultCount,
        each: &mut impl FnMut(u64, u32, u32),
    ) {
        let words = segment.file.words();
        let (mut last, mut reader, mut at) = (None, words.read(), 0);
        while reader.advance() {
            let Ok(word) = str::from_utf8(&reader.word) else {
                self.count_fault(faults, format!("word {at} is no text"));
                continue;
            };
            if last.as_deref().is_some_and(|last: &str| last >= word) {
                self.count_fault(faults, format!("word {at} is out of order"));
            }
            last = Some(word.to_owned());
            at += 1;
            let terms: Vec<u64> = self.terms.of_word(word).map(|(_, term)| term).collect();
            let mut before = None;
            for ((kind, class), list) in reader.lists() {
                let mut rows = list.rows(words.blocks);
                let is_sound = rows.try_fold(None, |before, row| {
                    let is_next = before.is_none_or(|before| before < row);
                    each(terms[usize::from(class)], kind, row);
                    (is_next && row < segment.file.rows).then_some(Some(row))
                });
                if is_sound.is_none() || before >= Some((kind, class)) {
                    self.count_fault(faults, format!("a list of word {at} is out of order"));
                }
                before = Some((kind, class));
            }
        }
    }

    /// Checks the sums of ids. The ids of live rows were compared with their records.
    fn sums(&mut self, file: &SegmentFile, faults: &mut FaultCount) {
        let mut sum = IdSum::default();
        for (row, id) in (0..file.rows).map_while(|row| Some((row, file.id(row)?))) {
            if row % SUMMED_ROWS == 0 && file.sum_before(row) != sum {
                let what = format!("the sum of the ids before row {row} is wrong");
                self.count_fault(faults, what);
            }
            sum.add(&id);
        }
        if file.has_ids && file.sum_before(file.rows) != sum {
            self.count_fault(faults, "the sum of all ids is wrong".into());
        }
    }

    /// Checks the values of listed labels: the list has all values of live rows, and every value
    /// has a row.
    fn values(&mut self, segment: &Segment, faults: &mut FaultCount) {
        let (file, listed) = (&segment.file, segment.file.listed());
        let is_live = |row: &u32| !segment.dead.dead.get(*row);
        let live = if listed.is_empty() { 0 } else { file.rows };
        let records = (0..live).filter(is_live).filter_map(|row| segment.record(row));
        let labels = records.flat_map(|record| record.labels());
        let mut missing: BTreeSet<Value<'_>> =
            labels.filter(|(name, _)| listed.contains(name)).collect();
        let terms = self.terms.clone();
        let is_known = |(name, value): Value<'_>| {
            name == WORDS || !file.term(terms.label(name, value)).is_empty()
        };
        let mut last = None;
        let mut values = file.values();
        for (at, value) in values.by_ref().enumerate() {
            if last.is_some_and(|last| last >= value) {
                self.count_fault(
                    faults,
                    format!("value {at} of the listed labels is out of order"),
                );
            }
            last = Some(value);
            if !is_known(value) {
                self.count_fault(
                    faults,
                    format!("value {at} of the listed labels is that of no row"),
                );
            }
            missing.remove(&value);
        }
        if !missing.is_empty() {
            let count = missing.len();
            self.count_fault(faults, format!("{count} values of labels are missing from the list"));
        }
        if !values.is_at_end() {
            self.count_fault(faults, "the list of values of labels is cut off".into());
        }
    }
}

/// A log that no segment covers, with the head that a start builds from the log.
struct OpenLog {
    head: Arc<Head>,
    terms: TermHasher,
    /// Ids of the log's live records.
    live: Vec<Id>,
    scratch: TermBuffers,
}

impl OpenLog {
    fn new(disk: &dyn Disk, dir: &Path, id: (u32, u32), terms: TermHasher) -> io::Result<Self> {
        let log = Arc::new(Log::open(disk, dir, id, 0, true)?);
        let head = Arc::new(Head::new(log, terms.clone(), 0, 0));
        Ok(Self { head, terms, live: Vec::new(), scratch: TermBuffers::default() })
    }

    fn put(&mut self, record: &Record<'_>, offset: u32, is_dead: bool) {
        if (self.head.inserted() as usize) < ROWS_MAX {
            self.head.insert(record, offset, &mut self.scratch);
        }
        if !is_dead {
            self.live.push(*record.id());
        }
    }

    /// Number of live records that a query by id would miss, if `bytes` of the log are good.
    fn lost(&self, bytes: u64) -> usize {
        self.head.log.grow(bytes);
        self.head.publish();
        let view = HeadView::published(&self.head);
        let is_found = |id: &&Id| {
            let row = view.find(id, self.terms.id(id));
            row.and_then(|row| self.head.record(row)).is_some_and(|record| record.id() == *id)
        };
        self.live.len() - self.live.iter().filter(is_found).count()
    }
}

/// Passes every whole frame of a damaged log to `each`, with its offset, and returns the parts
/// without frames.
fn scan_file(
    disk: &dyn Disk,
    path: &Path,
    (number, generation): (u32, u32),
    each: &mut dyn FnMut(u32, LogFrame<'_>),
) -> io::Result<Vec<Range<u64>>> {
    let bytes = disk.map_sequential(path)?;
    let mut lost = Vec::new();
    let Some(salt) = log::salt(&bytes, number, generation) else { return Ok(lost) };
    scan(&bytes, salt, &mut |part| match part {
        ScannedPart::Frame(offset, frame) => {
            if let Ok(offset) = u32::try_from(offset) {
                each(offset, frame);
            }
        }
        ScannedPart::Lost(range) => lost.push(range),
    });
    Ok(lost)
}

struct FaultCount {
    path: PathBuf,
    count: usize,
}
