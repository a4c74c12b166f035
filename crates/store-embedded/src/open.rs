//! Opening a shelf: reads its files, removes leftovers of a crash, and rebuilds damaged segments.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use hark_archive::Record;
use hark_archive::Store as _;
use hark_archive::effects::Rules;
use hark_archive::meter::Histogram;
use hark_archive::query::prepared::TermMap as _;
use hark_archive::query::source::Source;
use parking_lot::{Condvar, Mutex};

use crate::damage::DamagedRecords;
use crate::disk::{Disk, FailStopDisk, make_dir};
use crate::divide::divide;
use crate::head::{Head, HeadView, ROWS_MAX};
use crate::log::{self, Log, LogError, LogFrame};
use crate::maintenance::{self, MaintenanceSignal};
use crate::manifest::{LogEntry, Manifest, ManifestError, SegmentEntry};
use crate::map::unreadable;
use crate::options::EmbeddedOptions;
use crate::rebuild::{DeletionMap, rebuild_logs};
use crate::reserve::START_BYTES;
use crate::room::{self, DiskSpace};
use crate::scrub::{self, ScrubState};
use crate::segment;
use crate::segment::file::SegmentFile;
use crate::segment::sidecar::SidecarKind;
use crate::segment::view::{RowMarks, Segment};
use crate::shelf::{EmbeddedShelf, LogWriterState};
use crate::store::EmbeddedStore;
use crate::tail::LogTail;
use crate::term::{SECRET, TermBuffers, TermHasher};
use crate::view::{LiveRow, ShelfView};

/// Why a shelf could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ShelfOpenError {
    /// The directory has no archive, and the caller did not ask to create an archive.
    #[error(
        "there is no archive in {0}: start `hark serve` or `hark import` with this --data first"
    )]
    Missing(PathBuf),
    /// The manifest cannot be used.
    #[error("{path}: {cause}")]
    Manifest {
        /// The shelf.
        path: PathBuf,
        /// The cause.
        cause: ManifestError,
    },
    /// The shelf has logs, but no manifest.
    #[error(
        "{0} has logs but no MANIFEST: Hark does not guess which of them count. Run `hark rebuild`, \
         which makes a new one from the logs, or restore the archive from a backup"
    )]
    NoManifest(PathBuf),
    /// A log is damaged at a place that no crash can have damaged.
    #[error("{}", refusal(.0))]
    Log(LogError),
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
}

// Not `#[from]`: the error would count as the cause of its own message, and would be printed twice.
impl From<LogError> for ShelfOpenError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

/// Describes the fault of a log and the remedy.
fn refusal(error: &LogError) -> String {
    match error {
        LogError::Damaged { .. } | LogError::Header { .. } => format!(
            "{error}. Cutting there would lose the records behind, so Hark does not. Restore the file \
             from a backup, or bring all that is whole into a new archive with `hark salvage`"
        ),
        LogError::Io { .. } | LogError::TooLong { .. } => error.to_string(),
    }
}

impl ShelfOpenError {
    /// Whether the error names no remedy, so that `hark check` and `hark rebuild` may help.
    pub fn is_unexplained(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |cause| Self::Io { path: path.into(), cause }
    }

    /// Whether the shelf could not be opened because the disk is full.
    pub fn is_disk_full(&self) -> bool {
        self.io_cause().is_some_and(room::is_full)
    }

    /// Whether the shelf could not be opened because the user of this process may not open the
    /// files.
    pub fn is_denied(&self) -> bool {
        self.io_cause().is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
    }

    fn io_cause(&self) -> Option<&io::Error> {
        match self {
            Self::Io { cause, .. }
            | Self::Log(LogError::Io { cause, .. })
            | Self::Manifest { cause: ManifestError::Io(cause), .. } => Some(cause),
            _ => None,
        }
    }

    /// Whether a log is damaged. Indices can be rebuilt, but not a log.
    pub fn is_damaged_log(&self) -> bool {
        let Self::Io { path, cause } = self else { return false };
        cause.kind() == io::ErrorKind::InvalidData && path.extension().is_some_and(|e| e == "log")
    }

    /// Whether a file that the manifest names is missing. If another process writes, that process
    /// has replaced the manifest meanwhile.
    fn is_stale(&self) -> bool {
        match self {
            Self::Io { cause, .. } | Self::Log(LogError::Io { cause, .. }) => {
                cause.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}

impl EmbeddedStore {
    /// Opens a shelf for reading and writing, and creates the shelf if necessary. Only one process
    /// at a time may open a shelf for writing; see [`crate::DirectoryLock`].
    pub fn open(
        dir: &Path,
        rules: Box<dyn Rules>,
        mut options: EmbeddedOptions,
    ) -> Result<Self, ShelfOpenError> {
        options.disk = Arc::new(FailStopDisk::new(options.disk));
        let disk = Arc::clone(&options.disk);
        let reserve = options.reserve.clone();
        if let Some(reserve) = &reserve {
            // A new archive has no directory yet. Any other failure occurs again when the shelf is
            // opened, and is reported then.
            let _ = reserve.give_up_below(START_BYTES);
        }
        for dir in [dir, &dir.join("log"), &dir.join("seg")] {
            make_dir(&*disk, dir).map_err(ShelfOpenError::io(dir))?;
        }
        let manifest = match read_manifest(&*disk, dir)? {
            Some(manifest) => {
                // The process that wrote this manifest may have ended before the manifest was
                // durable. So the manifest is written again before files of the previous manifest
                // are removed.
                manifest.write(&*disk, dir).map_err(ShelfOpenError::io(dir))?;
                manifest
            }
            None => first_manifest(&*disk, dir)?,
        };
        remove_orphans(&*disk, dir, &manifest)?;
        let background = options.background;
        let mut notes = Vec::new();
        let loaded = Self::load(dir, rules, options, manifest, Some(&mut notes));
        if loaded.is_err() || !notes.is_empty() {
            // Segments may have been rebuilt completely or in part. The next start removes orphans
            // that remain.
            let tidied = read_manifest(&*disk, dir)
                .and_then(|now| now.map_or(Ok(()), |now| remove_orphans(&*disk, dir, &now)));
            if loaded.is_ok() {
                tidied?;
            }
        }
        let shelf = Arc::new(loaded?);
        shelf.note_all_erasable();
        if let Some(reserve) = reserve
            && let Err(error) = reserve.make()
        {
            notes
                .push(format!("no space was reserved for the time when the disk is full: {error}"));
        }
        let thread = background.then(|| maintenance::start(&shelf)).transpose();
        let thread = thread.map_err(ShelfOpenError::io(dir))?;
        if thread.is_none() {
            // The next commit that begins a new head seals the heads that a crash left unsealed.
            shelf.signal.lock().work = true;
        }
        let store = Self { shelf, notes, refusal: None, thread, scrubs: None };
        // This call registers the shelf, so that the shelves of a directory know each other from
        // the start.
        store.stats();
        store.scrubbed(dir, background)
    }

    /// Opens a shelf that another process has [released](EmbeddedStore::release). This process
    /// writes nothing to the shelf before [`EmbeddedStore::take`], since the other process may
    /// still resume writing.
    pub fn open_released(
        dir: &Path,
        rules: Box<dyn Rules>,
        mut options: EmbeddedOptions,
    ) -> Result<Self, ShelfOpenError> {
        options.disk = Arc::new(FailStopDisk::new(options.disk));
        let manifest = existing_manifest(&*options.disk, dir)?;
        let background = options.background;
        let shelf = Arc::new(Self::load(dir, rules, options, manifest, None)?);
        shelf.note_all_erasable();
        shelf.signal.lock().resting = true;
        let thread = background.then(|| maintenance::start(&shelf)).transpose();
        let thread = thread.map_err(ShelfOpenError::io(dir))?;
        let notes = Vec::new();
        Self { shelf, notes, refusal: None, thread, scrubs: None }.scrubbed(dir, background)
    }

    /// Starts the slow check, if it runs in the background. If the check cannot be started, the
    /// store is dropped, which ends the maintenance thread.
    fn scrubbed(mut self, dir: &Path, background: bool) -> Result<Self, ShelfOpenError> {
        if background {
            self.scrubs = scrub::start(&self.shelf).map_err(ShelfOpenError::io(dir))?;
        }
        Ok(self)
    }

    /// Opens a snapshot of a shelf for reading only; a server may be writing to the shelf.
    #[allow(clippy::needless_pass_by_value)] // like `open`
    pub fn open_read_only(dir: &Path, options: EmbeddedOptions) -> Result<Self, ShelfOpenError> {
        let read = || existing_manifest(&*options.disk, dir);
        let mut manifest = read()?;
        loop {
            let rules = Box::new(hark_archive::effects::KeepAll);
            let error = match Self::load(dir, rules, options.clone(), manifest.clone(), None) {
                Ok(shelf) => {
                    let shelf = Arc::new(shelf);
                    let notes = Vec::new();
                    return Ok(Self { shelf, notes, refusal: None, thread: None, scrubs: None });
                }
                Err(error) => error,
            };
            let now = read()?;
            if !error.is_stale() || now == manifest {
                return Err(error);
            }
            manifest = now;
        }
    }

    /// Opens a shelf for reading only, when the shelf cannot be opened for writing now. Writes fail
    /// with `why`, which [`Store::trouble`](hark_archive::Store::trouble) also returns.
    pub fn open_refusing(
        dir: &Path,
        options: EmbeddedOptions,
        why: String,
    ) -> Result<Self, ShelfOpenError> {
        let mut store = Self::open_read_only(dir, options)?;
        store.refusal = Some(why);
        Ok(store)
    }

    /// Loads the shelf, for writing if `notes` is given. `notes` receives a sentence for each
    /// repair.
    fn load(
        dir: &Path,
        rules: Box<dyn Rules>,
        options: EmbeddedOptions,
        mut manifest: Manifest,
        mut notes: Option<&mut Vec<String>>,
    ) -> Result<EmbeddedShelf, ShelfOpenError> {
        let terms = TermHasher::new(&manifest.secret, &options);
        let disk = &*options.disk;
        let damage = Arc::default();
        let mut segments = Vec::new();
        let (mut remade, first_new) = (false, manifest.next_segment);
        while let Some(entry) = manifest.segments.get(segments.len()).cloned() {
            let opened = open_segment((disk, dir), &entry, &manifest, terms.clone(), None, &damage);
            let segment = match (opened, &mut notes) {
                (Ok(segment), _) => segment,
                (Err(error), Some(notes)) if entry.number < first_new => {
                    remade = true;
                    notes.push(format!(
                        "{error}; segment {} is made again from the log",
                        entry.number
                    ));
                    remake((disk, dir), &entry, &mut manifest, &terms, error)?;
                    continue;
                }
                (Err(error), _) => return Err(error),
            };
            segments.push(Arc::new(segment));
        }
        let mut shelf = EmbeddedShelf {
            dir: dir.into(),
            terms: terms.clone(),
            rules,
            view: ArcSwap::from_pointee(ShelfView::new(
                Vec::new(),
                Vec::new(),
                Arc::new(Head::new(Arc::new(Log::empty()), terms.clone(), 0, 0)),
            )),
            writing: Mutex::new(LogWriterState::new(None)),
            manifest: Mutex::new(manifest.clone()),
            maintenance: Mutex::new(()),
            known: Mutex::default(),
            erase: Mutex::default(),
            space: DiskSpace::default(),
            wake: Mutex::default(),
            damage,
            scrub: ScrubState::default(),
            losses: AtomicU64::new(0),
            signal: Mutex::new(MaintenanceSignal::default()),
            signalled: Condvar::new(),
            written_bytes: AtomicU64::new(0),
            syncs: Histogram::default(),
            done: Mutex::default(),
            bounds: ArcSwap::from_pointee(options.space_bounds()),
            options,
        };
        if remade {
            manifest.write(&*shelf.options.disk, dir).map_err(ShelfOpenError::io(dir))?;
        }
        if shelf.replay(&manifest, &segments, notes.as_deref_mut(), true)? {
            return Ok(shelf);
        }
        let first = manifest.logs.iter().find(|log| !manifest.is_sealed(log.number));
        let first = first.map_or(0, |log| log.number);
        let divided = divide(dir, &shelf.options, &manifest, first)?;
        let disk = &*shelf.options.disk;
        for entry in divided.segments.iter().filter(|entry| entry.first_log >= first) {
            let files = (disk, dir);
            let opened = open_segment(files, entry, &divided, terms.clone(), None, &shelf.damage)?;
            segments.push(Arc::new(opened));
        }
        remove_orphans(disk, dir, &divided)?;
        if let Some(notes) = &mut notes {
            notes.push(format!(
                "the records from log {first} on did not fit into memory at once; they were moved to \
                 logs of a size that does"
            ));
        }
        *shelf.manifest.lock() = divided.clone();
        shelf.replay(&divided, &segments, notes, false)?;
        Ok(shelf)
    }
}

impl EmbeddedShelf {
    /// Reads the logs that no segment covers into heads; the last head becomes the active head.
    /// Returns false, with nothing changed, if the shelf is opened for writing, `bounded` is set
    /// and the heads would take more memory than allowed.
    fn replay(
        &mut self,
        manifest: &Manifest,
        segments: &[Arc<Segment>],
        mut notes: Option<&mut Vec<String>>,
        bounded: bool,
    ) -> Result<bool, ShelfOpenError> {
        let bounded = bounded && notes.is_some();
        let mut heads: Vec<Arc<Head>> = Vec::new();
        let mut terms = TermBuffers::default();
        let (mut base, mut bytes_before) = (0, 0);
        for entry in manifest.logs.iter().filter(|entry| !manifest.is_sealed(entry.number)) {
            let last = manifest.logs.last().is_some_and(|last| last.number == entry.number);
            let path = log::path(&self.dir, entry.number, entry.generation);
            let io = ShelfOpenError::io(&path);
            let growing = self.open_growing(entry.number, entry.generation, 0).map_err(&io)?;
            let head = self.new_head(growing, base);
            let mut too_much = false;
            let disk = &*self.options.disk;
            let id = (entry.number, entry.generation);
            let end = log::replay(disk, &path, id, &mut |offset, frame| match frame {
                LogFrame::Batch(_) => {}
                LogFrame::Put(_) if too_much || head.inserted() as usize >= ROWS_MAX => {
                    too_much = true;
                }
                LogFrame::Put(bytes) => {
                    if let Ok(record) = Record::new(bytes) {
                        head.log.grow(u64::from(offset) + (log::FRAME + bytes.len()) as u64);
                        head.insert(&record, offset, &mut terms);
                        let bytes = bytes_before + head.bytes();
                        too_much = bounded && self.options.are_too_many(bytes);
                    }
                }
                LogFrame::Delete { id, log } => {
                    head.log.note_deletions(1);
                    kill(segments, heads.iter().chain([&head]), (&id, self.terms.id(&id)), log);
                }
            })?;
            if too_much {
                return if bounded {
                    Ok(false)
                } else {
                    Err(LogError::TooLong { path: path.clone() }.into())
                };
            }
            bytes_before += head.bytes();
            if end.good < end.len && !last {
                let offset = end.good;
                return Err(LogError::Damaged { path: path.clone(), offset }.into());
            }
            head.log.grow(end.good);
            head.publish();
            base += u64::from(head.inserted());
            if last && let Some(notes) = &mut notes {
                if end.good < end.len {
                    let bytes = end.len - end.good;
                    let path = path.display();
                    notes.push(format!("{path} ended in {bytes} torn bytes, which are cut off"));
                }
                let file = disk.append(&path, end.last, end.good).map_err(&io)?;
                let tail = LogTail::new(file, head.log.salt(), end.good);
                self.writing = Mutex::new(LogWriterState::new(Some(tail)));
            }
            heads.push(head);
        }
        let active = heads.pop().ok_or_else(|| {
            let cause = ManifestError::Damaged("it names no log that could go on");
            ShelfOpenError::Manifest { path: self.dir.clone(), cause }
        })?;
        self.view = ArcSwap::from_pointee(ShelfView::new(segments.to_vec(), heads, active));
        Ok(true)
    }
}

/// Marks the rows of `id` in the log numbered `log` as dead.
fn kill<'a>(
    segments: &[Arc<Segment>],
    heads: impl Iterator<Item = &'a Arc<Head>>,
    id: (&hark_archive::Id, u64),
    log: u32,
) {
    let mut found = Vec::new();
    named(segments, heads, id, log, &mut found);
    found.iter().for_each(LiveRow::kill);
}

/// Adds the rows of `id` in the log numbered `log` to `found`.
pub(crate) fn named<'a>(
    segments: &[Arc<Segment>],
    heads: impl Iterator<Item = &'a Arc<Head>>,
    (id, hash): (&hark_archive::Id, u64),
    log: u32,
    found: &mut Vec<LiveRow>,
) {
    for head in heads.filter(|head| head.log.number == log) {
        let view = HeadView::writing(head);
        if let Some(row) = view.find(id, hash) {
            found.push(LiveRow::Head(Arc::clone(head), row));
        }
    }
    let covers = |s: &&Arc<Segment>| (s.entry.first_log..=s.entry.last_log).contains(&log);
    for segment in segments.iter().filter(covers) {
        for row in segment.rows_of(id, hash).filter(|&row| segment.address(row).log == log) {
            found.push(LiveRow::Segment(Arc::clone(segment), row));
        }
    }
}

pub(crate) fn read_manifest(
    disk: &dyn Disk,
    dir: &Path,
) -> Result<Option<Manifest>, ShelfOpenError> {
    let path = dir.join("MANIFEST");
    Manifest::read(disk, dir).map_err(|cause| ShelfOpenError::Manifest { path, cause })
}

/// Reads the manifest of a shelf that must exist.
pub(crate) fn existing_manifest(disk: &dyn Disk, dir: &Path) -> Result<Manifest, ShelfOpenError> {
    if let Some(manifest) = read_manifest(disk, dir)? {
        return Ok(manifest);
    }
    // A directory with records but without a manifest is a damaged shelf.
    let has_records = has_records(disk, dir).map_err(ShelfOpenError::io(dir))?;
    let error = if has_records { ShelfOpenError::NoManifest } else { ShelfOpenError::Missing };
    Err(error(dir.into()))
}

/// Whether the directory of a shelf has a log with more than its header.
pub(crate) fn has_records(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    match disk.list(&dir.join("log")) {
        Ok(logs) => Ok(logs.iter().any(|(_, len)| *len > log::HEADER)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a shelf: one empty log, and a manifest that names the log.
fn first_manifest(disk: &dyn Disk, dir: &Path) -> Result<Manifest, ShelfOpenError> {
    let log_dir = dir.join("log");
    let io = ShelfOpenError::io(&log_dir);
    // A crash before the first manifest leaves at most an empty log, and no write was acknowledged.
    let kept = disk.list(&log_dir).map_err(&io)?;
    if kept.iter().any(|(_, len)| *len > log::HEADER) {
        return Err(ShelfOpenError::NoManifest(dir.into()));
    }
    let mut secret = [0; SECRET];
    getrandom::fill(&mut secret).map_err(|error| io(io::Error::other(error.to_string())))?;
    let begin = || {
        // Create a new file instead of truncating an old file, whose name may not be durable.
        for (name, _) in &kept {
            disk.remove(&log_dir.join(name))?;
        }
        let mut file = disk.create(&log::path(dir, 1, 0))?;
        file.write_all(&log::header(1, 0, crate::shelf::random_u32()?))?;
        file.sync()?;
        disk.sync_dir(&log_dir)?;
        // The folder of the shelf and the folder of all shelves may be new as well.
        for dir in dir.ancestors().take(3) {
            disk.sync_dir(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?;
        }
        let manifest = Manifest {
            secret,
            logs: vec![LogEntry::new(1)],
            segments: Vec::new(),
            next_segment: 1,
        };
        manifest.write(disk, dir)?;
        Ok(manifest)
    };
    begin().map_err(&io)
}

/// Removes files that the manifest does not name: files of jobs that a crash or a failure has cut
/// short.
pub(crate) fn remove_orphans(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
) -> Result<(), ShelfOpenError> {
    for path in orphans(disk, dir, manifest)? {
        disk.remove(&path).map_err(ShelfOpenError::io(&path))?;
    }
    Ok(())
}

/// Returns the files in a shelf's folders that the manifest does not name.
pub(crate) fn orphans(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
) -> Result<Vec<PathBuf>, ShelfOpenError> {
    let named: HashSet<PathBuf> = manifest.files(dir).collect();
    let mut orphans = Vec::new();
    for sub in ["log", "seg"] {
        let sub = dir.join(sub);
        for (name, _) in disk.list(&sub).map_err(ShelfOpenError::io(&sub))? {
            let path = sub.join(name);
            let ours = path.extension().is_some_and(|ending| {
                ["log", "seg", "addr", "dead", "new"].iter().any(|known| ending == *known)
            });
            if ours && !named.contains(&path) {
                orphans.push(path);
            }
        }
    }
    Ok(orphans)
}

/// Opens a segment, its addresses, dead rows and logs. `dead` is given if the dead rows are already
/// loaded. Unreadable records are recorded in `damage`.
pub(crate) fn open_segment(
    (disk, dir): (&dyn Disk, &Path),
    entry: &SegmentEntry,
    manifest: &Manifest,
    terms: TermHasher,
    dead: Option<Arc<RowMarks>>,
    damage: &Arc<DamagedRecords>,
) -> Result<Segment, ShelfOpenError> {
    let path = segment::path(dir, entry.number);
    let file = SegmentFile::open(disk, dir, entry.number).map_err(ShelfOpenError::io(&path))?;
    let path = SidecarKind::Addresses.path(dir, entry.number, entry.addresses);
    let addresses = SidecarKind::Addresses
        .open(disk, dir, (entry.number, entry.addresses), file.rows as usize)
        .map_err(ShelfOpenError::io(&path))?;
    let dead = match dead {
        Some(dead) => dead,
        None if entry.dead == 0 => Arc::new(RowMarks::new(file.rows, None)),
        None => {
            let path = SidecarKind::Dead.path(dir, entry.number, entry.dead);
            let len = RowMarks::words_on_disk(file.rows);
            let words = SidecarKind::Dead.open(disk, dir, (entry.number, entry.dead), len);
            Arc::new(RowMarks::new(file.rows, Some(&words.map_err(ShelfOpenError::io(&path))?)))
        }
    };
    let mut logs = Vec::new();
    for number in entry.first_log..=entry.last_log {
        let known = manifest.logs.iter().find(|log| log.number == number);
        let log = known.map(|log| open_sealed(disk, dir, log)).transpose()?;
        logs.push(log.map(|log| Arc::new(log.noting_in(damage))));
    }
    let segment = Segment::new(entry.clone(), Arc::new(file), addresses, logs, dead, terms);
    segment.count_dead();
    if segment.is_unreadable() {
        return Err(ShelfOpenError::io(&segment::path(dir, entry.number))(unreadable()));
    }
    Ok(segment)
}

fn open_sealed(disk: &dyn Disk, dir: &Path, entry: &LogEntry) -> Result<Log, ShelfOpenError> {
    let path = log::path(dir, entry.number, entry.generation);
    let id = (entry.number, entry.generation);
    let log = Log::open(disk, dir, id, u64::MAX, false).map_err(ShelfOpenError::io(&path))?;
    log.dead_bytes.store(entry.dead_bytes, Ordering::Relaxed);
    log.dead_records.store(entry.dead_records, Ordering::Relaxed);
    Ok(log)
}

/// Rebuilds a missing or damaged segment as one segment for each of its logs. The new segments
/// replace the old segment in the manifest.
fn remake(
    (disk, dir): (&dyn Disk, &Path),
    old: &SegmentEntry,
    manifest: &mut Manifest,
    terms: &TermHasher,
    why: ShelfOpenError,
) -> Result<(), ShelfOpenError> {
    if let ShelfOpenError::Io { path, .. } = &why
        && path.extension().is_some_and(|ending| ending == "log")
    {
        return Err(why);
    }
    let deletes = DeletionMap::read(disk, dir, manifest, old.first_log)?;
    let logs = (old.first_log, old.last_log);
    rebuild_logs((disk, dir), logs, manifest, &deletes, terms, |_| {})?;
    Ok(())
}
