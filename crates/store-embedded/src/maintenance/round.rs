//! A round of maintenance: all due jobs, one after another. If a job fails, its files are removed,
//! and the job is skipped until the next round, so that the other jobs are not delayed.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::damaged_segment::remake;
use super::due::due_merge;
use super::error::MaintenanceError;
use super::rewrite::{RewriteOrder, due_log, rewrite};
use super::segments::{merge_segments, seal_next};
use super::signal::JobFailure;
use crate::engine::heads::freeze_head;
use crate::engine::open_error::ShelfOpenError;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_dir::orphans;
use crate::engine::shelf_view::ShelfView;
use crate::log::{self, Log, LogError};
use crate::options::{EmbeddedOptions, JobProgress, OnProgress};
use crate::segment;
use crate::segment::opened::Segment;

/// Chooses neighbouring segments to merge.
type MergeFinder = fn(&[Arc<Segment>], &EmbeddedOptions) -> Option<Range<usize>>;

/// A round of maintenance. The owner of the round holds the guard of `ShelfJobs::run_alone`, so no
/// other round runs.
pub(crate) struct MaintenanceRound<'a> {
    shelf: &'a OpenShelf,
    /// Whether the round must end after the current job.
    stop: &'a dyn Fn() -> bool,
    /// The first failure of the round.
    failed: Option<MaintenanceError>,
    /// Whether the round still seals heads; false after the first failure to seal a head.
    seals: bool,
    /// Segments that could not be merged.
    unmerged: HashSet<u32>,
    /// Segments that are damaged, or that this round has replaced. The round touches neither these
    /// segments nor their logs.
    bad: HashSet<u32>,
    /// Logs that must not be rewritten, or have already been rewritten in this round.
    logs: HashSet<u32>,
    /// Logs that could not be rewritten.
    unwritten: HashSet<u32>,
}

impl<'a> MaintenanceRound<'a> {
    pub(crate) fn new(shelf: &'a OpenShelf, stop: &'a dyn Fn() -> bool) -> Self {
        let mut round = Self {
            shelf,
            stop,
            failed: None,
            seals: true,
            unmerged: HashSet::new(),
            bad: HashSet::new(),
            logs: HashSet::new(),
            unwritten: HashSet::new(),
        };
        if !stop() {
            tidy(shelf);
            round.pass_damaged();
        }
        round
    }

    /// Ends the round, and returns its first failure, if a job has failed.
    pub(crate) fn end(self) -> Result<(), MaintenanceError> {
        if !(self.stop)() {
            // Files that could not be removed earlier in the round are tried again.
            tidy(self.shelf);
        }
        self.shelf.jobs.space().end_job();
        self.failed.map_or(Ok(()), Err)
    }

    /// Seals full heads.
    pub(crate) fn seal(&mut self) {
        while self.seals && !(self.stop)() {
            let sealed = seal_next(self.shelf);
            self.shelf.jobs.note_unsealed(sealed.as_ref().err().map(JobFailure::new));
            match sealed {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    self.seals = false;
                    self.note(error);
                }
            }
        }
    }

    /// Replaces damaged segments and segments that list other labels or words than configured, adds
    /// missing ids, and then merges the due segments. A segment that lists other labels or words is
    /// replaced by one segment for each of its logs. These new segments are merged before the next
    /// segment is replaced.
    pub(crate) fn merge(&mut self, due: MergeFinder) {
        let view = self.shelf.view.load_full();
        let suspects = self.shelf.jobs.suspects();
        for segment in &view.segments {
            let is_suspect = suspects.contains(&segment.entry.number);
            if is_suspect || segment.is_unreadable() {
                self.remake(segment);
            } else if !segment.lists_what_it_should() {
                self.list_anew(segment);
                self.merge_due(due_merge);
            }
            self.seal();
        }
        self.add_ids();
        self.merge_due(due);
    }

    /// Merges the due segments. Segments that must be replaced are not merged.
    fn merge_due(&mut self, due: MergeFinder) {
        let suspects = self.shelf.jobs.suspects();
        while !(self.stop)() {
            let view = self.shelf.view.load_full();
            let passed = |old: &Segment| {
                let number = old.entry.number;
                let is_passed = self.unmerged.contains(&number) || self.bad.contains(&number);
                is_passed || suspects.contains(&number) || !old.lists_what_it_should()
            };
            let due = |neighbours: &[_]| due(neighbours, self.shelf.files.options());
            let Some(range) = between(&view.segments, passed, due) else { return };
            let olds = &view.segments[range];
            self.merge_now(olds);
        }
    }

    /// Merges segments. If a segment is damaged, replaces it instead. Notes segments that cannot be
    /// merged. Returns whether a new segment has replaced old segments.
    fn merge_now(&mut self, olds: &[Arc<Segment>]) -> bool {
        let merged = merge_segments(self.shelf, olds);
        let is_merged = matches!(merged, Ok(None));
        match merged {
            Ok(None) => {}
            Ok(Some(bad)) => self.remake(&bad),
            Err(error) => {
                self.unmerged.extend(olds.iter().map(|old| old.entry.number));
                self.note(error);
            }
        }
        // Full heads are sealed now, because they take memory and the writer may be waiting.
        self.seal();
        is_merged
    }

    /// Replaces each segment without ids, which an early version has written, by a segment that has
    /// ids and covers the same logs.
    fn add_ids(&mut self) {
        while !(self.stop)() {
            let view = self.shelf.view.load_full();
            let passed = |number: &u32| self.unmerged.contains(number) || self.bad.contains(number);
            let lacks_ids = |s: &&Arc<Segment>| !s.file.has_ids && !passed(&s.entry.number);
            let Some(old) = view.segments.iter().find(lacks_ids) else { return };
            if self.merge_now(std::slice::from_ref(old)) {
                tracing::info!(
                    segment = old.entry.number,
                    "a segment of an earlier version was rewritten with the ids of its records"
                );
            }
        }
    }

    /// Rewrites the logs that `is_due` accepts, in the given order. Each log is rewritten at most
    /// once.
    pub(super) fn rewrite(
        &mut self,
        order: RewriteOrder,
        is_due: &dyn Fn(&Log) -> bool,
        progress: OnProgress<'_>,
    ) {
        let total = self.shelf.writer.manifest().logs.len() as u64;
        let mut done = 0;
        while !(self.stop)()
            && let Some((segment, log)) = self.due_log(order, is_due)
        {
            self.logs.insert(log);
            if let Err(error) = rewrite(self.shelf, &segment, log) {
                self.unwritten.insert(log);
                self.note(error);
            }
            done += 1;
            progress(JobProgress { what: "rewriting logs", done: done.min(total), total });
            // Full heads are sealed now, because they take memory and the writer may be waiting.
            self.seal();
        }
    }

    /// Returns the next log to rewrite, and its segment.
    fn due_log(
        &self,
        order: RewriteOrder,
        is_due: &dyn Fn(&Log) -> bool,
    ) -> Option<(Arc<Segment>, u32)> {
        // The view is dropped on return, so that its old files take no space during the rewrite.
        let view = self.shelf.view.load();
        due_log(&self.shelf.jobs, &view, order, is_due, (&self.bad, &self.logs))
    }

    /// If the active head has dead records, begins a new head and seals the old head.
    pub(super) fn seal_head(&mut self) {
        if (self.stop)() || !self.seals {
            return;
        }
        match freeze_head(self.shelf) {
            Ok(()) => self.seal(),
            Err(error) => self.note(error.into()),
        }
    }

    /// Rewrites the segments that `is_due` accepts, without their dead rows. Returns the segments
    /// that could not be rewritten.
    pub(super) fn drop_dead_rows(
        &mut self,
        is_due: &dyn Fn(&Segment) -> bool,
    ) -> Vec<Arc<Segment>> {
        let view = self.shelf.view.load_full();
        let mut left = Vec::new();
        for segment in &view.segments {
            if segment.dead.rows.count() == 0 || !is_due(segment) {
                continue;
            }
            let passed = self.unmerged.contains(&segment.entry.number)
                || self.bad.contains(&segment.entry.number);
            if passed || (self.stop)() {
                left.push(Arc::clone(segment));
                continue;
            }
            self.merge_now(std::slice::from_ref(segment));
            if self.unmerged.contains(&segment.entry.number) {
                left.push(Arc::clone(segment));
            }
        }
        left
    }

    /// Erases the deleted records of these logs from all files. The records and their deletions are
    /// removed from the logs, and the rows are removed from the segments, because a row reveals the
    /// record's id, time and some values. Logs from which not all could be erased stay in `logs`.
    pub(super) fn erase(&mut self, logs: &mut BTreeSet<u32>) {
        let due = logs.clone();
        let is_due = |log: &Log| due.contains(&log.number) || log.has_deletions_of(&due);
        self.rewrite(RewriteOrder::Oldest, &is_due, &mut |_| {});
        let covers = |segment: &Segment| {
            let entry = &segment.entry;
            due.range(entry.first_log..=entry.last_log).next().is_some()
        };
        let unmade = self.drop_dead_rows(&covers);
        let view = self.shelf.view.load_full();
        let sealed = view.segments.iter().flat_map(|segment| &segment.logs).flatten();
        let heads = view.heads().map(|head| &head.log);
        logs.retain(|log| self.unwritten.contains(log));
        for log in sealed.chain(heads) {
            let is_passed = due.contains(&log.number) && !self.logs.contains(&log.number);
            // A log with deletions stays due if it was rewritten before the log with the deleted
            // records, because the deletions were still needed then.
            if (is_passed && log.has_dead()) || log.has_deletions_of(&due) {
                logs.insert(log.number);
            }
        }
        for segment in unmade {
            let entry = &segment.entry;
            logs.extend(due.range(entry.first_log..=entry.last_log));
        }
    }

    /// Replaces a damaged segment from its logs, or marks the segment as damaged for good.
    fn remake(&mut self, bad: &Arc<Segment>) {
        let number = bad.entry.number;
        if (self.stop)()
            || !has_segment(&self.shelf.view.load(), number)
            || !self.bad.insert(number)
        {
            return;
        }
        let path = segment::path(self.shelf.files.dir(), number);
        match remake(self.shelf, bad) {
            Ok(segments) => {
                self.shelf.jobs.clear_suspect(number);
                self.shelf.jobs.scrub().note_repaired();
                tracing::warn!(
                    segment = %path.display(), segments,
                    "a damaged segment was made anew from its logs"
                );
            }
            Err(error) if error.may_pass() => self.note(error),
            Err(error) => {
                self.mark_irreparable(path, format!("damaged, and not made anew: {error}"));
            }
        }
    }

    /// Replaces an undamaged segment that lists other labels or words than configured. After a
    /// failure the segment stays unchanged. Its logs can still be rewritten, but this round does
    /// not merge the segment.
    fn list_anew(&mut self, old: &Arc<Segment>) {
        let number = old.entry.number;
        let is_passed = self.bad.contains(&number) || !has_segment(&self.shelf.view.load(), number);
        if (self.stop)() || is_passed || !self.unmerged.insert(number) {
            return;
        }
        match remake(self.shelf, old) {
            Ok(segments) => tracing::info!(
                segment = number,
                segments,
                "a segment was made anew, as other labels or words are listed than before"
            ),
            Err(error) => self.note(error),
        }
    }

    fn note(&mut self, error: MaintenanceError) {
        self.shelf.jobs.note_untidy();
        tidy(self.shelf);
        if let MaintenanceError::Log(error) = &error
            && let Some(path) = damaged_log(error)
        {
            self.mark_irreparable(path, error.to_string());
        }
        self.failed.get_or_insert(error);
    }

    /// Notes that a file is damaged for good, and logs the damage once.
    fn mark_irreparable(&mut self, path: PathBuf, reason: String) {
        self.shelf.jobs.note_untidy();
        self.shelf.jobs.note_damaged_file(path, reason);
        tidy(self.shelf);
    }

    /// Lets the round skip segments and logs that are known to be damaged.
    fn pass_damaged(&mut self) {
        let damaged = self.shelf.jobs.damaged_files();
        if damaged.is_empty() {
            return;
        }
        let (dir, manifest) = (self.shelf.files.dir(), self.shelf.writer.manifest());
        let segments = manifest.segments.iter().map(|entry| entry.number);
        let is_bad = |number: &u32| damaged.contains(&segment::path(dir, *number));
        self.bad.extend(segments.filter(is_bad));
        let is_bad = |path: PathBuf| damaged.contains(&path);
        for log in &manifest.logs {
            if is_bad(log::path(dir, log.number, log.generation)) {
                self.logs.insert(log.number);
            }
        }
    }
}

/// Returns the damaged log; `None` if the error may be temporary.
fn damaged_log(error: &LogError) -> Option<PathBuf> {
    match error {
        LogError::Io { cause, .. } if cause.raw_os_error().is_some() => None,
        LogError::Io { path, .. }
        | LogError::Header { path }
        | LogError::Damaged { path, .. }
        | LogError::TooLong { path, .. } => Some(path.clone()),
    }
}

/// Divides the list of segments at each `passed` segment, and returns the first range that `due`
/// chooses within one of the parts.
fn between(
    segments: &[Arc<Segment>],
    passed: impl Fn(&Segment) -> bool,
    due: impl Fn(&[Arc<Segment>]) -> Option<Range<usize>>,
) -> Option<Range<usize>> {
    let mut start = 0;
    for neighbours in segments.split(|segment| passed(segment)) {
        if let Some(range) = due(neighbours) {
            return Some(start + range.start..start + range.end);
        }
        start += neighbours.len() + 1;
    }
    None
}

/// Whether a segment with this number still exists; a merge may have replaced it in the meantime.
fn has_segment(view: &ShelfView, number: u32) -> bool {
    view.segments.iter().any(|segment| segment.entry.number == number)
}

/// Removes the files that failed jobs have left behind. Files that cannot be removed now are
/// removed in the next round.
fn tidy(shelf: &OpenShelf) {
    if !shelf.jobs.is_untidy() {
        return;
    }
    let disk = shelf.files.disk();
    let found = {
        // The lock keeps the writer from beginning a log. The file of a new log exists before
        // MANIFEST names the log, and must not be removed.
        let _writing = shelf.writer.lock();
        let manifest = shelf.writer.manifest();
        // A log that could not be begun has the name of the next log, which the writer may begin
        // as soon as the lock is free. So this file is removed now.
        let next = manifest.logs.last().map_or(1, |last| last.number + 1);
        let next = log::path(shelf.files.dir(), next, 0);
        orphans(disk, shelf.files.dir(), &manifest).and_then(|mut paths| {
            if let Some(at) = paths.iter().position(|path| *path == next) {
                disk.remove(&next).map_err(ShelfOpenError::io(&next))?;
                paths.swap_remove(at);
            }
            Ok(paths)
        })
    };
    let tidied = found.and_then(|paths| {
        paths.iter().try_for_each(|path| disk.remove(path).map_err(ShelfOpenError::io(path)))
    });
    shelf.jobs.note_tidied(tidied.err().map(|error| error.to_string()));
}
