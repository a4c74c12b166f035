//! Checking the logs.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hark_archive::query::prepared::TermMap as _;
use hark_archive::query::source::Source;
use hark_archive::{Id, Record};

use super::faults::{FAULTS_EACH, ShelfCheck};
use crate::disk::Disk;
use crate::head::{Head, HeadView, ROWS_MAX};
use crate::log::{self, Log, LogEnd, LogError, LogFrame};
use crate::map::Map;
use crate::repair::salvage::scan::{ScannedPart, scan};
use crate::segment::RecordAddress;
use crate::term::{TermBuffers, TermHasher};

/// Whether a log may have more records after the position where a replay has ended. Only `hark
/// salvage` recovers these records.
fn has_more(end: &Result<LogEnd, LogError>, is_last: bool) -> bool {
    match end {
        Ok(end) => end.good < end.len && !is_last,
        Err(error) => matches!(error, LogError::Damaged { .. }),
    }
}

impl ShelfCheck<'_> {
    /// Maps all logs, in the order of the manifest.
    pub(super) fn map_logs(&self) -> Vec<Result<Map, LogError>> {
        let entries = self.manifest.logs.iter();
        let paths = entries.map(|entry| log::path(self.dir, entry.number, entry.generation));
        paths.map(|path| log::map(self.disk, &path)).collect()
    }

    /// Reads the deletions of a log. Skips a log that could not be mapped: [`Self::log`] reports
    /// this fault.
    pub(super) fn read_deletes(&mut self, at: usize, mapped: &Result<Map, LogError>) {
        let Ok(mapped) = mapped else { return };
        let entry = &self.manifest.logs[at];
        let path = log::path(self.dir, entry.number, entry.generation);
        let is_last = at + 1 == self.manifest.logs.len();
        let (number, generation, deletes) = (entry.number, entry.generation, &mut self.deletes);
        let mut add = |offset, frame: LogFrame<'_>| {
            if let LogFrame::Delete { id, log } = frame {
                deletes.add(id, log, RecordAddress { log: number, offset });
            }
        };
        let end = log::replay_mapped(mapped, &path, (number, generation), &mut add);
        if has_more(&end, is_last) {
            // The method `log` reports the lost parts.
            scan_log(mapped, (number, generation), &mut add);
        }
    }

    /// Checks a log, and counts its records.
    pub(super) fn log(&mut self, at: usize, mapped: Result<Map, LogError>) {
        let entry = self.manifest.logs[at].clone();
        let path = log::path(self.dir, entry.number, entry.generation);
        let last = at + 1 == self.manifest.logs.len();
        let (mut live, mut dead, mut bad) = (0, 0, 0);
        let deletes = &self.deletes;
        let id = (entry.number, entry.generation);
        let mut lost_parts = Vec::new();
        // If no segment covers this log, each start of the server indexes the log's records in a
        // head. The check builds the same head and searches it as a reader would.
        let is_sealed = self.manifest.is_sealed(entry.number);
        let mut head =
            (!is_sealed).then(|| OpenLog::new(self.disk, self.dir, id, self.terms.clone()));
        let mut each = |offset, frame: LogFrame<'_>| {
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
        };
        let mut replay = |mapped: &Map| log::replay_mapped(mapped, &path, id, &mut each);
        let (end, mapped) = match mapped {
            Ok(mapped) => (replay(&mapped), Some(mapped)),
            Err(error) => (Err(error), None),
        };
        if has_more(&end, last)
            && let Some(mapped) = &mapped
        {
            (live, dead, bad) = (0, 0, 0);
            lost_parts = scan_log(mapped, id, &mut |offset, frame| {
                if let LogFrame::Put(bytes) = frame
                    && let Ok(record) = Record::new(bytes)
                {
                    let at = RecordAddress { log: entry.number, offset };
                    *if deletes.hit(record.id(), at) { &mut dead } else { &mut live } += 1;
                }
            });
        }
        let lost = match (head, &end) {
            (Some(Ok(head)), Ok(end)) => head.lost(end.good),
            // The fault is reported below.
            _ => 0,
        };
        self.report.logs += 1;
        self.report.records += live;
        self.report.dead += dead;
        self.live.insert(entry.number, live);
        match end {
            Err(error) => {
                let mendable = matches!(error, LogError::TooLong { .. });
                // The fault already names the file.
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
        // The first lost part is already reported.
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
}

/// A log that no segment covers, and the head that a start would build from this log.
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

    /// Number of live records that a query by id would miss, if only the first `bytes` of the log
    /// are undamaged.
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

/// Passes every whole frame of a damaged log to `each`, with its offset. Returns the parts without
/// a whole frame.
fn scan_log(
    bytes: &Map,
    (number, generation): (u32, u32),
    each: &mut dyn FnMut(u32, LogFrame<'_>),
) -> Vec<Range<u64>> {
    let mut lost = Vec::new();
    let Some(salt) = log::salt(bytes, number, generation) else { return lost };
    scan(bytes, salt, &mut |part| match part {
        ScannedPart::Frame(offset, frame) => {
            if let Ok(offset) = u32::try_from(offset) {
                each(offset, frame);
            }
        }
        ScannedPart::Lost(range) => lost.push(range),
    });
    lost
}
