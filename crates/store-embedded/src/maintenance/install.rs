//! The common parts of all jobs: making a job's result visible in one step, and counting its work.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hark_archive::store::{JobTotals, MaintenanceStats};
use parking_lot::MutexGuard;
use rustix::time::{ClockId, clock_gettime};

use super::error::MaintenanceError;
use super::jobs::ShelfJobs;
use crate::disk::Disk;
use crate::engine::current_view::ReadFaults;
use crate::engine::faults::has_lost;
use crate::engine::files::ShelfFiles;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_view::ShelfView;
use crate::log::Log;
use crate::manifest::{Manifest, SegmentEntry};
use crate::map::unreadable;
use crate::segment;
use crate::segment::opened::Segment;
use crate::segment::sidecar::SidecarKind;

/// The time at which a job began.
pub(super) struct JobStart {
    pub(super) wall: Instant,
    /// Processor time of the thread when the job began.
    cpu: Duration,
}

impl JobStart {
    pub(super) fn now() -> Self {
        Self { wall: Instant::now(), cpu: thread_cpu() }
    }
}

fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Replaces old segments by new ones. First marks the rows that died during the job (`died`) as
/// dead, saves the dead rows of all segments, and applies `change` to the manifest. Then readers
/// see the new segments.
pub(super) fn install(
    shelf: &OpenShelf,
    disk: &dyn Disk,
    entries: &[SegmentEntry],
    died: &dyn Fn(usize) -> Vec<u32>,
    change: &dyn Fn(&mut Manifest, Vec<SegmentEntry>),
) -> Result<(), MaintenanceError> {
    disk.sync_dir(&shelf.files.dir().join("seg"))?;
    let change = |manifest: &mut Manifest| {
        change(manifest, entries.to_vec());
        let used = entries.iter().map(|entry| entry.number + 1);
        manifest.next_segment = used.chain([manifest.next_segment]).max().unwrap_or_default();
    };
    // The segments are opened before the writer's lock is taken, so that the writer does not wait
    // for the reads of trailers and addresses.
    let mut next = shelf.writer.manifest().clone();
    change(&mut next);
    let open = |entry| shelf.files.open_segment(disk, entry, &next, None);
    let fresh = entries.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let _writing = shelf.writer.lock();
    let mut manifest = shelf.writer.manifest();
    let mut next = manifest.clone();
    change(&mut next);
    let view = shelf.view.load_full();
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
                log.copy_rewrite_data(known);
            }
        }
    }
    let fresh: Vec<_> = fresh.into_iter().map(Arc::new).collect();
    let mut segments = Vec::new();
    for line in &mut next.segments {
        let mut known = view.segments.iter().chain(&fresh);
        let Some(segment) = known.find(|known| known.entry.number == line.number) else {
            let missing = segment::path(shelf.files.dir(), line.number);
            return Err(MaintenanceError::Damaged(missing));
        };
        segments.push(save_dead(&shelf.files, disk, segment, line)?);
    }
    next.note_dead(segments.iter().flat_map(|segment| &segment.logs).flatten());
    disk.sync_dir(&shelf.files.dir().join("seg"))?;
    next.write(disk, shelf.files.dir())?;
    for segment in &segments {
        segment.dead.note_saved();
    }
    let old = std::mem::replace(&mut *manifest, next);
    let new = manifest.clone();
    drop(manifest);
    let frozen: Vec<_> =
        view.frozen.iter().filter(|head| !new.is_sealed(head.log.number)).cloned().collect();
    shelf
        .view
        .update(|view| ShelfView::new(segments.clone(), frozen.clone(), Arc::clone(&view.active)));
    remove_unnamed((&shelf.files, &shelf.jobs), &old, &new);
    Ok(())
}

/// Changes a segment's line in the manifest to name the next address file, which is already
/// written. Also saves the dead rows, which tell the next start that the rows without an address
/// are dead. So the start need not read a log.
pub(super) fn readdress(
    files: &ShelfFiles,
    disk: &dyn Disk,
    segment: &Arc<Segment>,
    line: &mut SegmentEntry,
) -> Result<SegmentEntry, MaintenanceError> {
    line.addresses += 1;
    save_dead(files, disk, segment, line)?;
    disk.sync_dir(&files.dir().join("seg"))?;
    Ok(line.clone())
}

/// Opens a segment again, with the same dead rows and with the files that `line` and `manifest`
/// name.
pub(super) fn reopen(
    files: &ShelfFiles,
    disk: &dyn Disk,
    segment: &Segment,
    line: &SegmentEntry,
    manifest: &Manifest,
) -> Result<Segment, MaintenanceError> {
    let dead = Some(Arc::clone(&segment.dead));
    Ok(files.open_segment(disk, line, manifest, dead)?)
}

/// Replaces the manifest by `next`. In the view, replaces the segment that has the same number as
/// `renewed`. The caller holds the writer's lock.
pub(super) fn replace_segment(
    shelf: &OpenShelf,
    disk: &dyn Disk,
    mut manifest: MutexGuard<'_, Manifest>,
    next: Manifest,
    renewed: Segment,
) -> Result<Arc<Segment>, MaintenanceError> {
    next.write(disk, shelf.files.dir())?;
    renewed.dead.note_saved();
    let old = std::mem::replace(&mut *manifest, next);
    let new = manifest.clone();
    drop(manifest);
    let renewed = Arc::new(renewed);
    shelf.view.update(|view| {
        let renew = |known: &Arc<Segment>| {
            let is_it = known.entry.number == renewed.entry.number;
            Arc::clone(if is_it { &renewed } else { known })
        };
        let segments = view.segments.iter().map(renew).collect();
        ShelfView::new(segments, view.frozen.clone(), Arc::clone(&view.active))
    });
    remove_unnamed((&shelf.files, &shelf.jobs), &old, &new);
    Ok(renewed)
}

/// Writes the dead rows of a segment if its `.dead` file lacks some dead rows. Returns the segment
/// with its new line of the manifest. The rows count as saved only after the manifest names the
/// file.
fn save_dead(
    files: &ShelfFiles,
    disk: &dyn Disk,
    segment: &Arc<Segment>,
    line: &mut SegmentEntry,
) -> Result<Arc<Segment>, MaintenanceError> {
    let count = segment.dead.rows.count();
    if count != segment.dead.saved.load(Ordering::Relaxed) {
        line.dead += 1;
        let id = (line.number, line.dead);
        let bytes = SidecarKind::Dead.write(disk, files.dir(), id, segment.dead.words())?;
        files.note_written(bytes);
    }
    if segment.entry == *line {
        return Ok(Arc::clone(segment));
    }
    Ok(Arc::new(segment.with_entry(line.clone())))
}

/// Returns an error if a read of a file has failed since `before`, because the files that the job
/// wrote may then be wrong. The next round finds the damaged file.
pub(super) fn all_was_read(shelf: &OpenShelf, before: &ReadFaults) -> io::Result<()> {
    if has_lost(shelf, &shelf.view.load(), before) { Err(unreadable()) } else { Ok(()) }
}

pub(super) fn note_done(
    jobs: &ShelfJobs,
    started: &JobStart,
    records: u64,
    bytes: u64,
    job: fn(&mut MaintenanceStats) -> &mut JobTotals,
) {
    let cpu = thread_cpu().saturating_sub(started.cpu);
    jobs.note_done(|done| {
        let job = job(done);
        job.records += records;
        job.bytes += bytes;
        job.cpu += cpu;
    });
}

/// Removes files that the old manifest names and the new manifest does not. Readers that have a
/// file open can go on reading. Files that cannot be removed now are removed in the next round.
pub(super) fn remove_unnamed(
    (files, jobs): (&ShelfFiles, &ShelfJobs),
    old: &Manifest,
    new: &Manifest,
) {
    let kept: HashSet<PathBuf> = new.files(files.dir()).collect();
    for path in old.files(files.dir()).filter(|path| !kept.contains(path)) {
        match files.disk().remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(file = %path.display(), %error, "an old file could not be removed");
                jobs.note_untidy();
            }
            _ => {}
        }
    }
}
