//! Begins a new head: the active head and its log are frozen, and a new log and head take their
//! place.

use std::io;

use super::shelf::OpenShelf;
use super::shelf_view::ShelfView;
use super::writer::LogWriterState;
use crate::manifest::LogEntry;
use crate::options::EmbeddedOptions;
use crate::space::errors::is_passing;

/// If this many heads wait to be sealed, the writer waits until a head is sealed.
const FROZEN_MAX: usize = 4;

/// Begins a new log and head. Maintenance seals the old head.
pub(super) fn rotate(shelf: &OpenShelf, writing: &mut LogWriterState) -> io::Result<()> {
    let files = &shelf.files;
    let view = shelf.view.load_full();
    let number = view.active.log.number + 1;
    if let Some(last) = &mut writing.tail {
        last.close()?;
    }
    let tail = files.new_log(number)?;
    let log = files.open_growing(number, 0, tail.len)?;
    // Once the manifest names the new log, this log is the active log, so no later step may fail.
    {
        let mut manifest = shelf.writer.manifest();
        let mut next = manifest.clone();
        next.logs.push(LogEntry::new(number));
        next.write(files.disk(), files.dir())?;
        *manifest = next;
    }
    if let Some(old) = writing.tail.replace(tail) {
        old.finish();
    }
    let base = view.active.base + u64::from(view.active.inserted());
    shelf.view.begin_head(&files.new_head(log, base));
    Ok(())
}

/// Begins a new head if the active head has dead records or deletions. Maintenance seals the old
/// head. Does nothing while too many heads wait for sealing, or in a process that does not write.
pub(crate) fn freeze_head(shelf: &OpenShelf) -> io::Result<()> {
    let mut writing = shelf.writer.lock();
    let is_writing = writing.tail.is_some() && writing.stopped.is_none();
    let may_wait = shelf.view.load().frozen.len() < FROZEN_MAX;
    if !is_writing || !may_wait || !shelf.view.load().active.log.has_dead() {
        return Ok(());
    }
    rotate(shelf, &mut writing).inspect_err(|error| {
        if !is_passing(error) {
            writing.stopped = Some(format!("a new log could not be begun: {error}"));
        }
    })
}

/// Whether the writer must wait because too many or too large heads wait for sealing.
pub(crate) fn must_seal_first(options: &EmbeddedOptions, view: &ShelfView) -> bool {
    let bytes = view.frozen.iter().map(|head| head.bytes()).sum();
    view.frozen.len() >= FROZEN_MAX || options.must_seal_first(bytes)
}
