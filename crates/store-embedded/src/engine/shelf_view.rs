//! Snapshots of a shelf for readers and for the writer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::query::merge::{AnySource, SnapshotSources};
use hark_archive::query::source::Source;
use hark_archive::{Id, Query, Record};

use crate::head::{Head, HeadView};
use crate::log::{self, Log};
use crate::segment;
use crate::segment::marks::RowMarks;
use crate::segment::opened::Segment;
use crate::segment::segment_view::SegmentView;
use crate::segment::sidecar::SidecarKind;

/// The parts of a shelf: the sealed segments, the heads that wait for sealing, and the active head.
/// A change replaces the whole view.
pub(crate) struct ShelfView {
    /// The segments, ordered by the logs that they cover.
    pub segments: Vec<Arc<Segment>>,
    /// The heads that wait for sealing, oldest first.
    pub frozen: Vec<Arc<Head>>,
    pub active: Arc<Head>,
    /// All parts except the active head, in the state that readers see.
    pub parts: SnapshotSources,
    /// All parts except the active head, in the state that the writer sees: without the rows that the current
    /// batch deletes.
    pub writing: SnapshotSources,
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

    /// Returns the files with failed reads, and the number of failed reads in each.
    pub fn unreadable(&self, dir: &Path) -> Vec<(PathBuf, u32)> {
        let index = |s: &Arc<Segment>| (segment::path(dir, s.entry.number), s.faults());
        let sealed = self.segments.iter().flat_map(|segment| &segment.logs).flatten();
        let logs = self.heads().map(|head| &head.log).chain(sealed);
        let log = |l: &Arc<Log>| (log::path(dir, l.number, l.generation), l.faults());
        let all = self.segments.iter().map(index).chain(logs.map(log));
        all.filter(|(_, faults)| *faults > 0).collect()
    }

    /// Total size of the logs and segments, in bytes.
    pub(crate) fn bytes_on_disk(&self) -> u64 {
        self.files().map(|(_, bytes)| bytes).sum()
    }

    /// The logs, segments and address files, each with its size in bytes.
    pub(super) fn files(&self) -> impl Iterator<Item = (ViewFile, u64)> {
        let segments = self.segments.iter().flat_map(|segment| {
            let (number, addresses) = (segment.entry.number, segment.entry.addresses);
            let index = (ViewFile::Segment(number), segment.file.bytes());
            [index, (ViewFile::Addresses(number, addresses), segment.addresses.bytes())]
        });
        let log = |log: &Arc<Log>| (ViewFile::Log(log.number, log.generation), log.written());
        segments.chain(self.logs().map(log))
    }

    /// Total bytes of the `.dead` files of all segments. A job may have to write all these files.
    pub(crate) fn dead_files_max(&self) -> u64 {
        let bytes = |segment: &Arc<Segment>| {
            SidecarKind::Dead.bytes(RowMarks::words_on_disk(segment.file.rows))
        };
        self.segments.iter().map(bytes).sum()
    }

    /// All logs: of segments, and then of heads.
    pub(crate) fn logs(&self) -> impl Iterator<Item = &Arc<Log>> {
        let sealed = self.segments.iter().flat_map(|segment| &segment.logs).flatten();
        sealed.chain(self.heads().map(|head| &head.log))
    }

    /// Returns the active head as readers see it now, and the last visible sequence number.
    pub(crate) fn now(&self) -> (Arc<dyn AnySource>, u64) {
        let head = HeadView::published(&self.active);
        let seq = self.active.base + head.rows();
        (Arc::new(head), seq)
    }

    /// Returns the reason why the segments or the active head's log cannot be trusted, if there is
    /// a reason. A commit searches these files to decide which records to store, refuse or replace.
    pub(crate) fn trouble(&self) -> Option<String> {
        let log = &self.active.log;
        let lost =
            log.is_unreadable().then(|| format!("a part of log {} could not be read", log.number));
        lost.or_else(|| self.segments.iter().find_map(|segment| segment.trouble()))
    }

    pub(crate) fn heads(&self) -> impl Iterator<Item = &Arc<Head>> {
        std::iter::once(&self.active).chain(self.frozen.iter().rev())
    }

    /// Finds a live record by its id, in the view of the writer (`writing`) or of readers.
    pub(crate) fn locate(&self, id: &Id, hash: u64, writing: bool) -> Option<LiveRow> {
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

/// A file of a view, by its number. Some files also have a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ViewFile {
    Segment(u32),
    Addresses(u32, u32),
    Log(u32, u32),
}

/// A live row.
pub(crate) enum LiveRow {
    Head(Arc<Head>, u32),
    Segment(Arc<Segment>, u32),
}

impl LiveRow {
    /// The number of the log that has the row's record.
    pub(crate) fn log(&self) -> u32 {
        match self {
            Self::Head(head, _) => head.log.number,
            Self::Segment(segment, row) => segment.address(*row).log,
        }
    }

    /// Whether the row's record can be read and matches the query. `frames` has the records of the
    /// batch that is being gathered.
    pub(crate) fn matches(&self, query: &Query, frames: &Arc<Vec<u8>>) -> bool {
        let matches =
            |record: Option<Record<'_>>| record.is_some_and(|found| query.matches(&found));
        match self {
            Self::Head(head, row) => matches(HeadView::with_batch(head, frames).record(*row)),
            Self::Segment(segment, row) => matches(segment.record(*row)),
        }
    }

    pub(crate) fn mark_deleted(&self) {
        match self {
            Self::Head(head, row) => {
                head.mark_deleted(*row);
            }
            Self::Segment(segment, row) => {
                segment.dead.doomed.set(*row);
            }
        }
    }

    /// Withdraws the deletion of the row, because the batch with this deletion was not written.
    pub(crate) fn spare(&self) {
        match self {
            Self::Head(head, row) => head.spare(*row),
            Self::Segment(segment, row) => segment.dead.doomed.clear(*row),
        }
    }

    pub fn kill(&self) {
        match self {
            Self::Head(head, row) => head.kill(*row),
            Self::Segment(segment, row) => segment.kill(*row),
        }
    }
}

/// Adds the rows of an id in the log numbered `log` to `found`.
pub(super) fn named<'a>(
    segments: &[Arc<Segment>],
    heads: impl Iterator<Item = &'a Arc<Head>>,
    (id, hash): (&Id, u64),
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
