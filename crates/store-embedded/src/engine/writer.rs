//! The state of commits: the end of the log, the batch being gathered, and the manifest.

use std::sync::Arc;

use hark_archive::effects::{Effects, Rules};
use hark_archive::limits::ERASE_STEP;
use hark_archive::meter::Histogram;
use hark_archive::{Id, Outcome};
use parking_lot::{Mutex, MutexGuard};

use super::rule_search::RuleSearches;
use super::shelf_view::{LiveRow, ShelfView};
use super::tail::LogTail;
use crate::log::LogFrame;
use crate::manifest::Manifest;
use crate::term::TermBuffers;

/// The writer of a shelf. Its state and the manifest have a lock each. A thread that needs the two
/// locks takes the lock of the state first.
pub(crate) struct ShelfWriter {
    rules: Box<dyn Rules>,
    state: Mutex<LogWriterState>,
    manifest: Mutex<Manifest>,
    /// Durations of the log's syncs.
    syncs: Histogram,
}

impl ShelfWriter {
    pub(super) fn new(rules: Box<dyn Rules>, manifest: Manifest) -> Self {
        Self {
            rules,
            state: Mutex::new(LogWriterState::new(None)),
            manifest: Mutex::new(manifest),
            syncs: Histogram::default(),
        }
    }

    /// Locks the state of the committing thread.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, LogWriterState> {
        self.state.lock()
    }

    /// Locks the manifest. A thread that also needs the state locks the state first.
    pub(crate) fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock()
    }

    /// Begins to write at `tail`, the end of a log.
    pub(super) fn begin(&mut self, tail: LogTail) {
        self.state = Mutex::new(LogWriterState::new(Some(tail)));
    }

    #[inline]
    pub(super) fn rules(&self) -> &dyn Rules {
        &*self.rules
    }

    /// Durations of the log's syncs.
    #[inline]
    pub(super) fn syncs(&self) -> &Histogram {
        &self.syncs
    }
}

/// The state of the committing thread.
pub(crate) struct LogWriterState {
    /// `None` in a process that only reads.
    pub(super) tail: Option<LogTail>,
    /// The end of the log, and the manifest, while another process may write to the log.
    pub(super) released: Option<ReleasedShelf>,
    /// Number of records read from another process's batches.
    pub(super) followed: u64,
    /// Why writing has stopped, after a failed write or sync.
    pub(super) stopped: Option<String>,
    /// The frames of the batch being gathered. The first frame, which begins the batch, is filled
    /// in last. The writer's searches share the frames, because rules also apply to records of the
    /// same batch.
    pub(super) frames: Arc<Vec<u8>>,
    /// Buffer in which the batch frame is encoded.
    pub(super) start: Vec<u8>,
    pub(super) terms: TermBuffers,
    pub(super) effects: Effects,
    pub(super) targets: Vec<LiveRow>,
    pub(super) step: EraseStep,
    pub(super) searches: RuleSearches,
}

/// The state that is needed to resume writing to a released shelf.
pub(super) struct ReleasedShelf {
    pub(super) tail: LogTail,
    /// The manifest on the disk. It differs from the manifest in memory, which also counts file
    /// numbers that failed jobs have used.
    pub(super) manifest: Option<Manifest>,
}

/// The limit of deletions in one step of a commit, and the deletions of the current write.
#[derive(Default)]
pub(super) struct EraseStep {
    pub(super) left: usize,
    /// Whether the current write needs more deletions or more searching than one step allows.
    pub(super) unfinished: bool,
    /// The ids that the current write has deleted.
    pub(super) erased: Vec<Id>,
}

impl LogWriterState {
    fn new(tail: Option<LogTail>) -> Self {
        Self {
            tail,
            released: None,
            followed: 0,
            stopped: None,
            frames: Arc::default(),
            start: Vec::new(),
            terms: TermBuffers::default(),
            effects: Effects::default(),
            targets: Vec::new(),
            step: EraseStep::default(),
            searches: RuleSearches::default(),
        }
    }

    /// Number of bytes of the log that this process writes; 0 in a process that only reads.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.tail.as_ref().map_or(0, |tail| tail.len)
    }

    /// Empties the batch and begins a step.
    pub(super) fn begin_batch(&mut self) {
        self.empty_frames();
        self.targets.clear();
        self.step = EraseStep { left: ERASE_STEP, ..EraseStep::default() };
    }

    /// Forgets the gathered batch, which is not in the log.
    pub(super) fn discard_unpublished(&mut self, view: &ShelfView) {
        view.active.discard_unpublished();
        self.targets.drain(..).for_each(|target| target.spare());
        self.empty_frames();
        self.searches.forget();
    }

    /// Postpones the current write to its next step. The current step applies no part of the write.
    pub(super) fn pause(&mut self) -> Outcome {
        self.step.unfinished = true;
        Outcome::Erased(0)
    }

    /// Empties the batch. Searches that are running keep the old frames.
    fn empty_frames(&mut self) {
        match Arc::get_mut(&mut self.frames) {
            Some(frames) => frames.clear(),
            None => self.frames = Arc::default(),
        }
    }

    /// Adds a frame to the batch and returns its offset from the batch's start.
    #[inline]
    pub(super) fn gather(&mut self, frame: LogFrame<'_>, salt: u32) -> usize {
        let frames = Arc::make_mut(&mut self.frames);
        if frames.is_empty() {
            frames.resize(LogFrame::BATCH_BYTES, 0);
        }
        let at = frames.len();
        frame.write(salt, frames);
        at
    }

    /// Adds the deletion of a row to the batch. Returns the size of the batch so far, in bytes;
    /// `None` in a process that only reads.
    pub(crate) fn gather_deletion(&mut self, id: Id, row: LiveRow) -> Option<usize> {
        let salt = self.tail.as_ref()?.salt;
        row.mark_deleted();
        self.gather(LogFrame::Delete { id, log: row.log() }, salt);
        self.targets.push(row);
        Some(self.frames.len())
    }
}
