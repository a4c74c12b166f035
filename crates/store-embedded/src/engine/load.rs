//! Loading a shelf: reads its manifest, segments and logs, and rebuilds damaged segments.

use std::path::Path;
use std::sync::Arc;

use hark_archive::effects::Rules;
use hark_archive::query::prepared::TermMap as _;
use hark_archive::{Id, Record};

use super::current_view::CurrentView;
use super::files::ShelfFiles;
use super::open_error::ShelfOpenError;
use super::shelf::OpenShelf;
use super::shelf_dir::remove_orphans;
use super::shelf_view::{LiveRow, ShelfView, named};
use super::tail::LogTail;
use super::writer::ShelfWriter;
use crate::disk::Disk;
use crate::head::{Head, ROWS_MAX};
use crate::log::{self, Log, LogError, LogFrame};
use crate::maintenance::jobs::ShelfJobs;
use crate::manifest::{Manifest, ManifestError, SegmentEntry};
use crate::options::EmbeddedOptions;
use crate::repair::divide::divide;
use crate::repair::from_logs::{DeletionMap, rebuild_logs};
use crate::segment::open::open_segment;
use crate::segment::opened::Segment;
use crate::term::{TermBuffers, TermHasher};

/// Loads the shelf. If `notes` is given, the shelf is loaded for writing. `notes` receives one
/// sentence for each repair.
pub(super) fn load(
    dir: &Path,
    rules: Box<dyn Rules>,
    options: EmbeddedOptions,
    mut manifest: Manifest,
    mut notes: Option<&mut Vec<String>>,
) -> Result<OpenShelf, ShelfOpenError> {
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
                notes.push(format!("{error}; segment {} is made again from the log", entry.number));
                rebuild_entry((disk, dir), &entry, &mut manifest, &terms, error)?;
                continue;
            }
            (Err(error), _) => return Err(error),
        };
        segments.push(Arc::new(segment));
    }
    let nothing = Head::new(Arc::new(Log::empty()), terms.clone(), 0, 0);
    let nothing = ShelfView::new(Vec::new(), Vec::new(), Arc::new(nothing));
    let mut shelf = OpenShelf {
        files: ShelfFiles::new(dir, options, terms, damage),
        writer: ShelfWriter::new(rules, manifest.clone()),
        view: CurrentView::new(nothing),
        jobs: ShelfJobs::default(),
    };
    if remade {
        manifest.write(shelf.files.disk(), dir).map_err(ShelfOpenError::io(dir))?;
    }
    if replay(&mut shelf, &manifest, &segments, notes.as_deref_mut(), true)? {
        return Ok(shelf);
    }
    let first = manifest.logs.iter().find(|log| !manifest.is_sealed(log.number));
    let first = first.map_or(0, |log| log.number);
    let divided = divide(dir, shelf.files.options(), &manifest, first)?;
    let disk = shelf.files.disk();
    for entry in divided.segments.iter().filter(|entry| entry.first_log >= first) {
        segments.push(Arc::new(shelf.files.open_segment(disk, entry, &divided, None)?));
    }
    remove_orphans(disk, dir, &divided)?;
    if let Some(notes) = &mut notes {
        notes.push(format!(
            "the records from log {first} on did not fit into memory at once; they were moved to \
             logs of a size that does"
        ));
    }
    *shelf.writer.manifest() = divided.clone();
    replay(&mut shelf, &divided, &segments, notes, false)?;
    Ok(shelf)
}

/// Reads the logs that no segment covers into heads; the last head becomes the active head. Returns
/// false and changes nothing if the shelf is opened for writing, `bounded` is set, and the heads
/// would take more memory than allowed.
fn replay(
    shelf: &mut OpenShelf,
    manifest: &Manifest,
    segments: &[Arc<Segment>],
    mut notes: Option<&mut Vec<String>>,
    bounded: bool,
) -> Result<bool, ShelfOpenError> {
    let files = &shelf.files;
    let bounded = bounded && notes.is_some();
    let mut heads: Vec<Arc<Head>> = Vec::new();
    let mut terms = TermBuffers::default();
    let (mut base, mut bytes_before) = (0, 0);
    for entry in manifest.logs.iter().filter(|entry| !manifest.is_sealed(entry.number)) {
        let last = manifest.logs.last().is_some_and(|last| last.number == entry.number);
        let path = log::path(files.dir(), entry.number, entry.generation);
        let io = ShelfOpenError::io(&path);
        let growing = files.open_growing(entry.number, entry.generation, 0).map_err(&io)?;
        let head = files.new_head(growing, base);
        let mut too_much = false;
        let disk = files.disk();
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
                    too_much = bounded && files.options().are_too_many(bytes);
                }
            }
            LogFrame::Delete { id, log } => {
                head.log.note_deletions(1);
                kill(segments, heads.iter().chain([&head]), (&id, files.terms().id(&id)), log);
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
            return Err(LogError::Damaged { path: path.clone(), offset: end.good }.into());
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
            shelf.writer.begin(LogTail::new(file, head.log.salt(), end.good));
        }
        heads.push(head);
    }
    let active = heads.pop().ok_or_else(|| {
        let cause = ManifestError::Damaged("it names no log that could go on");
        ShelfOpenError::Manifest { path: files.dir().into(), cause }
    })?;
    shelf.view = CurrentView::new(ShelfView::new(segments.to_vec(), heads, active));
    Ok(true)
}

/// Marks as dead the rows of `id` whose records are in the log numbered `log`.
fn kill<'a>(
    segments: &[Arc<Segment>],
    heads: impl Iterator<Item = &'a Arc<Head>>,
    id: (&Id, u64),
    log: u32,
) {
    let mut found = Vec::new();
    named(segments, heads, id, log, &mut found);
    found.iter().for_each(LiveRow::kill);
}

/// Replaces a missing or damaged segment by a new segment for each of its logs. The manifest then
/// names the new segments.
fn rebuild_entry(
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
