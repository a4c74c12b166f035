//! Maintenance: sealing full heads, merging segments, rewriting logs that are mostly dead.
//! One job runs at a time, beside readers and the writer; its result is installed in one step. The
//! files of a failed job are removed, and the numbers it gave to them are used again.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::store::{JobTotals, MaintenanceStats};
use hark_archive::{CommitError, vital};
use parking_lot::MutexGuard;
use rustix::time::{ClockId, clock_gettime};

use crate::disk::Disk;
use crate::log::{self, Log, LogError, LogFrame};
use crate::manifest::{LogEntry, Manifest, SegmentEntry};
use crate::map::unreadable;
use crate::open::{ShelfOpenError, open_segment};
use crate::room::{self, BESIDE_MERGES, BESIDE_OTHERS, BoundedDisk};
use crate::segment::seal::DROPPED;
use crate::segment::sidecar::SidecarKind;
use crate::segment::view::{Segment, WEIGHT_MAX};
use crate::segment::{self, RecordAddress, merge, seal, view};
use crate::shelf::{
    EmbeddedShelf, EmbeddedStore, FROZEN_MAX, LogWriterState, ShelfView, random_u32,
};
use crate::suspect::ReadFaults;
use crate::{JobProgress, OnProgress};

mod mend;
mod round;

use self::round::MaintenanceRound;
pub(crate) use self::round::MaintenanceState;

/// Bytes of frames per batch of a rewritten log.
const BATCH_BYTES: usize = 1 << 20;
/// How long maintenance pauses after a failure.
const REST: Duration = Duration::from_secs(5);

/// Requests to the maintenance thread, and its last failures.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceSignal {
    pub stop: bool,
    pub work: bool,
    /// Whether maintenance pauses: another process has the shelf, or may be about to take it.
    pub resting: bool,
    /// Logs from this number on are not rewritten, as another process reads them.
    pub followed_from: Option<u32>,
    /// Why the last round failed.
    pub failed: Option<JobFailure>,
    /// Why the oldest full head could not be sealed; `None` once sealing succeeds.
    pub unsealed: Option<JobFailure>,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobFailure {
    pub why: String,
    /// Whether the disk had too little space, which may become free again.
    wants_room: bool,
}

impl JobFailure {
    fn new(error: &MaintenanceError) -> Self {
        Self { why: error.to_string(), wants_room: error.wants_room() }
    }

    /// Whether this is the same failure as `before`. If both lack disk space they are the same,
    /// although their texts name different amounts of free space.
    fn is_like(&self, before: Option<&Self>) -> bool {
        before.is_some_and(|before| before == self || (before.wants_room && self.wants_room))
    }
}

/// Why maintenance failed. The archive is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// A file could not be written, renamed or removed.
    #[error("upkeep of the archive failed: {0}")]
    Io(#[from] io::Error),
    /// A file that was written could not be opened again.
    #[error("upkeep of the archive failed: {0}")]
    Open(#[from] ShelfOpenError),
    /// Another process has the shelf.
    #[error("another process has taken the archive over; ask that one")]
    Resting,
    /// A log is damaged.
    #[error("{0}; run `hark check`")]
    Log(#[from] LogError),
    /// A segment is damaged, and so are the files that it could be rebuilt from.
    #[error("{0} is damaged and is not merged; with the server stopped `hark rebuild` mends it")]
    Damaged(PathBuf),
}

impl MaintenanceError {
    /// Whether the disk was full.
    fn wants_room(&self) -> bool {
        match self {
            Self::Io(error) | Self::Open(ShelfOpenError::Io { cause: error, .. }) => {
                room::is_full(error)
            }
            _ => false,
        }
    }

    /// Whether the same job may succeed later with the same files.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Open(ShelfOpenError::Io { .. }) | Self::Resting)
    }
}

/// What a compaction has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionResult {
    /// Segments before.
    pub segments_before: u64,
    /// Segments after.
    pub segments_after: u64,
    /// Bytes on disk before.
    pub bytes_before: u64,
    /// Bytes on disk after.
    pub bytes_after: u64,
}

/// Bytes of deleted records in the logs of a shelf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadBytes {
    /// In all logs.
    pub all: u64,
    /// In logs whose dead share calls for a rewrite, now or once their head is sealed.
    pub due: u64,
    /// In other sealed logs.
    pub spread: u64,
}

impl DeadBytes {
    /// Counts the dead bytes of a view.
    pub(crate) fn of(view: &ShelfView, options: &crate::EmbeddedOptions) -> Self {
        let mut dead = Self::default();
        let is_due = |log: &Log| log.dead_share() > options.rewrite_dead_share;
        for log in view.segments.iter().flat_map(|segment| segment.logs.iter().flatten()) {
            let bytes = log.dead_bytes.load(Ordering::Relaxed);
            dead.all += bytes;
            *(if is_due(log) { &mut dead.due } else { &mut dead.spread }) += bytes;
        }
        for head in &view.frozen {
            let bytes = head.log.dead_bytes.load(Ordering::Relaxed);
            dead.all += bytes;
            dead.due += if is_due(&head.log) { bytes } else { 0 };
        }
        dead.all += view.active.log.dead_bytes.load(Ordering::Relaxed);
        dead
    }

    /// Dead bytes that rewrites give back without another delete.
    pub(crate) fn reclaimable(&self, options: &crate::EmbeddedOptions) -> u64 {
        self.due + self.spread.saturating_sub(options.dead_bytes_max)
    }
}

/// When a job began.
struct JobStart {
    wall: Instant,
    /// Processor time that the thread had used by then.
    cpu: Duration,
}

impl JobStart {
    fn now() -> Self {
        Self { wall: Instant::now(), cpu: thread_cpu() }
    }
}

fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Starts the maintenance thread.
pub(crate) fn start(shelf: &Arc<EmbeddedShelf>) -> io::Result<JoinHandle<()>> {
    let shelf = Arc::clone(shelf);
    shelf.signal.lock().work = true;
    vital::spawn("hark-upkeep", move || {
        loop {
            let mut signal = shelf.signal.lock();
            while (!signal.work || signal.resting) && !signal.stop {
                wait(&shelf, &mut signal, None);
            }
            if signal.stop {
                return;
            }
            signal.work = false;
            drop(signal);
            let result = shelf.maintain_all();
            let mut signal = shelf.signal.lock();
            report(&mut signal, result.err().as_ref());
            shelf.signalled.notify_all();
            if signal.failed.is_some() && !signal.stop {
                wait(&shelf, &mut signal, Some(REST));
                signal.work = true;
            }
        }
    })
}

/// Notes how a round ended, and logs it unless the same failure was logged before.
fn report(signal: &mut MaintenanceSignal, error: Option<&MaintenanceError>) {
    let rest_s = REST.as_secs();
    let failed = error.map(JobFailure::new);
    match &failed {
        Some(now) if now.is_like(signal.failed.as_ref()) => {
            tracing::debug!(error = now.why, rest_s, "upkeep fails still");
        }
        Some(now) => {
            let error = &now.why;
            tracing::error!(error, rest_s, "upkeep failed; it is tried again after a rest");
        }
        None if signal.failed.is_some() => tracing::info!("upkeep goes on"),
        None => {}
    }
    signal.failed = failed;
}

fn wait(
    shelf: &EmbeddedShelf,
    signal: &mut MutexGuard<'_, MaintenanceSignal>,
    at_most: Option<Duration>,
) {
    match at_most {
        None => shelf.signalled.wait(signal),
        Some(time) => {
            shelf.signalled.wait_for(signal, time);
        }
    }
}

impl EmbeddedShelf {
    /// Calls maintenance after a new head was begun, and waits if too many heads wait to be sealed.
    /// If the disk has no space for sealing them, the new head is filled all the same.
    pub(crate) fn after_rotation(&self) -> Result<(), CommitError> {
        self.wait_for_sealing().or_else(|error| match error {
            CommitError::Unavailable(_) => Ok(()),
            error => Err(error),
        })
    }

    /// Waits while too many heads wait to be sealed. Returns an error if they cannot be sealed: a
    /// temporary one if they only need disk space.
    pub(crate) fn wait_for_sealing(&self) -> Result<(), CommitError> {
        if !self.options.background {
            // After a failure the head stays in memory and its log on disk; the next rotation tries
            // again, as long as there is memory for more heads.
            let result = self.maintain_all();
            report(&mut self.signal.lock(), result.err().as_ref());
        }
        let mut signal = self.signal.lock();
        signal.work = true;
        self.signalled.notify_all();
        while self.must_seal_first() {
            if let Some(JobFailure { why, wants_room }) = &signal.unsealed {
                let error = format!("full heads cannot be sealed into segments: {why}");
                return Err(if *wants_room {
                    CommitError::Unavailable(error)
                } else {
                    CommitError::Stopped(error)
                });
            }
            if !self.options.background {
                break;
            }
            wait(self, &mut signal, Some(Duration::from_millis(50)));
        }
        Ok(())
    }

    /// Whether the heads that wait to be sealed are so many or so large that the writer must wait.
    pub(crate) fn must_seal_first(&self) -> bool {
        let view = self.view.load();
        let bytes = view.frozen.iter().map(|head| head.bytes()).sum();
        view.frozen.len() >= FROZEN_MAX || self.options.must_seal_first(bytes)
    }

    /// Wakes the maintenance thread to look for work.
    pub(crate) fn call_maintenance(&self) {
        self.signal.lock().work = true;
        self.signalled.notify_all();
    }

    /// Runs all maintenance jobs that are due.
    pub(crate) fn maintain_all(&self) -> Result<(), MaintenanceError> {
        let _one_at_a_time = self.maintenance.lock();
        let stop = || {
            let signal = self.signal.lock();
            signal.stop || signal.resting
        };
        let mut round = MaintenanceRound::new(self, &stop);
        round.seal();
        round.merge(due_merge);
        let spread_too_far =
            || DeadBytes::of(&self.view.load(), &self.options).spread > self.options.dead_bytes_max;
        round.rewrite(self.options.rewrite_dead_share, &|| true, &mut |_| {});
        round.rewrite(0.0, &spread_too_far, &mut |_| {});
        round.end()
    }

    /// The number of the next segment. It counts as used once MANIFEST names it: if a job fails,
    /// the next job uses the same number.
    fn segment_number(&self) -> u32 {
        self.manifest.lock().next_segment
    }

    /// Returns the disk for a job that writes at most `needs` bytes and leaves `beside` bytes free;
    /// an error if less than both together is free.
    fn room(&self, job: &'static str, beside: u64, needs: u64) -> io::Result<BoundedDisk> {
        let disk = Arc::clone(&self.options.disk);
        let room = BoundedDisk { disk, dir: self.dir.clone(), job, beside };
        room.check(needs)?;
        Ok(room)
    }

    /// Total bytes of the `.dead` files of all segments, which a job may have to write.
    fn dead_files_max(&self) -> u64 {
        let view = self.view.load();
        let bytes = |segment: &Arc<Segment>| {
            SidecarKind::Dead.bytes(view::RowMarks::words_on_disk(segment.file.rows))
        };
        view.segments.iter().map(bytes).sum()
    }

    /// Seals the oldest frozen head; false if there is none.
    fn seal_next(&self) -> Result<bool, MaintenanceError> {
        let Some(head) = self.view.load().frozen.first().cloned() else { return Ok(false) };
        let (started, before) = (JobStart::now(), self.before());
        let values = seal::values(&head, &self.terms);
        let needs = seal::bytes_max(&head, &values, &self.terms) + self.dead_files_max();
        let room = self.room("sealing a full head", BESIDE_OTHERS, needs)?;
        let number = self.segment_number();
        if !self.terms.listed().is_empty() {
            // Values were read from the log. None may be missing.
            self.all_was_read(&before)?;
        }
        let written = seal::seal(&room, &self.dir, number, &head, (&self.terms, &values))?;
        self.note_written(written.bytes);
        let log = head.log.number;
        let entry = SegmentEntry { number, first_log: log, last_log: log, addresses: 0, dead: 0 };
        let died = |_: usize| -> Vec<u32> {
            let rows = written.rows.iter().enumerate();
            rows.filter(|&(old, &new)| new != DROPPED && head.is_dead(old as u32))
                .map(|(_, &new)| new)
                .collect()
        };
        self.install(&room, &[entry], &died, &|manifest, entries| {
            manifest.segments.extend(entries);
            if let Some(entry) = manifest.logs.iter_mut().find(|entry| entry.number == log) {
                entry.dead_bytes = head.log.dead_bytes.load(Ordering::Relaxed);
            }
        })?;
        let records = u64::from(written.count);
        self.note_done(&started, records, written.bytes, |done| &mut done.sealing);
        tracing::info!(
            segment = number,
            records = head.published(),
            bytes = written.bytes,
            ms = started.wall.elapsed().as_millis(),
            "a full head was sealed"
        );
        Ok(true)
    }

    /// Merges neighbouring segments into one. If one is damaged, returns it and merges none.
    fn merge(&self, olds: &[Arc<Segment>]) -> Result<Option<Arc<Segment>>, MaintenanceError> {
        let (Some(first), Some(last)) = (olds.first(), olds.last()) else { return Ok(None) };
        let (started, before) = (JobStart::now(), self.before());
        let needs = merge::bytes_max(olds) + self.dead_files_max();
        let room = self.room("merging segments", BESIDE_MERGES, needs)?;
        // Damage must not be copied into a new file with a valid checksum.
        if let Some(bad) = olds.iter().find(|old| !old.file.damaged_sections().is_empty()) {
            return Ok(Some(Arc::clone(bad)));
        }
        let number = self.segment_number();
        let written = merge::merge(&room, &self.dir, number, olds, &self.terms)?;
        self.all_was_read(&before)?;
        self.note_written(written.bytes);
        let entry = SegmentEntry {
            number,
            first_log: first.entry.first_log,
            last_log: last.entry.last_log,
            addresses: 0,
            dead: 0,
        };
        let died = |_: usize| -> Vec<u32> {
            let moved = olds.iter().zip(&written.rows).flat_map(|(old, rows)| {
                old.dead.dead.ones().filter_map(|row| rows.get(row as usize).copied())
            });
            moved.filter(|&new| new != DROPPED).collect()
        };
        let old_numbers: Vec<u32> = olds.iter().map(|old| old.entry.number).collect();
        self.install(&room, &[entry], &died, &|manifest, entries| {
            let at = manifest.segments.iter().position(|s| s.number == old_numbers[0]);
            let at = at.unwrap_or(0);
            manifest.segments.retain(|s| !old_numbers.contains(&s.number));
            manifest.segments.splice(at..at, entries);
            manifest.note_dead_bytes(olds.iter().flat_map(|old| &old.logs).flatten());
        })?;
        let records = u64::from(written.count);
        self.note_done(&started, records, written.bytes, |done| &mut done.merging);
        tracing::info!(
            segment = number,
            segments = olds.len(),
            records,
            bytes = written.bytes,
            ms = started.wall.elapsed().as_millis(),
            "segments were merged"
        );
        Ok(None)
    }

    /// Installs new segments: marks the rows that `died` while each was written as dead in it,
    /// saves the dead rows of all segments, applies `change` to the manifest, then shows readers
    /// the new segments.
    fn install(
        &self,
        disk: &dyn Disk,
        entries: &[SegmentEntry],
        died: &dyn Fn(usize) -> Vec<u32>,
        change: &dyn Fn(&mut Manifest, Vec<SegmentEntry>),
    ) -> Result<(), MaintenanceError> {
        disk.sync_dir(&self.dir.join("seg"))?;
        let change = |manifest: &mut Manifest| {
            change(manifest, entries.to_vec());
            let used = entries.iter().map(|entry| entry.number + 1);
            manifest.next_segment = used.chain([manifest.next_segment]).max().unwrap_or_default();
        };
        // Opening reads only the trailer and the addresses, but need not block the writer.
        let mut next = self.manifest.lock().clone();
        change(&mut next);
        let open = |entry| open_segment(disk, &self.dir, entry, &next, self.terms, None);
        let fresh = entries.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let _writing: MutexGuard<'_, LogWriterState> = self.writing.lock();
        let mut manifest = self.manifest.lock();
        let mut next = manifest.clone();
        change(&mut next);
        let view = self.view.load_full();
        for (at, fresh) in fresh.iter().enumerate() {
            for row in died(at) {
                fresh.kill_row(row);
            }
        }
        // More records may have died since the logs were opened.
        for fresh in &fresh {
            fresh.set_dead_bytes(&next.logs);
        }
        let fresh: Vec<_> = fresh.into_iter().map(Arc::new).collect();
        let mut segments = Vec::new();
        for line in &mut next.segments {
            let mut known = view.segments.iter().chain(&fresh);
            let Some(segment) = known.find(|known| known.entry.number == line.number) else {
                let missing = segment::path(&self.dir, line.number);
                return Err(MaintenanceError::Damaged(missing));
            };
            segments.push(self.save_dead(disk, segment, line)?);
        }
        disk.sync_dir(&self.dir.join("seg"))?;
        next.write(disk, &self.dir)?;
        for segment in &segments {
            segment.dead.note_saved();
        }
        let old = std::mem::replace(&mut *manifest, next);
        let new = manifest.clone();
        drop(manifest);
        let frozen: Vec<_> =
            view.frozen.iter().filter(|head| !new.is_sealed(head.log.number)).cloned().collect();
        self.update_view(|view| {
            ShelfView::new(segments.clone(), frozen.clone(), Arc::clone(&view.active))
        });
        self.remove_unnamed(&old, &new);
        Ok(())
    }

    /// Writes the dead rows of a segment if they are more than its `.dead` file has, and returns
    /// the segment with its new manifest line. The rows count as saved once the manifest names the
    /// file.
    fn save_dead(
        &self,
        disk: &dyn Disk,
        segment: &Arc<Segment>,
        line: &mut SegmentEntry,
    ) -> Result<Arc<Segment>, MaintenanceError> {
        let count = segment.dead.rows.count();
        if count != segment.dead.saved.load(Ordering::Relaxed) {
            line.dead += 1;
            let id = (line.number, line.dead);
            let bytes = SidecarKind::Dead.write(disk, &self.dir, id, segment.dead.words())?;
            self.note_written(bytes);
        }
        if segment.entry == *line {
            return Ok(Arc::clone(segment));
        }
        Ok(Arc::new(segment.with_entry(line.clone())))
    }

    /// Returns the log with the largest dead share above `share`, and its segment.
    /// `passed_segments` and `passed_logs` are skipped.
    fn worst_log(
        &self,
        share: f64,
        passed_segments: &HashSet<u32>,
        passed_logs: &HashSet<u32>,
    ) -> Option<(Arc<Segment>, u32)> {
        let view = self.view.load_full();
        let followed_from = self.signal.lock().followed_from.unwrap_or(u32::MAX);
        let mut worst: Option<(f64, &Arc<Segment>, u32)> = None;
        let sound = |segment: &&Arc<Segment>| {
            !segment.is_unreadable() && !passed_segments.contains(&segment.entry.number)
        };
        for segment in view.segments.iter().filter(sound) {
            for log in segment.logs.iter().flatten() {
                let dead = log.dead_share();
                let free = log.number < followed_from && !passed_logs.contains(&log.number);
                if free && dead > share && worst.is_none_or(|(most, ..)| dead > most) {
                    worst = Some((dead, segment, log.number));
                }
            }
        }
        worst.map(|(_, segment, number)| (Arc::clone(segment), number))
    }

    /// Rewrites a log without its dead records, and its segment's addresses.
    fn rewrite(&self, segment: &Arc<Segment>, number: u32) -> Result<(), MaintenanceError> {
        let (started, before) = (JobStart::now(), self.before());
        let log = segment.logs.iter().flatten().find(|log| log.number == number);
        let needs = log
            .map_or(0, |log| log.written().saturating_sub(log.dead_bytes.load(Ordering::Relaxed)));
        let needs = needs + segment.addresses.bytes() + self.dead_files_max();
        let room = self.room("rewriting a log", BESIDE_OTHERS, needs)?;
        let disk: &dyn Disk = &room;
        let manifest = self.manifest.lock().clone();
        let Some(old) = manifest.logs.iter().find(|log| log.number == number) else {
            return Ok(());
        };
        let Some(active) = manifest.logs.last() else { return Ok(()) };
        let fresh = LogEntry {
            number,
            generation: old.generation + 1,
            purged: active.number,
            dead_bytes: 0,
        };
        let (moved, end) = self.copy_live(disk, segment, &manifest, old, &fresh)?;
        self.all_was_read(&before)?;
        let entry = &segment.entry;
        let covers = |log: &LogEntry| (entry.first_log..=entry.last_log).contains(&log.number);
        let is_empty = end == log::HEADER;
        if is_empty {
            disk.remove(&log::path(&self.dir, number, fresh.generation))?;
            if !manifest.logs.iter().any(|log| covers(log) && log.number != number) {
                return self.let_go(segment, number);
            }
        }
        disk.sync_dir(&self.dir.join("log"))?;
        let addresses = (0..segment.file.rows).map(|row| {
            let address = segment.address(row);
            if address.log != number {
                return address.pack();
            }
            let offset = moved.get(&address.offset);
            offset
                .map_or(RecordAddress::GONE, |&offset| RecordAddress { log: number, offset })
                .pack()
        });
        let id = (segment.entry.number, segment.entry.addresses + 1);
        let bytes = SidecarKind::Addresses.write(disk, &self.dir, id, addresses)?;
        self.all_was_read(&before)?;
        self.note_written(bytes);
        disk.sync_dir(&self.dir.join("seg"))?;

        let _writing: MutexGuard<'_, LogWriterState> = self.writing.lock();
        let mut manifest = self.manifest.lock();
        let mut next = manifest.clone();
        if is_empty {
            next.logs.retain(|log| log.number != number);
        } else if let Some(log) = next.logs.iter_mut().find(|log| log.number == number) {
            *log = fresh;
        }
        let Some(line) = next.segments.iter_mut().find(|s| s.number == segment.entry.number) else {
            return Ok(());
        };
        line.addresses += 1;
        // Rows whose records are gone must be known to be dead without reading the log.
        self.save_dead(disk, segment, line)?;
        let line = line.clone();
        disk.sync_dir(&self.dir.join("seg"))?;
        let dead = Some(Arc::clone(&segment.dead));
        let renewed = open_segment(disk, &self.dir, &line, &next, self.terms, dead)?;
        renewed.keep_dead_bytes(segment, number);
        // Records that died while the log was copied are still in the copy.
        for row in moved_and_dead(&renewed, number) {
            renewed.note_dead_bytes(row);
        }
        next.write(disk, &self.dir)?;
        renewed.dead.note_saved();
        let old = std::mem::replace(&mut *manifest, next);
        let new = manifest.clone();
        drop(manifest);
        let renewed = Arc::new(renewed);
        self.update_view(|view| {
            let mut segments = view.segments.clone();
            for known in &mut segments {
                if known.entry.number == renewed.entry.number {
                    *known = Arc::clone(&renewed);
                }
            }
            ShelfView::new(segments, view.frozen.clone(), Arc::clone(&view.active))
        });
        self.remove_unnamed(&old, &new);
        let written = |segment: &Segment| {
            let log = segment.logs.iter().flatten().find(|log| log.number == number);
            log.map(|log| log.written())
        };
        let records = moved.len() as u64;
        self.note_done(&started, records, written(&renewed).unwrap_or(0), |done| {
            &mut done.rewriting
        });
        tracing::info!(
            log = number,
            bytes_before = written(segment),
            bytes = written(&renewed).unwrap_or(0),
            ms = started.wall.elapsed().as_millis(),
            "a log was written anew without its deleted records"
        );
        Ok(())
    }

    /// Removes a segment whose last log has nothing left in it, and that log.
    fn let_go(&self, segment: &Segment, log: u32) -> Result<(), MaintenanceError> {
        let _writing: MutexGuard<'_, LogWriterState> = self.writing.lock();
        let mut manifest = self.manifest.lock();
        let mut next = manifest.clone();
        next.logs.retain(|entry| entry.number != log);
        next.segments.retain(|entry| entry.number != segment.entry.number);
        next.write(&*self.options.disk, &self.dir)?;
        let old = std::mem::replace(&mut *manifest, next);
        let new = manifest.clone();
        drop(manifest);
        self.update_view(|view| {
            let mut segments = view.segments.clone();
            segments.retain(|known| known.entry.number != segment.entry.number);
            ShelfView::new(segments, view.frozen.clone(), Arc::clone(&view.active))
        });
        self.remove_unnamed(&old, &new);
        tracing::info!(segment = segment.entry.number, "nothing was left of a segment; it is gone");
        Ok(())
    }

    /// Copies the frames of a log that are still needed into its next generation. Returns the new
    /// offset of each record by its old one, and the file's length.
    fn copy_live(
        &self,
        disk: &dyn Disk,
        segment: &Segment,
        manifest: &Manifest,
        old: &LogEntry,
        fresh: &LogEntry,
    ) -> Result<(std::collections::HashMap<u32, u32>, u64), MaintenanceError> {
        let live: std::collections::HashSet<u32> = (0..segment.file.rows)
            .filter(|&row| !segment.dead.dead.get(row))
            .map(|row| segment.address(row))
            .filter(|address| address.log == old.number)
            .map(|address| address.offset)
            .collect();
        // A deletion is needed as long as the record that it names may still be in its log.
        let needed = |target: u32| {
            target != old.number
                && manifest.logs.iter().any(|log| log.number == target && old.number >= log.purged)
        };
        let salt = random_u32()?;
        // The file gets its name only when it is whole: `hark rebuild` may have to choose without
        // MANIFEST.
        let whole = log::path(&self.dir, fresh.number, fresh.generation);
        let aside = whole.with_extension("new");
        let mut file = disk.create(&aside)?;
        file.write_all(&log::header(fresh.number, fresh.generation, salt))?;
        let mut moved = std::collections::HashMap::new();
        let mut end = log::HEADER;
        let (mut frames, mut out) = (Vec::new(), Vec::new());
        let mut failed = None;
        let mut flush = |frames: &mut Vec<u8>, end: &mut u64| {
            out.clear();
            LogFrame::Batch(frames.len() as u32).write(salt, &mut out);
            out.extend_from_slice(frames);
            frames.clear();
            *end += out.len() as u64;
            file.write_all(&out)
        };
        let path = log::path(&self.dir, old.number, old.generation);
        let id = (old.number, old.generation);
        log::replay_whole(disk, &path, id, &mut |offset, frame| {
            match frame {
                LogFrame::Put(_) if live.contains(&offset) => {
                    let place = end as usize + LogFrame::BATCH_BYTES + frames.len();
                    moved.insert(offset, place as u32);
                    frame.write(salt, &mut frames);
                }
                LogFrame::Delete { log, .. } if needed(log) => frame.write(salt, &mut frames),
                _ => {}
            }
            if frames.len() >= BATCH_BYTES && failed.is_none() {
                failed = flush(&mut frames, &mut end).err();
            }
        })?;
        if !frames.is_empty() && failed.is_none() {
            failed = flush(&mut frames, &mut end).err();
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        file.sync()?;
        disk.rename(&aside, &whole)?;
        self.note_written(end);
        Ok((moved, end))
    }

    /// Returns an error if a part of a file could not be read since `before`: the files made from
    /// it may be wrong. The next round finds the damaged file.
    fn all_was_read(&self, before: &ReadFaults) -> io::Result<()> {
        if self.has_lost(&self.view.load(), before) { Err(unreadable()) } else { Ok(()) }
    }

    fn note_done(
        &self,
        started: &JobStart,
        records: u64,
        bytes: u64,
        job: fn(&mut MaintenanceStats) -> &mut JobTotals,
    ) {
        let mut done = self.done.lock();
        let job = job(&mut done);
        job.records += records;
        job.bytes += bytes;
        job.cpu += thread_cpu().saturating_sub(started.cpu);
    }

    fn note_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes files that only the old manifest names. Readers that have them open can still read
    /// them. Files that cannot be removed now are left to the next round.
    fn remove_unnamed(&self, old: &Manifest, new: &Manifest) {
        let kept: HashSet<PathBuf> = new.files(&self.dir).collect();
        for path in old.files(&self.dir).filter(|path| !kept.contains(path)) {
            match self.options.disk.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(file = %path.display(), %error, "an old file was not taken away");
                    self.known.lock().untidy = true;
                }
                _ => {}
            }
        }
    }
}

fn moved_and_dead(segment: &Segment, log: u32) -> Vec<u32> {
    segment.dead.dead.ones().filter(|&row| segment.address(row).log == log).collect()
}

/// Returns the oldest neighbouring segments of one tier that are enough for a merge, with the
/// smaller segments between them.
fn due_merge(
    segments: &[Arc<Segment>],
    options: &crate::EmbeddedOptions,
) -> Option<std::ops::Range<usize>> {
    let rows: Vec<u32> = segments.iter().map(|segment| segment.weight()).collect();
    due(&rows, options)
}

fn due(rows: &[u32], options: &crate::EmbeddedOptions) -> Option<std::ops::Range<usize>> {
    let fan_in = options.merge_fan_in.max(2);
    let tier = |rows: &u32| {
        let ratio = f64::from(*rows.max(&1)) / f64::from(options.seal_records.max(1));
        // Heads are sealed a little above or below `seal_records`, so tiers begin at half of it.
        (ratio * 2.0).max(1.0).log(fan_in as f64).floor() as u32
    };
    (0..rows.len()).find_map(|start| {
        let here = tier(&rows[start]);
        let run = rows[start..].iter().map(tier).take_while(|tier| *tier <= here);
        // Smaller segments at the end wait until they are enough: otherwise a large segment would
        // be rewritten for every few of them.
        let (last, _) = run.enumerate().filter(|(_, tier)| *tier == here).nth(fan_in - 1)?;
        let range = start..start + last + 1;
        fits(&rows[range.clone()], options).then_some(range)
    })
}

/// Whether segments of these numbers of rows may be merged into one.
fn fits(rows: &[u32], options: &crate::EmbeddedOptions) -> bool {
    let rows = rows.iter().map(|rows| u64::from(*rows)).sum::<u64>();
    rows <= options.segment_records_max.min(WEIGHT_MAX)
}

/// Returns the oldest neighbouring segments that fit into one; `None` if no two do.
fn next_to_fit(
    segments: &[Arc<Segment>],
    options: &crate::EmbeddedOptions,
) -> Option<std::ops::Range<usize>> {
    let rows: Vec<u32> = segments.iter().map(|segment| segment.weight()).collect();
    let mut start = 0;
    while start < rows.len() {
        let many = (start + 1..=rows.len()).take_while(|&end| fits(&rows[start..end], options));
        let end = many.last().unwrap_or(start + 1);
        if end > start + 1 {
            return Some(start..end);
        }
        start = end;
    }
    None
}

/// Number of records in the segments that are due to be merged next.
pub(crate) fn merge_due_records(
    segments: &[Arc<Segment>],
    options: &crate::EmbeddedOptions,
) -> u64 {
    let due = due_merge(segments, options).and_then(|range| segments.get(range));
    due.into_iter().flatten().map(|segment| u64::from(segment.file.rows)).sum()
}

impl EmbeddedStore {
    /// Merges all segments into as few as possible and rewrites every log with dead records, beside
    /// readers and the writer.
    pub fn compact(&self, progress: OnProgress<'_>) -> Result<CompactionResult, MaintenanceError> {
        use hark_archive::Store;
        let shelf = &self.shelf;
        let before = self.stats();
        let _one_at_a_time = shelf.maintenance.lock();
        if shelf.signal.lock().resting {
            return Err(MaintenanceError::Resting);
        }
        let never = || false;
        let mut round = MaintenanceRound::new(shelf, &never);
        round.seal();
        progress(JobProgress { what: "merging segments", done: 0, total: 1 });
        round.merge(next_to_fit);
        progress(JobProgress { what: "merging segments", done: 1, total: 1 });
        round.rewrite(0.0, &|| true, progress);
        round.end()?;
        if let Some(path) = shelf.known.lock().damaged.keys().next() {
            return Err(MaintenanceError::Damaged(path.clone()));
        }
        let after = self.stats();
        Ok(CompactionResult {
            segments_before: before.segments,
            segments_after: after.segments,
            bytes_before: before.bytes,
            bytes_after: after.bytes,
        })
    }

    /// Waits until all maintenance that is due is done; for tests and benches.
    pub fn settle(&self) -> Result<(), MaintenanceError> {
        self.shelf.maintain_all()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU8;

    use hark_archive::effects::KeepAll;
    use hark_archive::{Query, RecordHeader, Store as _, Write};

    use super::*;
    use crate::EmbeddedOptions;
    use crate::disk::{Disk, DiskFile, RealDisk};
    use crate::map::Map;

    /// Seals heads of one size and merges what is due. Returns the rows of each segment that is
    /// left, and the number of rows merged.
    fn grow(seals: u32, options: &EmbeddedOptions) -> (Vec<u32>, u64) {
        let (mut rows, mut merged) = (Vec::new(), 0);
        for _ in 0..seals {
            rows.push(options.seal_records);
            while let Some(range) = due(&rows, options) {
                let sum: u32 = rows[range.clone()].iter().sum();
                merged += u64::from(sum);
                rows.splice(range, [sum]);
            }
        }
        (rows, merged)
    }

    #[test]
    fn a_record_is_merged_once_a_tier_and_no_segment_grows_without_bound() {
        let options = EmbeddedOptions {
            seal_records: 100,
            segment_records_max: 8_000,
            ..EmbeddedOptions::default()
        };
        let (rows, merged) = grow(1_525, &options);
        assert_eq!(merged, 1_525 / 8 * 800 + 1_525 / 64 * 6_400);
        let expected: Vec<u32> =
            [vec![6_400; 23], vec![800; 6], vec![100; 5]].into_iter().flatten().collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn small_ones_between_large_ones_go_with_them_and_block_nothing() {
        let options =
            EmbeddedOptions { seal_records: 100, merge_fan_in: 3, ..EmbeddedOptions::default() };
        assert_eq!(due(&[300, 100, 300, 100, 300, 100], &options), Some(0..5));
        assert_eq!(due(&[100, 300, 300, 300], &options), Some(1..4));
        assert_eq!(due(&[900, 100, 100], &options), None);
        assert_eq!(due(&[], &options), None);
    }

    /// A disk that calls a function before an address file is mapped.
    struct Meddling(Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

    impl Disk for Meddling {
        fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            RealDisk.create(path)
        }

        fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
            RealDisk.append(path, sure, len)
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            RealDisk.rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            RealDisk.remove(path)
        }

        fn create_dir(&self, path: &Path) -> io::Result<()> {
            RealDisk.create_dir(path)
        }

        fn sync_dir(&self, path: &Path) -> io::Result<()> {
            RealDisk.sync_dir(path)
        }

        fn map(&self, path: &Path, reserve: Option<usize>) -> io::Result<Map> {
            if path.extension().is_some_and(|ending| ending == "addr") {
                self.0.get().inspect(|meddle| meddle());
            }
            RealDisk.map(path, reserve)
        }
    }

    /// Records deleted while a segment is opened must count as dead: otherwise their log would
    /// never be rewritten, and other records would be deleted in its place.
    #[test]
    fn records_that_are_deleted_while_a_segment_is_put_in_place_are_counted() {
        let dir = hark_testkit::disk::scratch("deleted-meanwhile");
        let meddle = Arc::new(OnceLock::new());
        let options = EmbeddedOptions {
            seal_records: 20,
            merge_fan_in: 2,
            rewrite_dead_share: 1.0,
            background: false,
            disk: Arc::new(Meddling(Arc::clone(&meddle))),
            ..EmbeddedOptions::default()
        };
        let store = Arc::new(EmbeddedStore::open(&dir, Box::new(KeepAll), options).unwrap());
        let id = |number: u8| [number; 32];
        let put = |number: u8| {
            let head =
                RecordHeader { id: id(number), time: 1, author: None, kind: 0, expires: None };
            Write::Put(hark_testkit::random::encode(&head, &[]))
        };
        let frame_bytes = 9 + if let Write::Put(record) = put(0) { record.len() as u64 } else { 0 };
        let (weak, next) = (Arc::downgrade(&store), AtomicU8::new(0));
        let deletes = move || {
            let ids = Some(vec![id(next.fetch_add(1, Ordering::Relaxed))]);
            let delete = Write::Erase(Box::new(Query { limit: 1, ids, ..Query::default() }));
            weak.upgrade().unwrap().commit(&[delete]).unwrap();
        };
        assert!(meddle.set(Box::new(deletes)).is_ok());
        for number in 0..200 {
            store.commit(&[put(number)]).unwrap();
        }
        let stats = store.stats();
        assert!(
            stats.maintenance.sealing.records > 0 && stats.maintenance.merging.records > 0,
            "{stats:?}"
        );
        assert_eq!(stats.dead_bytes, (200 - stats.records) * frame_bytes);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
