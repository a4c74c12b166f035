//! Compares the lengths of mapped files with their maps. If another program has shortened a file,
//! the rest of its last page reads as zeros, without an error. Reads of later pages fail, and
//! [`crate::map`] handles these failures.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::engine::faults::note_unreadable;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_view::ShelfView;
use crate::segment;
use crate::segment::sidecar::SidecarKind;

/// The time between two checks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The time after which a read of a record verifies its checksum again, because the system may have
/// dropped the bytes from its cache and read them from the disk again.
const VERIFY_EVERY: Duration = Duration::from_hours(1);

/// The times of the last checks.
pub(crate) struct FileLooks {
    looked: Instant,
    forgotten: Instant,
}

impl FileLooks {
    pub(crate) fn new() -> Self {
        Self { looked: Instant::now(), forgotten: Instant::now() }
    }

    /// Checks the files of the shelf if a check is due.
    pub(crate) fn check_if_due(&mut self, shelf: &OpenShelf) {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            check_lengths(shelf);
        }
        if self.forgotten.elapsed() >= VERIFY_EVERY {
            self.forgotten = Instant::now();
            forget_verified(&shelf.view.load_full());
        }
    }
}

/// Notes the files that are shorter than their maps. Such a file counts as unreadable: queries that
/// need the file fail until maintenance has replaced the file.
pub(crate) fn check_lengths(shelf: &OpenShelf) {
    let view = shelf.view.load_full();
    let sealed = view.segments.iter().flat_map(|segment| segment.logs.iter().flatten());
    // The written lengths are read before the lengths of the files. Logs only grow, so an undamaged
    // file cannot be shorter than the written length.
    let logs = sealed.chain(view.heads().map(|head| &head.log));
    let logs: Vec<_> = logs.map(|log| (log, log.written())).collect();
    let list = |folder: &str| {
        // If a directory cannot be listed, no file counts as short.
        let files = shelf.files.disk().list(&shelf.files.dir().join(folder)).unwrap_or_default();
        files.into_iter().collect::<HashMap<String, u64>>()
    };
    let (in_log, in_seg) = (list("log"), list("seg"));
    let is_short = |files: &HashMap<String, u64>, path: &Path, len: u64| {
        let name = path.file_name().and_then(|name| name.to_str());
        // The map of a removed file is still complete.
        name.and_then(|name| files.get(name)).is_some_and(|found| *found < len)
    };
    let mut found = false;
    for (log, written) in logs {
        if !log.is_unreadable() && is_short(&in_log, log.path(), written) {
            log.note_lost();
            found = true;
        }
    }
    for segment in view.segments.iter().filter(|segment| !segment.is_unreadable()) {
        let (entry, addresses) = (&segment.entry, &segment.addresses);
        let file = segment::path(shelf.files.dir(), entry.number);
        if is_short(&in_seg, &file, segment.file.bytes()) {
            segment.file.note_lost();
            found = true;
        }
        let file = SidecarKind::Addresses.path(shelf.files.dir(), entry.number, entry.addresses);
        if is_short(&in_seg, &file, addresses.bytes()) {
            addresses.note_lost();
            found = true;
        }
    }
    if found {
        note_unreadable(shelf, &view);
    }
}

/// Lets the next read of each record verify the checksum again.
pub(crate) fn forget_verified(view: &ShelfView) {
    view.heads().for_each(|head| head.forget_verified());
    view.segments.iter().for_each(|segment| segment.dead.verified.clear_all());
}
