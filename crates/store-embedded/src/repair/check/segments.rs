//! Checking the segments: rows, ids and values.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use hark_archive::Id;
use hark_archive::query::prepared::TermMap as _;
use hark_archive::query::source::Source;
use hark_codec::id_sum::IdSum;

use super::faults::{FAULTS_EACH, FaultCount, ShelfCheck};
use crate::engine::open_error::ShelfOpenError;
use crate::manifest::SegmentEntry;
use crate::map::unreadable;
use crate::segment::file::SegmentFile;
use crate::segment::opened::Segment;
use crate::segment::segment_view::SegmentView;
use crate::segment::values::Value;
use crate::segment::{self, RecordAddress, SUMMED_ROWS};
use crate::term::WORDS;

impl ShelfCheck<'_> {
    /// Checks a segment.
    pub(super) fn segment(
        &mut self,
        entry: &SegmentEntry,
        opened: Result<Segment, ShelfOpenError>,
    ) {
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
        self.values(&segment, &mut faults);
        self.sums(&segment.file, &mut faults);
        if faults.count > FAULTS_EACH {
            let more = faults.count - FAULTS_EACH;
            self.fault(path, format!("{more} more faults of the same kinds"), true);
        }
    }

    /// Compares every row with its record: the time, the order, the id index, and whether the row
    /// is dead.
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
        // The deletions in logs that are not sealed yet are applied at every start.
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

    /// Checks the sums of ids. The ids of the live rows have already been compared with the
    /// records.
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

    /// Checks the values of listed labels: the list must have every value of a live row, and no
    /// value without a row.
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
                    format!("value {at} of the listed labels belongs to no row"),
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
