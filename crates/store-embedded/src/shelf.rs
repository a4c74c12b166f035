//! A shelf: its parts as readers see them, and its one writer.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use arc_swap::ArcSwap;
use hark_archive::effects::{Effects, Rules};
use hark_archive::limits::ERASE_STEP;
use hark_archive::meter::Histogram;
use hark_archive::query::explain::Explanation;
use hark_archive::query::merge::{
    AnySource, SnapshotSearch, SnapshotSources, count_all, explain_all,
};
use hark_archive::query::prepared::{PreparedQuery, TermMap as _};
use hark_archive::query::source::Source;
use hark_archive::store::{MaintenanceStats, StoreStats, commit_whole};
use hark_archive::{
    CommitError, CommitResult, Id, Order, Outcome, Position, Query, Record, Search, SearchError,
    Store, Write,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::EmbeddedOptions;
use crate::disk::DiskFile;
use crate::follow::ReleasedShelf;
use crate::head::{self, Head, HeadView, ROWS_MAX};
use crate::label_values::label_values;
use crate::log::{self, BODY_MAX, Log, LogFrame};
use crate::maintenance::{DeadBytes, MaintenanceSignal, MaintenanceState, merge_due_records};
use crate::manifest::{LogEntry, Manifest};
use crate::segment;
use crate::segment::sidecar::SidecarKind;
use crate::segment::view::{Segment, SegmentView};
use crate::suspect::WatchedSearch;
use crate::term::TermHasher;

/// Bytes that one sync may carry; larger batches are synced in pieces.
const SYNC_BYTES_MAX: usize = 32 << 20;
/// Bytes of disk space reserved behind the log: a quarter of its length, within these bounds.
const AHEAD_MIN: u64 = 64 << 10;
const AHEAD_MAX: u64 = 4 << 20;
/// Number of heads waiting to be sealed at which the writer waits for sealing.
pub(crate) const FROZEN_MAX: usize = 4;

/// What readers see: sealed segments, heads being sealed, the head being written. Replaced as a
/// whole.
pub(crate) struct ShelfView {
    /// Ascending by the logs they cover.
    pub segments: Vec<Arc<Segment>>,
    /// Oldest first.
    pub frozen: Vec<Arc<Head>>,
    pub active: Arc<Head>,
    /// All parts except the active head, as readers see them.
    parts: SnapshotSources,
    /// All parts except the active head, as the writer sees them.
    writing: SnapshotSources,
}

impl ShelfView {
    pub(crate) fn new(
        segments: Vec<Arc<Segment>>,
        frozen: Vec<Arc<Head>>,
        active: Arc<Head>,
    ) -> Self {
        let parts = |writing| {
            let segments = segments.iter().map(|segment| {
                let segment = Arc::clone(segment);
                Arc::new(SegmentView { segment, writing }) as Arc<dyn AnySource>
            });
            let heads = frozen.iter().map(|head| {
                let view =
                    if writing { HeadView::writing(head) } else { HeadView::published(head) };
                Arc::new(view) as Arc<dyn AnySource>
            });
            SnapshotSources::new(&segments.chain(heads).collect::<Vec<_>>())
        };
        let (parts, writing) = (parts(false), parts(true));
        Self { segments, frozen, active, parts, writing }
    }

    /// Returns the files that could not be read in part, each with its number of failed reads.
    pub fn unreadable(&self, dir: &Path) -> Vec<(PathBuf, u32)> {
        let index = |s: &Arc<Segment>| (segment::path(dir, s.entry.number), s.faults());
        let sealed = self.segments.iter().flat_map(|segment| &segment.logs).flatten();
        let logs = self.heads().map(|head| &head.log).chain(sealed);
        let log = |l: &Arc<Log>| (log::path(dir, l.number, l.generation), l.faults());
        let all = self.segments.iter().map(index).chain(logs.map(log));
        all.filter(|(_, faults)| *faults > 0).collect()
    }

    /// Returns the active head as readers see it now, and the last sequence number that they see.
    fn now(&self) -> (Arc<dyn AnySource>, u64) {
        let head = HeadView::published(&self.active);
        let seq = self.active.base + head.rows();
        (Arc::new(head), seq)
    }

    /// Returns why the segments or the head's log cannot be trusted; `None` if they can. A commit
    /// decides by them what to store, refuse or replace.
    fn trouble(&self) -> Option<String> {
        let log = &self.active.log;
        let lost =
            log.is_unreadable().then(|| format!("a part of log {} could not be read", log.number));
        lost.or_else(|| self.segments.iter().find_map(|segment| segment.trouble()))
    }

    pub(crate) fn heads(&self) -> impl Iterator<Item = &Arc<Head>> {
        std::iter::once(&self.active).chain(self.frozen.iter().rev())
    }

    /// Finds a live record by its id, as the writer (`writing`) or as readers see it.
    fn locate(&self, id: &Id, hash: u64, writing: bool) -> Option<LiveRow> {
        for head in self.heads() {
            let view = if writing { HeadView::writing(head) } else { HeadView::published(head) };
            if let Some(row) = view.find(id, hash).filter(|&row| !view.is_dead(row)) {
                return Some(LiveRow::Head(Arc::clone(head), row));
            }
        }
        self.segments.iter().rev().find_map(|segment| {
            let bits = if writing { &segment.dead.doomed } else { &segment.dead.dead };
            let row = segment.rows_of(id, hash).find(|&row| !bits.get(row))?;
            Some(LiveRow::Segment(Arc::clone(segment), row))
        })
    }
}

/// A live row.
pub(crate) enum LiveRow {
    Head(Arc<Head>, u32),
    Segment(Arc<Segment>, u32),
}

impl LiveRow {
    /// The number of the log that the row's record was put in.
    fn log(&self) -> u32 {
        match self {
            Self::Head(head, _) => head.log.number,
            Self::Segment(segment, row) => segment.address(*row).log,
        }
    }

    fn doom(&self) {
        match self {
            Self::Head(head, row) => {
                head.doom(*row);
            }
            Self::Segment(segment, row) => {
                segment.dead.doomed.set(*row);
            }
        }
    }

    pub fn kill(&self) {
        match self {
            Self::Head(head, row) => head.kill(*row),
            Self::Segment(segment, row) => segment.kill(*row),
        }
    }
}

/// The end of the log that is being written.
pub(crate) struct LogTail {
    file: Box<dyn DiskFile>,
    salt: u32,
    len: u64,
    /// Offset up to which disk space is reserved.
    reserved: u64,
}

impl LogTail {
    /// The tail of a file of `len` bytes.
    pub fn new(file: Box<dyn DiskFile>, salt: u32, len: u64) -> Self {
        Self { file, salt, len, reserved: len }
    }

    /// Bytes of the log, all of them durable.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Appends a batch; on return it is durable.
    fn append(&mut self, batch: &[u8], syncs: &Histogram) -> io::Result<()> {
        let end = self.len + batch.len() as u64;
        if end > self.reserved {
            self.reserved = end + (end / 4).clamp(AHEAD_MIN, AHEAD_MAX);
            // A disk that cannot reserve space may still have some; if not, the write fails.
            let _ = self.file.reserve(self.len, self.reserved);
        }
        self.file.write_all(batch)?;
        let started = Instant::now();
        self.file.sync()?;
        syncs.note(started.elapsed());
        self.len = end;
        Ok(())
    }

    /// Gives back the reserved disk space that is left.
    fn finish(mut self) {
        // If this fails, the space is given back when the log is opened again.
        let _ = self.file.reserve(self.len, self.len);
    }
}

/// State that only the committing thread touches.
pub(crate) struct LogWriterState {
    /// `None` in a process that only reads.
    pub tail: Option<LogTail>,
    /// The tail, kept while another process may continue the log.
    pub released: Option<ReleasedShelf>,
    /// Number of records taken in from another process.
    pub followed: u64,
    /// Why writing has stopped, once a write or sync has failed.
    pub stopped: Option<String>,
    /// The batch being gathered. Its first frame, the batch frame, is filled in last.
    pub frames: Vec<u8>,
    /// Buffer in which the batch frame is encoded.
    pub start: Vec<u8>,
    pub terms: Vec<u64>,
    pub effects: Effects,
    pub targets: Vec<LiveRow>,
    pub step: EraseStep,
}

/// The deletions of one step of a commit.
#[derive(Default)]
pub(crate) struct EraseStep {
    left: usize,
    /// Whether more records are to be deleted than `left` allows.
    unfinished: bool,
    /// Ids deleted by the current write.
    erased: Vec<Id>,
}

impl LogWriterState {
    pub fn new(tail: Option<LogTail>) -> Self {
        Self {
            tail,
            released: None,
            followed: 0,
            stopped: None,
            frames: Vec::new(),
            start: Vec::new(),
            terms: Vec::new(),
            effects: Effects::default(),
            targets: Vec::new(),
            step: EraseStep::default(),
        }
    }

    /// Adds a frame to the batch and returns its offset from the batch's start.
    fn gather(&mut self, frame: LogFrame<'_>, salt: u32) -> usize {
        if self.frames.is_empty() {
            self.frames.resize(LogFrame::BATCH_BYTES, 0);
        }
        let at = self.frames.len();
        frame.write(salt, &mut self.frames);
        at
    }
}

/// State that the threads of a shelf share.
pub(crate) struct EmbeddedShelf {
    pub dir: PathBuf,
    pub options: EmbeddedOptions,
    pub rules: Box<dyn Rules>,
    pub terms: TermHasher,
    pub view: ArcSwap<ShelfView>,
    /// Locked before `manifest` where both are needed.
    pub writing: Mutex<LogWriterState>,
    pub manifest: Mutex<Manifest>,
    /// Held during maintenance: one sealing, merging or rewriting at a time.
    pub maintenance: Mutex<()>,
    /// What maintenance remembers from one round to the next.
    pub known: Mutex<MaintenanceState>,
    /// How many times an unreadable part of a file was noticed.
    pub losses: AtomicU64,
    pub signal: Mutex<MaintenanceSignal>,
    pub signalled: Condvar,
    pub written_bytes: AtomicU64,
    /// Durations of the log's syncs.
    pub syncs: Histogram,
    /// The work that maintenance has done.
    pub done: Mutex<MaintenanceStats>,
}

/// The embedded archive of one network. Dropping it ends its maintenance thread. No other closing
/// is needed, since acknowledged writes are durable.
pub struct EmbeddedStore {
    pub(crate) shelf: Arc<EmbeddedShelf>,
    /// What was found and repaired when the shelf was opened.
    pub(crate) notes: Vec<String>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl EmbeddedStore {
    /// What was found and repaired when the shelf was opened, in sentences for its operator.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.shelf.signal.lock().stop = true;
        self.shelf.signalled.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
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
        Log::open(disk, &self.dir, (number, generation), len, true).map(Arc::new)
    }

    /// Makes an empty head for a log.
    pub fn new_head(&self, log: Arc<Log>, base: u64) -> Arc<Head> {
        Arc::new(Head::new(log, self.terms, base, self.options.rows_expected()))
    }

    /// Begins a new log and head. The old head is left for sealing.
    fn rotate(&self, writing: &mut LogWriterState) -> io::Result<()> {
        let view = self.view.load_full();
        let number = view.active.log.number + 1;
        let tail = self.new_log(number)?;
        {
            let mut manifest = self.manifest.lock();
            let mut next = manifest.clone();
            next.logs.push(LogEntry { number, generation: 0, purged: 0, dead_bytes: 0 });
            next.write(&*self.options.disk, &self.dir)?;
            *manifest = next;
        }
        let log = self.open_growing(number, 0, tail.len)?;
        if let Some(old) = writing.tail.replace(tail) {
            old.finish();
        }
        let base = view.active.base + u64::from(view.active.inserted());
        self.begin_head(&self.new_head(log, base));
        Ok(())
    }

    /// Makes `head` the active head; the previous one is left for sealing.
    pub fn begin_head(&self, head: &Arc<Head>) {
        self.update_view(|view| {
            let mut frozen = view.frozen.clone();
            frozen.push(Arc::clone(&view.active));
            ShelfView::new(view.segments.clone(), frozen, Arc::clone(head))
        });
    }

    /// Replaces the view. Both threads that replace it hold `writing`.
    pub fn update_view(&self, change: impl Fn(&ShelfView) -> ShelfView) {
        self.view.rcu(|view| Arc::new(change(view)));
    }

    /// Begins a new head if the active one is full, and leaves the full one to maintenance.
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
        if !self.options.is_full(head.inserted(), head.bytes(), log_bytes) {
            return Ok(());
        }
        if self.must_seal_first() {
            drop(writing);
            self.wait_for_sealing().inspect_err(note)?;
            writing = self.writing.lock();
        }
        if let Err(error) = self.rotate(&mut writing) {
            let reason = format!("a new log could not be begun: {error}");
            writing.stopped = Some(reason.clone());
            self.known.lock().untidy = true;
            self.call_maintenance();
            return Err(CommitError::Stopped(reason));
        }
        drop(writing);
        self.after_rotation().inspect_err(note)
    }

    /// Commits writes up to the end of a step. Their records are sound and fit into one sync.
    fn commit_piece(&self, writes: &[Write], done: &mut CommitResult) -> Result<(), CommitError> {
        let writing = self.writing.lock();
        if let Some(reason) = &writing.stopped {
            return Err(CommitError::Stopped(reason.clone()));
        }
        if writing.tail.is_none() {
            return Err(CommitError::ReadOnly);
        }
        self.make_room(writing)?;
        let mut writing = self.writing.lock();
        let view = self.view.load_full();
        if let Some(trouble) = view.trouble() {
            // Maintenance rebuilds an unreadable segment.
            self.note_unreadable(&view);
            return Err(CommitError::Unavailable(trouble));
        }
        writing.frames.clear();
        writing.targets.clear();
        writing.step = EraseStep { left: ERASE_STEP, ..EraseStep::default() };
        for write in writes {
            if writing.frames.len() >= SYNC_BYTES_MAX {
                self.flush(&mut writing, &view)?;
            }
            let at = done.outcomes.len();
            let outcome = match write {
                Write::Put(bytes) => self.put(&mut writing, &view, bytes),
                Write::Erase(query) => {
                    let mut query = Query::clone(query);
                    query.normalise();
                    self.erase(&mut writing, &view, &query).map(Outcome::Erased)
                }
            };
            let outcome = outcome.inspect_err(|error| {
                writing.stopped = Some(error.to_string());
            })?;
            done.outcomes.push(outcome);
            done.erased.extend(writing.step.erased.drain(..).map(|id| (at, id)));
            done.unfinished = writing.step.unfinished;
            if done.unfinished {
                break;
            }
        }
        if let Some(trouble) = view.trouble() {
            writing.stopped = Some(trouble.clone());
            self.note_unreadable(&view);
            return Err(CommitError::Stopped(trouble));
        }
        let before = self.written_bytes.load(Ordering::Relaxed);
        self.flush(&mut writing, &view)?;
        done.bytes += self.written_bytes.load(Ordering::Relaxed) - before;
        drop(writing);
        if self.options.background && writes.iter().any(|write| matches!(write, Write::Erase(_))) {
            // A log may now be due for a rewrite, and the next commit may be far off.
            self.call_maintenance();
        }
        Ok(())
    }

    /// Makes the gathered batch durable, then visible to readers.
    fn flush(&self, writing: &mut LogWriterState, view: &ShelfView) -> Result<(), CommitError> {
        if let Err(error) = self.append(writing, &view.active.log) {
            let reason = format!("the log could not be written: {error}");
            writing.stopped = Some(reason.clone());
            return Err(CommitError::Stopped(reason));
        }
        view.active.publish();
        writing.targets.drain(..).for_each(|target| target.kill());
        Ok(())
    }

    /// Writes and syncs the gathered frames.
    fn append(&self, writing: &mut LogWriterState, log: &Log) -> io::Result<()> {
        let LogWriterState { tail, frames, start, .. } = writing;
        if frames.is_empty() {
            return Ok(());
        }
        let Some(tail) = tail else { return Err(io::Error::other("not open for writing")) };
        let end = tail.len + frames.len() as u64;
        if end > log.room() {
            // Only a record that deletes tens of millions of others gets here. Its batch could not
            // be read back as it was written.
            return Err(io::Error::other(format!("a batch would make it {end} bytes long")));
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

    /// Finds the records that match, as the writer sees them. A record put by the current batch is
    /// in no log yet: if the search needs one, the gathered batch is made durable first.
    fn find(
        &self,
        writing: &mut LogWriterState,
        view: &ShelfView,
        query: &Query,
        limit: usize,
    ) -> Result<Vec<Position>, CommitError> {
        let failed = |error: SearchError| CommitError::Stopped(error.to_string());
        let found = find(view, query, limit, &self.terms).map_err(failed)?;
        if !view.active.take_missed() {
            return Ok(found);
        }
        self.flush(writing, view)?;
        find(view, query, limit, &self.terms).map_err(failed)
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
            if may_match(view, Some(kinds), Some(term))
                && !self.find(writing, view, &forbidding.query(), 1)?.is_empty()
            {
                return Ok(Outcome::Refused(forbidding.refusal));
            }
        }
        // All records are found before the first is deleted: `find` may flush, and the put must be
        // in the same batch as the deletes it causes.
        let mut erased = Vec::new();
        if let Some(slot) = &effects.slot {
            let here = Position::of(record);
            let holder = self.find(writing, view, slot, 1)?;
            if holder.first().is_some_and(|at| Order::NewestFirst.compare(at, &here).is_lt()) {
                return Ok(Outcome::Superseded);
            }
            erased = self.find(writing, view, slot, slot.limit)?;
        }
        let holders = erased.len();
        for query in &effects.erases {
            // One record more than may be deleted shows that this step cannot delete all.
            let more = (writing.step.left + 1).saturating_sub(erased.len() - holders);
            erased.extend(self.find(writing, view, query, query.limit.min(more))?);
        }
        let others = erased.len() - holders;
        if others > writing.step.left {
            // The records that hold the slot are deleted with the put, which comes last.
            let step = &erased[holders..holders + writing.step.left];
            self.delete(writing, view, step);
            writing.step.unfinished = true;
            return Ok(Outcome::Erased(step.len() as u64));
        }
        writing.step.left -= others;
        self.delete(writing, view, &erased);
        let head = &view.active;
        let Some(tail) = &writing.tail else { return Ok(Outcome::Duplicate) };
        let (salt, start) = (tail.salt, tail.len as usize);
        let offset = start + writing.gather(LogFrame::Put(record.bytes()), salt);
        let row = head.insert(record, offset as u32, &mut writing.terms);
        Ok(Outcome::Stored { seq: head.base + u64::from(row) + 1 })
    }

    fn erase(
        &self,
        writing: &mut LogWriterState,
        view: &ShelfView,
        query: &Query,
    ) -> Result<u64, CommitError> {
        let left = writing.step.left;
        let mut found = self.find(writing, view, query, query.limit.min(left + 1))?;
        writing.step.unfinished = found.len() > left;
        found.truncate(left);
        writing.step.left -= found.len();
        self.delete(writing, view, &found);
        Ok(found.len() as u64)
    }

    /// Gathers the deletions of the records found.
    fn delete(&self, writing: &mut LogWriterState, view: &ShelfView, found: &[Position]) {
        let Some(salt) = writing.tail.as_ref().map(|tail| tail.salt) else { return };
        for Position { id, .. } in found {
            if let Some(target) = view.locate(id, self.terms.id(id), true) {
                target.doom();
                writing.gather(LogFrame::Delete { id: *id, log: target.log() }, salt);
                writing.targets.push(target);
                writing.step.erased.push(*id);
            }
        }
    }
}

/// Finds the records that match, as the writer sees them.
fn find(
    view: &ShelfView,
    query: &Query,
    limit: usize,
    terms: &TermHasher,
) -> Result<Vec<Position>, SearchError> {
    let mut found = Vec::new();
    // Most rules match nothing, which is found out here without preparing a search.
    let (kinds, term) = (query.kinds.as_deref(), cheapest_term(query, terms));
    if query.ids.is_none() && !may_match(view, kinds, term) {
        return Ok(found);
    }
    let head = HeadView::writing(&view.active);
    let questions =
        PreparedQuery::opened(Query { limit: query.limit.min(limit), ..query.clone() }, terms);
    let head: Arc<dyn AnySource> = Arc::new(head);
    let mut search = SnapshotSearch::new(&view.writing, &head, questions, 0);
    search.slice(u64::MAX, &mut |record| {
        found.push(Position::of(record));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Whether a record of these kinds may have the term, as the writer sees it. False is certain.
fn may_match(view: &ShelfView, kinds: Option<&[u32]>, term: Option<u64>) -> bool {
    HeadView::writing(&view.active).may_match(kinds, term) || view.writing.may_match(kinds, term)
}

/// Returns a term that every matching record has, if there is one.
fn cheapest_term(query: &Query, terms: &TermHasher) -> Option<u64> {
    let label = query.labels.iter().find_map(|label| match label.values.as_slice() {
        [one] => Some(terms.label(label.name, one)),
        _ => None,
    });
    label.or_else(|| match query.authors.as_deref() {
        Some([one]) => Some(terms.author(one)),
        _ => None,
    })
}

pub(crate) fn random_u32() -> io::Result<u32> {
    getrandom::u32().map_err(|error| io::Error::other(error.to_string()))
}

impl Store for EmbeddedStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        commit_whole(writes, |writes| self.commit_some(writes))
    }

    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        for (index, write) in writes.iter().enumerate() {
            if let Write::Put(bytes) = write {
                if bytes.len() > BODY_MAX {
                    return Err(CommitError::TooLarge { bytes: bytes.len(), bytes_max: BODY_MAX });
                }
                Record::new(bytes)
                    .and_then(|record| record.check())
                    .map_err(|source| CommitError::Record { index, source })?;
            }
        }
        let mut done = CommitResult::default();
        let mut rest = writes;
        while !rest.is_empty() && !done.unfinished {
            let (mut bytes, mut head_bytes) = (0, 0);
            let head_bytes_max = self.shelf.options.head_bytes_max / 4;
            let fits = rest.iter().take(ROWS_MAX / 2).take_while(|write| {
                let fits = bytes < SYNC_BYTES_MAX && head_bytes <= head_bytes_max;
                if let Write::Put(record) = write {
                    bytes += record.len();
                    head_bytes += head::bytes_of_record(record);
                }
                fits
            });
            let (piece, later) = rest.split_at(fits.count());
            self.shelf.commit_piece(piece, &mut done)?;
            rest = later;
        }
        Ok(done)
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        let (view, before) = (self.shelf.view.load(), self.shelf.before());
        let known = view.locate(id, self.shelf.terms.id(id), false).is_some();
        self.shelf.believe(&view, &before, || view.trouble())?;
        Ok(known)
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        let questions = PreparedQuery::opened(query.clone(), &self.shelf.terms);
        let view = self.shelf.view.load_full();
        let (head, seq) = view.now();
        let search = SnapshotSearch::new(&view.parts, &head, questions, seq);
        Ok(Box::new(WatchedSearch { search, view, shelf: Arc::clone(&self.shelf) }))
    }

    fn count(&self, query: &Query) -> Result<Option<u64>, SearchError> {
        let query = Query { after: None, limit: usize::MAX, ..query.clone() };
        let questions = PreparedQuery::opened(query.clone(), &self.shelf.terms);
        let (view, before) = (self.shelf.view.load(), self.shelf.before());
        let count = count_all(&view.parts, &view.now().0, questions);
        self.shelf.believe(&view, &before, || view.parts.trouble(&query))?;
        Ok(count)
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        let terms = self.shelf.terms;
        if !terms.listed().contains(&name) {
            return Err(SearchError::not_listed(name));
        }
        let (view, before) = (self.shelf.view.load_full(), self.shelf.before());
        label_values(&view, terms, name, each);
        self.shelf.believe(&view, &before, || view.trouble())
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        let (view, before) = (self.shelf.view.load_full(), self.shelf.before());
        let mut ids = Vec::new();
        for head in view.heads() {
            gather_expired(&HeadView::published(head), now, limit, &mut ids);
        }
        for segment in view.segments.iter().rev() {
            let segment = Arc::clone(segment);
            gather_expired(&SegmentView { segment, writing: false }, now, limit, &mut ids);
        }
        self.shelf.believe(&view, &before, || view.trouble())?;
        Ok(ids)
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        let questions = PreparedQuery::opened(query.clone(), &self.shelf.terms);
        let view = self.shelf.view.load();
        Ok(explain_all(&view.parts, &view.now().0, questions))
    }

    fn stats(&self) -> StoreStats {
        let view = self.shelf.view.load_full();
        let dead = DeadBytes::of(&view, &self.shelf.options);
        let mut stats = StoreStats {
            segments: view.segments.len() as u64,
            dead_bytes: dead.all,
            reclaimable_bytes: dead.reclaimable(&self.shelf.options),
            written_bytes: self.shelf.written_bytes.load(Ordering::Relaxed),
            heads_waiting: view.frozen.len() as u64,
            merge_due_records: merge_due_records(&view.segments, &self.shelf.options),
            syncs: self.shelf.syncs.read(),
            damaged_files: self.shelf.damaged_files(&view),
            maintenance_failed: self.shelf.signal.lock().failed.as_ref().map(|now| now.why.clone()),
            maintenance: *self.shelf.done.lock(),
            ..StoreStats::default()
        };
        let span = |stats: &mut StoreStats, span: Option<(u64, u64)>| {
            if let Some((oldest, newest)) = span {
                stats.oldest = Some(stats.oldest.map_or(oldest, |known| known.min(oldest)));
                stats.newest = Some(stats.newest.map_or(newest, |known| known.max(newest)));
            }
        };
        for head in view.heads() {
            let rows = u64::from(head.published());
            let dead = u64::from(head.dead_count()).min(rows);
            stats.records += rows - dead;
            stats.head_records += rows - dead;
            stats.dead += dead;
            stats.log_bytes += head.log.written();
            span(&mut stats, Source::span(&HeadView::published(head)));
        }
        for segment in &view.segments {
            let rows = u64::from(segment.file.rows);
            let dead = u64::from(segment.dead.rows.count()).min(rows);
            stats.records += rows - dead;
            stats.dead += dead;
            stats.damaged += segment.dead.damaged.load(Ordering::Relaxed);
            stats.index_bytes += segment.file.bytes() + segment.addresses.bytes();
            if segment.entry.dead > 0 {
                let words = segment::view::RowMarks::words_on_disk(segment.file.rows);
                stats.index_bytes += SidecarKind::Dead.bytes(words);
            }
            for log in segment.logs.iter().flatten() {
                stats.log_bytes += log.written();
            }
            let oldest = (rows > 0).then_some((segment.file.oldest, segment.file.newest));
            span(&mut stats, oldest);
        }
        stats.bytes = stats.log_bytes + stats.index_bytes;
        stats
    }
}

fn gather_expired(source: &impl Source, now: u64, limit: usize, ids: &mut Vec<Id>) {
    let mut rows = Vec::new();
    source.expired(now, &mut rows);
    let alive = rows.into_iter().filter(|&row| !source.is_dead(row));
    let room = limit.saturating_sub(ids.len());
    ids.extend(alive.filter_map(|row| source.record(row).map(|r| *r.id())).take(room));
}
