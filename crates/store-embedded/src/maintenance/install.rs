//! The common parts of all jobs: checking the disk space, installing the result in one step, and
//! counting the work.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hark_archive::store::{JobTotals, MaintenanceStats};
use parking_lot::MutexGuard;
use rustix::time::{ClockId, clock_gettime};

use super::MaintenanceError;
use crate::disk::Disk;
use crate::log::Log;
use crate::manifest::{Manifest, SegmentEntry};
use crate::map::unreadable;
use crate::open::open_segment;
use crate::room::{BESIDE_COMPACTION, ReservingDisk};
use crate::segment::sidecar::SidecarKind;
use crate::segment::view::Segment;
use crate::segment::{self, view};
use crate::shelf::{EmbeddedShelf, LogWriterState};
use crate::suspect::ReadFaults;
use crate::view::ShelfView;

/// The start of a job.
pub(super) struct JobStart {
    pub(super) wall: Instant,
    /// Processor time that the thread had used at the start.
    cpu: Duration,
}

impl JobStart {
    pub(super) fn now() -> Self {
        Self { wall: Instant::now(), cpu: thread_cpu() }
    }
}

pub(super) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl EmbeddedShelf {
    /// The number of the next segment. The number counts as used once MANIFEST names the segment:
    /// if a job fails, the next job uses the same number.
    pub(super) fn segment_number(&self) -> u32 {
        self.manifest.lock().next_segment
    }

    /// Returns the disk for a job that writes at most `needs` bytes and leaves `beside` bytes free;
    /// an error if the disk has less free space than both together.
    pub(super) fn room(
        &self,
        job: &'static str,
        beside: u64,
        needs: u64,
    ) -> io::Result<ReservingDisk> {
        let disk = Arc::clone(&self.options.disk);
        let compacting = self.space.compacting.load(Ordering::Relaxed);
        let gives_space = compacting || self.lacks_space();
        let beside = if gives_space { BESIDE_COMPACTION } else { beside };
        let room = ReservingDisk { disk, dir: self.dir.clone(), job, beside };
        room.check(needs)?;
        Ok(room)
    }

    /// Total bytes of the `.dead` files of all segments, which a job may have to write.
    pub(crate) fn dead_files_max(&self) -> u64 {
        let view = self.view.load();
        let bytes = |segment: &Arc<Segment>| {
            SidecarKind::Dead.bytes(view::RowMarks::words_on_disk(segment.file.rows))
        };
        view.segments.iter().map(bytes).sum()
    }

    /// Installs new segments. Marks the rows that `died` during the job as dead, saves the dead
    /// rows of all segments, and applies `change` to the manifest. Then makes the new segments
    /// visible to readers.
    pub(super) fn install(
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
        // Open the segments before taking the writer's lock: opening reads only the trailer and the
        // addresses, but need not block the writer.
        let mut next = self.manifest.lock().clone();
        change(&mut next);
        let files = (disk, &*self.dir);
        let open =
            |entry| open_segment(files, entry, &next, self.terms.clone(), None, &self.damage);
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
        let known: HashMap<u32, &Arc<Log>> = (view.segments.iter())
            .flat_map(|segment| segment.logs.iter().flatten())
            .map(|log| (log.number, log))
            .collect();
        for fresh in &fresh {
            fresh.set_dead(&next.logs);
            for log in fresh.logs.iter().flatten() {
                if let Some(known) = known.get(&log.number) {
                    log.copy_kept(known);
                }
            }
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
        next.note_dead(segments.iter().flat_map(|segment| &segment.logs).flatten());
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

    /// Changes a segment's line to name the next address file, which has already been written. Also
    /// saves the dead rows: a start must know rows without an address to be dead without reading a
    /// log.
    pub(super) fn readdress(
        &self,
        disk: &dyn Disk,
        segment: &Arc<Segment>,
        line: &mut SegmentEntry,
    ) -> Result<SegmentEntry, MaintenanceError> {
        line.addresses += 1;
        self.save_dead(disk, segment, line)?;
        disk.sync_dir(&self.dir.join("seg"))?;
        Ok(line.clone())
    }

    /// Opens a segment again, with the files that `line` and `manifest` name and with the same dead
    /// rows.
    pub(super) fn reopen(
        &self,
        disk: &dyn Disk,
        segment: &Segment,
        line: &SegmentEntry,
        manifest: &Manifest,
    ) -> Result<Segment, MaintenanceError> {
        let dead = Some(Arc::clone(&segment.dead));
        Ok(open_segment((disk, &self.dir), line, manifest, self.terms.clone(), dead, &self.damage)?)
    }

    /// Replaces the manifest by `next`, and the segment that has the same number in the view by
    /// `renewed`. The caller holds `writing`.
    pub(super) fn replace_segment(
        &self,
        disk: &dyn Disk,
        mut manifest: MutexGuard<'_, Manifest>,
        next: Manifest,
        renewed: Segment,
    ) -> Result<Arc<Segment>, MaintenanceError> {
        next.write(disk, &self.dir)?;
        renewed.dead.note_saved();
        let old = std::mem::replace(&mut *manifest, next);
        let new = manifest.clone();
        drop(manifest);
        let renewed = Arc::new(renewed);
        self.update_view(|view| {
            let renew = |known: &Arc<Segment>| {
                let is_it = known.entry.number == renewed.entry.number;
                Arc::clone(if is_it { &renewed } else { known })
            };
            let segments = view.segments.iter().map(renew).collect();
            ShelfView::new(segments, view.frozen.clone(), Arc::clone(&view.active))
        });
        self.remove_unnamed(&old, &new);
        Ok(renewed)
    }

    /// Writes the dead rows of a segment if its `.dead` file lacks some of these rows, and returns
    /// the segment with the new manifest line. The rows count as saved once the manifest names the
    /// file.
    pub(super) fn save_dead(
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

    /// Returns an error if a read of a file has failed since `before`: the files that the job has
    /// made may be wrong. The next round finds the damaged file.
    pub(super) fn all_was_read(&self, before: &ReadFaults) -> io::Result<()> {
        if self.has_lost(&self.view.load(), before) { Err(unreadable()) } else { Ok(()) }
    }

    pub(super) fn note_done(
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

    pub(super) fn note_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes files that only the old manifest names. Readers with open files can continue to
    /// read. The next round retries files that cannot be removed now.
    pub(super) fn remove_unnamed(&self, old: &Manifest, new: &Manifest) {
        let kept: HashSet<PathBuf> = new.files(&self.dir).collect();
        for path in old.files(&self.dir).filter(|path| !kept.contains(path)) {
            match self.options.disk.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(file = %path.display(), %error, "an old file could not be removed");
                    self.known.lock().untidy = true;
                }
                _ => {}
            }
        }
    }
}
