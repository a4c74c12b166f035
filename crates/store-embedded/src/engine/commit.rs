//! Commits a part of a batch: one sync of the log makes this part durable, and then readers see the
//! part.

use std::io;
use std::sync::Arc;

use hark_archive::{CommitError, CommitResult, Write};
use parking_lot::MutexGuard;

use super::apply::WriteStep;
use super::faults::note_unreadable;
use super::files::ShelfFiles;
use super::heads::{must_seal_first, rotate};
use super::shelf::OpenShelf;
use super::shelf_view::ShelfView;
use super::tail::AppendError;
use super::writer::{LogWriterState, ShelfWriter};
use crate::log::{Log, LogFrame};
use crate::maintenance::sealing::{after_rotation, wait_for_sealing};
use crate::space::errors::{is_full, is_passing};
use crate::space::writes::{self, check_space, refuse, reserve_space};

/// Commits writes until the step or the list of writes ends, with one sync. The caller has checked
/// the records. `is_end` means that these are the last writes of the batch.
pub(super) fn commit_piece(
    shelf: &OpenShelf,
    writes: &[Write],
    is_end: bool,
    done: &mut CommitResult,
) -> Result<(), CommitError> {
    let OpenShelf { files, writer, view, jobs } = shelf;
    let writing = writer.lock();
    if let Some(reason) = &writing.stopped {
        return Err(CommitError::Stopped(reason.clone()));
    }
    if writing.tail.is_none() {
        return Err(CommitError::ReadOnly);
    }
    let needs = writes::needs(writes);
    // If the batch begins a new log, the space that is reserved for the active log does not count.
    let tail = writing.tail.as_ref().filter(|_| !needs_new_head(shelf, &writing));
    check_space((files, jobs), tail, writes, needs)?;
    make_room(shelf, writing)?;
    let mut writing = writer.lock();
    reserve_space(jobs, writing.tail.as_mut(), needs)?;
    let view = view.load_full();
    if let Some(trouble) = view.trouble() {
        note_unreadable(shelf, &view);
        return Err(CommitError::Unavailable(trouble));
    }
    writing.begin_batch();
    let (rules, terms) = (writer.rules(), files.terms());
    let mut step = WriteStep { rules, terms, jobs, view: &view, writing: &mut writing };
    step.carry_out_all(writes, is_end, done)?;
    if let Some(trouble) = view.trouble() {
        // An unreadable file may have misled the rules, so no part of the batch is written.
        writing.discard_unpublished(&view);
        note_unreadable(shelf, &view);
        return Err(CommitError::Unavailable(trouble));
    }
    let before = files.written_bytes();
    flush(shelf, &mut writing, &view)?;
    done.bytes += files.written_bytes() - before;
    drop(writing);
    let erases = || writes.iter().any(|write| matches!(write, Write::Erase(_)));
    if files.options().background && erases() {
        // Maintenance is woken now, because a rewrite of a log may be due and the next commit may
        // come much later.
        jobs.call();
    }
    Ok(())
}

/// Whether the next batch needs a new head, because the active head is full, or a part of its log
/// could not be read. The map of such a log has zeros for good, even if the log can be read again.
fn needs_new_head(shelf: &OpenShelf, writing: &LogWriterState) -> bool {
    let OpenShelf { files, view, .. } = shelf;
    let (head, log_bytes_max) = (&view.load().active, files.bounds().log_bytes_max);
    let log_bytes = writing.log_bytes();
    files.options().is_full(head.inserted(), head.bytes(), log_bytes, log_bytes_max)
        || head.log.is_unreadable()
}

/// Begins a new head if necessary. Maintenance seals the old head.
fn make_room<'a>(
    shelf: &'a OpenShelf,
    mut writing: MutexGuard<'a, LogWriterState>,
) -> Result<(), CommitError> {
    let OpenShelf { files, writer, jobs, .. } = shelf;
    let note = |error: &CommitError| {
        if let CommitError::Stopped(reason) = error {
            writer.lock().stopped = Some(reason.clone());
        }
    };
    if !needs_new_head(shelf, &writing) {
        return Ok(());
    }
    if must_seal_first(files.options(), &shelf.view.load()) {
        drop(writing);
        wait_for_sealing(shelf).inspect_err(note)?;
        writing = writer.lock();
    }
    if let Err(error) = rotate(shelf, &mut writing) {
        jobs.note_untidy();
        let reason = format!("a new log could not be begun: {error}");
        if is_full(&error) {
            return Err(refuse(jobs, &reason));
        }
        jobs.call();
        if is_passing(&error) {
            return Err(CommitError::Unavailable(reason));
        }
        writing.stopped = Some(reason.clone());
        return Err(CommitError::Stopped(reason));
    }
    drop(writing);
    after_rotation(shelf).inspect_err(note)
}

/// Makes the gathered batch durable, then visible to readers.
pub(crate) fn flush(
    shelf: &OpenShelf,
    writing: &mut LogWriterState,
    view: &ShelfView,
) -> Result<(), CommitError> {
    match append((&shelf.files, &shelf.writer), writing, &view.active.log) {
        Ok(()) => {}
        Err(AppendError::Full(error)) => {
            writing.discard_unpublished(view);
            return Err(refuse(&shelf.jobs, &format!("the log could not be written: {error}")));
        }
        Err(AppendError::Failed(error)) => {
            let reason = format!("the log could not be written: {error}");
            writing.stopped = Some(reason.clone());
            return Err(CommitError::Stopped(reason));
        }
    }
    view.active.log.note_deletions(writing.targets.len() as u64);
    view.active.publish();
    writing.targets.drain(..).for_each(|target| target.kill());
    Ok(())
}

/// Writes and syncs the gathered frames.
fn append(
    (files, writer): (&ShelfFiles, &ShelfWriter),
    writing: &mut LogWriterState,
    log: &Log,
) -> Result<(), AppendError> {
    let LogWriterState { tail, frames, start, .. } = writing;
    let failed = |why: String| Err(AppendError::Failed(io::Error::other(why)));
    if frames.is_empty() {
        return Ok(());
    }
    let Some(tail) = tail else { return failed("not open for writing".into()) };
    let frames = Arc::make_mut(frames);
    let end = tail.len + frames.len() as u64;
    if end > log.room() {
        // The end of a log this long could not be read back. A batch makes a log so long only if
        // one record deletes tens of millions of other records.
        return failed(format!("a batch would make it {end} bytes long"));
    }
    start.clear();
    let inner = frames.len() - LogFrame::BATCH_BYTES;
    LogFrame::Batch(inner as u32).write(tail.salt, start);
    frames[..LogFrame::BATCH_BYTES].copy_from_slice(start);
    let written = tail.append(frames, writer.syncs());
    let bytes = frames.len() as u64;
    frames.clear();
    written?;
    log.grow(tail.len);
    files.note_written(bytes);
    Ok(())
}
