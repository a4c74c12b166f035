//! A shelf and its one writer. Readers see the shelf through `crate::view`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use hark_archive::effects::{Effects, Rules};
use hark_archive::limits::{ERASE_STEP, SEARCH_BATCH};
use hark_archive::meter::Histogram;
use hark_archive::query::prepared::TermMap as _;
use hark_archive::store::{MaintenanceStats, SpaceBounds};
use hark_archive::{CommitError, CommitResult, Id, Order, Outcome, Position, Query, Record, Write};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::damage::DamagedRecords;
use crate::follow::ReleasedShelf;
use crate::head::Head;
use crate::log::{self, Log, LogFrame};
use crate::maintenance::{EraseSchedule, MaintenanceSignal, MaintenanceState};
use crate::manifest::{LogEntry, Manifest};
use crate::options::EmbeddedOptions;
use crate::room::{DiskSpace, is_full, is_passing};
use crate::rule_search::{RuleSearches, WriteKey, may_match, unlimited};
use crate::scrub::ScrubState;
use crate::space;
use crate::tail::{AppendError, LogTail};
use crate::term::{TermBuffers, TermHasher};
use crate::view::{LiveRow, ShelfView};

/// Maximum number of bytes per sync; larger batches are synced in pieces.
pub(crate) const SYNC_BYTES_MAX: usize = 32 << 20;
/// Number of heads waiting to be sealed at which the writer waits for sealing.
pub(crate) const FROZEN_MAX: usize = 4;

/// The state of the committing thread.
pub(crate) struct LogWriterState {
    /// `None` in a process that only reads.
    pub tail: Option<LogTail>,
    /// The tail, kept while another process may continue the log.
    pub released: Option<ReleasedShelf>,
    /// Number of records read from another process's batches.
    pub followed: u64,
    /// The reason why writing has stopped after a failed write or sync.
    pub stopped: Option<String>,
    /// The batch being gathered. The first frame, the batch frame, is filled in last. The writer's
    /// searches share these frames, since rules also apply to the records of the batch.
    pub frames: Arc<Vec<u8>>,
    /// Buffer in which the batch frame is encoded.
    pub start: Vec<u8>,
    pub terms: TermBuffers,
    pub effects: Effects,
    pub targets: Vec<LiveRow>,
    pub step: EraseStep,
    pub searches: RuleSearches,
}

/// The deletions of one step of a commit.
#[derive(Default)]
pub(crate) struct EraseStep {
    left: usize,
    /// Whether the current write has more deletions or searches than fit into a step.
    unfinished: bool,
    /// The ids that the current write has deleted.
    erased: Vec<Id>,
}

impl LogWriterState {
    pub fn new(tail: Option<LogTail>) -> Self {
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

    /// Postpones the current write to its next step. This step applies no part of the write.
    fn pause(&mut self) -> Outcome {
        self.step.unfinished = true;
        Outcome::Erased(0)
    }

    /// Empties the batch. Running searches keep the old frames.
    fn empty_frames(&mut self) {
        match Arc::get_mut(&mut self.frames) {
            Some(frames) => frames.clear(),
            None => self.frames = Arc::default(),
        }
    }

    /// Adds a frame to the batch and returns its offset from the batch's start.
    pub(crate) fn gather(&mut self, frame: LogFrame<'_>, salt: u32) -> usize {
        let frames = Arc::make_mut(&mut self.frames);
        if frames.is_empty() {
            frames.resize(LogFrame::BATCH_BYTES, 0);
        }
        let at = frames.len();
        frame.write(salt, frames);
        at
    }
}

/// The shared state of a shelf's threads.
pub(crate) struct EmbeddedShelf {
    pub dir: PathBuf,
    pub options: EmbeddedOptions,
    /// The current bounds, initially the bounds of `options`.
    pub bounds: ArcSwap<SpaceBounds>,
    pub rules: Box<dyn Rules>,
    pub terms: TermHasher,
    pub view: ArcSwap<ShelfView>,
    /// Locked before `manifest` if both locks are needed.
    pub writing: Mutex<LogWriterState>,
    pub manifest: Mutex<Manifest>,
    /// Held during maintenance: one sealing, merging or rewriting at a time.
    pub maintenance: Mutex<()>,
    /// The state that maintenance keeps between rounds.
    pub known: Mutex<MaintenanceState>,
    /// The logs with records to erase from the files.
    pub erase: Mutex<EraseSchedule>,
    /// The state of the disk's space.
    pub space: DiskSpace,
    /// Callback to call once the shelf can be written again; the callback wakes the delivery of new
    /// records.
    pub wake: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// The state of the slow check.
    pub scrub: ScrubState,
    /// Records that could not be read.
    pub damage: Arc<DamagedRecords>,
    /// How often an unreadable part of a file was noticed.
    pub losses: AtomicU64,
    pub signal: Mutex<MaintenanceSignal>,
    pub signalled: Condvar,
    pub written_bytes: AtomicU64,
    /// Durations of the log's syncs.
    pub syncs: Histogram,
    /// The work that maintenance has done.
    pub done: Mutex<MaintenanceStats>,
}

impl EmbeddedShelf {
    /// Creates a log file with a durable header and returns its tail.
    pub fn new_log(&self, number: u32) -> io::Result<LogTail> {
        let salt = random_u32()?;
        let mut file = self.options.disk.create(&log::path(&self.dir, number, 0))?;
        file.write_all(&log::header(number, 0, salt))?;
        file.sync()?;
        self.options.disk.sync_dir(&self.dir.join("log"))?;
        Ok(LogTail::new(file, salt, log::HEADER))
    }

    /// Opens, for reading, a log that is being written.
    pub fn open_growing(&self, number: u32, generation: u32, len: u64) -> io::Result<Arc<Log>> {
        let disk = &*self.options.disk;
        let log = Log::open(disk, &self.dir, (number, generation), len, true)?;
        Ok(Arc::new(log.noting_in(&self.damage)))
    }

    /// Makes an empty head for a log.
    pub fn new_head(&self, log: Arc<Log>, base: u64) -> Arc<Head> {
        Arc::new(Head::new(log, self.terms.clone(), base, self.options.rows_expected()))
    }

    /// Begins a new log and head. Maintenance seals the old head.
    fn rotate(&self, writing: &mut LogWriterState) -> io::Result<()> {
        let view = self.view.load_full();
        let number = view.active.log.number + 1;
        if let Some(last) = &mut writing.tail {
            last.close()?;
        }
        let tail = self.new_log(number)?;
        let log = self.open_growing(number, 0, tail.len)?;
        // Once the manifest names the new log, this log is the last log, and no later step may
        // fail.
        {
            let mut manifest = self.manifest.lock();
            let mut next = manifest.clone();
            next.logs.push(LogEntry::new(number));
            next.write(&*self.options.disk, &self.dir)?;
            *manifest = next;
        }
        if let Some(old) = writing.tail.replace(tail) {
            old.finish();
        }
        let base = view.active.base + u64::from(view.active.inserted());
        self.begin_head(&self.new_head(log, base));
        Ok(())
    }

    /// Makes `head` the active head; maintenance seals the previous head.
    pub fn begin_head(&self, head: &Arc<Head>) {
        self.update_view(|view| {
            let mut frozen = view.frozen.clone();
            frozen.push(Arc::clone(&view.active));
            ShelfView::new(view.segments.clone(), frozen, Arc::clone(head))
        });
    }

    /// Replaces the view. Each thread that replaces the view holds `writing`.
    pub fn update_view(&self, change: impl Fn(&ShelfView) -> ShelfView) {
        self.view.rcu(|view| Arc::new(change(view)));
    }

    /// Begins a new head if the active head is full; maintenance seals the full head.
    fn make_room<'a>(
        &'a self,
        mut writing: MutexGuard<'a, LogWriterState>,
    ) -> Result<(), CommitError> {
        let view = self.view.load();
        let note = |error: &CommitError| {
            if let CommitError::Stopped(reason) = error {
                self.writing.lock().stopped = Some(reason.clone());
            }
        };
        let (head, log_bytes) = (&view.active, writing.tail.as_ref().map_or(0, |tail| tail.len));
        let log_bytes_max = self.bounds.load().log_bytes_max;
        if !self.options.is_full(head.inserted(), head.bytes(), log_bytes, log_bytes_max) {
            return Ok(());
        }
        if self.must_seal_first() {
            drop(writing);
            self.wait_for_sealing().inspect_err(note)?;
            writing = self.writing.lock();
        }
        if let Err(error) = self.rotate(&mut writing) {
            self.known.lock().untidy = true;
            let reason = format!("a new log could not be begun: {error}");
            if is_full(&error) {
                return Err(self.refuse(&reason));
            }
            self.call_maintenance();
            if is_passing(&error) {
                return Err(CommitError::Unavailable(reason));
            }
            writing.stopped = Some(reason.clone());
            return Err(CommitError::Stopped(reason));
        }
        drop(writing);
        self.after_rotation().inspect_err(note)
    }

    /// Begins a new head if the active head has dead records or deletions; maintenance seals the
    /// old head. Does nothing while too many heads wait to be sealed, or in a process that does not
    /// write.
    pub fn freeze_head(&self) -> io::Result<()> {
        let mut writing = self.writing.lock();
        let is_writing = writing.tail.is_some() && writing.stopped.is_none();
        let may_wait = self.view.load().frozen.len() < FROZEN_MAX;
        if !is_writing || !may_wait || !self.view.load().active.log.has_dead() {
            return Ok(());
        }
        self.rotate(&mut writing).inspect_err(|error| {
            if !is_passing(error) {
                writing.stopped = Some(format!("a new log could not be begun: {error}"));
            }
        })
    }

    /// Commits writes up to the end of a step, at most all, with one sync. The caller has checked
    /// the records. `is_end` means that the batch has no further writes after these.
    pub(crate) fn commit_piece(
        &self,
        writes: &[Write],
        is_end: bool,
        done: &mut CommitResult,
    ) -> Result<(), CommitError> {
        let writing = self.writing.lock();
        if let Some(reason) = &writing.stopped {
            return Err(CommitError::Stopped(reason.clone()));
        }
        if writing.tail.is_none() {
            return Err(CommitError::ReadOnly);
        }
        let needs = space::needs(writes);
        self.check_space(&writing, writes, needs)?;
        self.make_room(writing)?;
        let mut writing = self.writing.lock();
        self.reserve_space(&mut writing, needs)?;
        let view = self.view.load_full();
        if let Some(trouble) = view.trouble() {
            // Maintenance rebuilds an unreadable segment.
            self.note_unreadable(&view);
            return Err(CommitError::Unavailable(trouble));
        }
        writing.empty_frames();
        writing.targets.clear();
        writing.step = EraseStep { left: ERASE_STEP, ..EraseStep::default() };
        for (index, write) in writes.iter().enumerate() {
            let is_last = is_end && index + 1 == writes.len();
            let at = done.outcomes.len();
            let outcome = self.carry_out(&mut writing, &view, write, is_last);
            let (outcome, searched) = outcome.inspect_err(|error| {
                writing.stopped = Some(error.to_string());
            })?;
            done.outcomes.push(outcome);
            done.erased.extend(writing.step.erased.drain(..).map(|id| (at, id)));
            done.unfinished = writing.step.unfinished;
            done.searched += searched;
            let is_full = writing.frames.len() >= SYNC_BYTES_MAX;
            if done.unfinished || done.searched >= SEARCH_BATCH || is_full {
                break;
            }
        }
        if let Some(trouble) = view.trouble() {
            // Unreadable data may have misled the rules, so no part of the batch is written.
            Self::take_back(&mut writing, &view);
            self.note_unreadable(&view);
            return Err(CommitError::Unavailable(trouble));
        }
        let before = self.written_bytes.load(Ordering::Relaxed);
        self.flush(&mut writing, &view)?;
        done.bytes += self.written_bytes.load(Ordering::Relaxed) - before;
        drop(writing);
        if self.options.background && writes.iter().any(|write| matches!(write, Write::Erase(_))) {
            // A rewrite of a log may be due now, and the next commit may come much later.
            self.call_maintenance();
        }
        Ok(())
    }

    /// Applies a write or a step of a write, and returns the outcome and the number of searched
    /// rows.
    fn carry_out(
        &self,
        writing: &mut LogWriterState,
        view: &ShelfView,
        write: &Write,
        is_last: bool,
    ) -> Result<(Outcome, u64), CommitError> {
        let mut key = is_last.then(|| WriteKey::of(write)).flatten();
        writing.searches.begin(key.as_ref());
        let outcome = match write {
            Write::Put(bytes) => self.put(writing, view, bytes)?,
            Write::Erase(query) => {
                let mut query = Query::clone(query);
                query.normalise();
                Outcome::Erased(self.erase(writing, view, &query)?)
            }
        };
        Ok((outcome, writing.searches.end(key.take_if(|_| writing.step.unfinished))))
    }

    /// Makes the gathered batch durable, then visible to readers.
    pub(crate) fn flush(
        &self,
        writing: &mut LogWriterState,
        view: &ShelfView,
    ) -> Result<(), CommitError> {
        match self.append(writing, &view.active.log) {
            Ok(()) => {}
            Err(AppendError::Full(error)) => {
                Self::take_back(writing, view);
                return Err(self.refuse(&format!("the log could not be written: {error}")));
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

    /// Forgets the gathered batch, which is not in the log.
    fn take_back(writing: &mut LogWriterState, view: &ShelfView) {
        view.active.take_back();
        writing.targets.drain(..).for_each(|target| target.spare());
        writing.empty_frames();
        writing.searches.forget();
    }

    /// Writes and syncs the gathered frames.
    fn append(&self, writing: &mut LogWriterState, log: &Log) -> Result<(), AppendError> {
        let LogWriterState { tail, frames, start, .. } = writing;
        let failed = |why: String| Err(AppendError::Failed(io::Error::other(why)));
        if frames.is_empty() {
            return Ok(());
        }
        let Some(tail) = tail else { return failed("not open for writing".into()) };
        let frames = Arc::make_mut(frames);
        let end = tail.len + frames.len() as u64;
        if end > log.room() {
            // Only a record that deletes tens of millions of other records gets here. Such a batch
            // could not be read back correctly.
            return failed(format!("a batch would make it {end} bytes long"));
        }
        start.clear();
        let inner = frames.len() - LogFrame::BATCH_BYTES;
        LogFrame::Batch(inner as u32).write(tail.salt, start);
        frames[..LogFrame::BATCH_BYTES].copy_from_slice(start);
        let written = tail.append(frames, &self.syncs);
        let bytes = frames.len() as u64;
        frames.clear();
        written?;
        log.grow(tail.len);
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn put(
        &self,
        writing: &mut LogWriterState,
        view: &ShelfView,
        bytes: &[u8],
    ) -> Result<Outcome, CommitError> {
        let record =
            Record::new(bytes).map_err(|source| CommitError::Record { index: 0, source })?;
        if view.locate(record.id(), self.terms.id(record.id()), true).is_some() {
            return Ok(Outcome::Duplicate);
        }
        let mut effects = std::mem::take(&mut writing.effects);
        effects.clear();
        self.rules.effects(&record, &mut effects);
        effects.normalise();
        let outcome = self.put_with(writing, view, &record, &effects);
        writing.effects = effects;
        outcome
    }

    fn put_with(
        &self,
        writing: &mut LogWriterState,
        view: &ShelfView,
        record: &Record<'_>,
        effects: &Effects,
    ) -> Result<Outcome, CommitError> {
        for forbidding in effects.forbidding() {
            let (name, value) = forbidding.label;
            let (kinds, term) = (&[forbidding.kind], self.terms.label(name, value));
            if may_match(view, Some(kinds), Some(term)) {
                match self.find(writing, view, &forbidding.query(), 1)? {
                    None => return Ok(writing.pause()),
                    Some(found) if found.is_empty() => {}
                    Some(_) => return Ok(Outcome::Refused(forbidding.refusal)),
                }
            }
        }
        // Find all records before deleting the first. Only then is it known whether this step can
        // delete all records. The put must be in the same batch as the last of its deletes.
        let mut erased = Vec::new();
        if let Some(slot) = &effects.slot {
            let here = Position::of(record);
            let Some(holders) = self.holders(writing, view, slot)? else {
                return Ok(writing.pause());
            };
            if holders.iter().any(|at| Order::NewestFirst.compare(at, &here).is_lt()) {
                if let [holder] = holders[..] {
                    writing.searches.note_holder(slot, holder);
                }
                return Ok(Outcome::Superseded);
            }
            erased = holders;
        }
        let holders = erased.len();
        for query in &effects.erases {
            if query.ids.is_none() && query.kinds.is_none() && query.labels.is_empty() {
                self.erase.lock().all = true;
            }
            // Finding one record more than the step may delete shows that the step cannot delete
            // all.
            let more = (writing.step.left + 1).saturating_sub(erased.len() - holders);
            match self.find(writing, view, query, query.limit.min(more))? {
                Some(found) => erased.extend(found),
                None => return Ok(writing.pause()),
            }
        }
        let others = erased.len() - holders;
        if others > writing.step.left {
            // The holders of the slot are deleted together with the put, in the last step.
            let step = &erased[holders..holders + writing.step.left];
            self.delete(writing, view, step, true);
            writing.step.unfinished = true;
            return Ok(Outcome::Erased(step.len() as u64));
        }
        writing.step.left -= others;
        let (holders, others) = erased.split_at(holders);
        self.delete(writing, view, holders, false);
        self.delete(writing, view, others, true);
        let head = &view.active;
        let Some(tail) = &writing.tail else { return Ok(Outcome::Duplicate) };
        let (salt, start) = (tail.salt, tail.len as usize);
        let offset = start + writing.gather(LogFrame::Put(record.bytes()), salt);
        let row = head.insert(record, offset as u32, &mut writing.terms);
        writing.searches.note_put(record);
        if let Some(slot) = effects.slot.as_ref().filter(|slot| slot.matches(record)) {
            writing.searches.note_holder(slot, Position::of(record));
        }
        Ok(Outcome::Stored { seq: head.base + u64::from(row) + 1 })
    }

    fn erase(
        &self,
        writing: &mut LogWriterState,
        view: &ShelfView,
        query: &Query,
    ) -> Result<u64, CommitError> {
        let left = writing.step.left;
        let wanted = query.limit.min(left + 1);
        let Some(mut found) = self.find(writing, view, &unlimited(query), wanted)? else {
            writing.pause();
            return Ok(0);
        };
        writing.step.unfinished = found.len() > left;
        found.truncate(left);
        writing.step.left -= found.len();
        self.delete(writing, view, &found, true);
        Ok(found.len() as u64)
    }

    /// Adds the deletions of the found records to the batch. With `is_erased`, the records must be
    /// gone from all files within the bound; this does not apply to records that were only
    /// replaced.
    fn delete(
        &self,
        writing: &mut LogWriterState,
        view: &ShelfView,
        found: &[Position],
        is_erased: bool,
    ) {
        let Some(salt) = writing.tail.as_ref().map(|tail| tail.salt) else { return };
        let mut erase = (is_erased && !found.is_empty()).then(|| self.erase.lock());
        if let Some(erase) = &mut erase {
            erase.logs.insert(view.active.log.number);
        }
        for Position { id, .. } in found {
            if let Some(target) = view.locate(id, self.terms.id(id), true) {
                target.doom();
                if let Some(erase) = &mut erase {
                    erase.logs.insert(target.log());
                }
                writing.gather(LogFrame::Delete { id: *id, log: target.log() }, salt);
                writing.targets.push(target);
                writing.step.erased.push(*id);
            }
        }
    }
}

pub(crate) fn random_u32() -> io::Result<u32> {
    getrandom::u32().map_err(|error| io::Error::other(error.to_string()))
}
