//! The state of a check, and the faults found so far.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::report::{CheckReport, FileFault};
use crate::disk::Disk;
use crate::manifest::Manifest;
use crate::repair::from_logs::DeletionMap;
use crate::term::TermHasher;

/// Maximum number of faults of one file that are listed. Further faults are only counted.
pub(super) const FAULTS_EACH: usize = 5;

/// A check of a shelf.
pub(super) struct ShelfCheck<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) dir: &'a Path,
    pub(super) manifest: Manifest,
    pub(super) terms: TermHasher,
    pub(super) deletes: DeletionMap,
    pub(super) report: CheckReport,
    /// For each log, its number of live records according to the logs.
    pub(super) live: HashMap<u32, u64>,
}

/// Counts the faults of one file.
pub(super) struct FaultCount {
    pub(super) path: PathBuf,
    pub(super) count: usize,
}

impl ShelfCheck<'_> {
    pub(super) fn fault(&mut self, file: PathBuf, what: impl Into<String>, mendable: bool) {
        self.report.faults.push(FileFault { file, what: what.into(), mendable });
    }

    pub(super) fn count_fault(&mut self, faults: &mut FaultCount, what: String) {
        faults.count += 1;
        if faults.count <= FAULTS_EACH {
            self.fault(faults.path.clone(), what, true);
        }
    }
}
