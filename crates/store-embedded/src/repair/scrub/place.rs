//! The position of the slow check in a shelf.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::engine::shelf_view::ShelfView;
use crate::log::{HEADER, Log};
use crate::segment::SECTIONS;
use crate::segment::opened::Segment;

/// The position of the slow check, with separate progress for the segment and for the log. After a
/// rewrite of a log, the check continues at the same position in the segment and in its other logs.
pub(super) struct ScrubPlace {
    /// The lowest number of a log that is still to be read.
    pub(super) from: u32,
    pub(super) segment: Option<SegmentScrub>,
    pub(super) log: Option<LogScrub>,
}

/// The progress of the check in a segment.
pub(super) struct SegmentScrub {
    number: u32,
    /// The section that is being read, the number of its bytes read so far, and their checksum.
    pub(super) section: (usize, usize, u32),
    /// Whether the addresses have been read. They are read after the sections.
    pub(super) has_addresses: bool,
    /// For each log, the generation at which its rows were counted, and the number of rows.
    pub(super) rows: HashMap<u32, (u32, u64)>,
    /// Whether the segment was found damaged.
    pub(super) is_suspect: bool,
}

/// The progress of the check in a log.
pub(super) struct LogScrub {
    number: u32,
    generation: u32,
    /// The number of the segment that covers the log, if any.
    segment: Option<u32>,
    /// Number of failed reads.
    pub(super) faults: u32,
    /// Offset of the next byte to read.
    pub(super) offset: usize,
    /// Number of records for which a matching row was found.
    pub(super) found: u64,
    /// Parts without a whole frame. No two of these parts are adjacent.
    pub(super) lost: Vec<Range<u64>>,
    /// The offset at which the check gave up the log because too many reads failed.
    pub(super) given_up: Option<u64>,
}

/// A log, and the segment that covers it, if any.
pub(super) struct ScrubTarget {
    pub(super) log: Arc<Log>,
    pub(super) segment: Option<Arc<Segment>>,
}

impl ScrubTarget {
    /// Returns the log with the number `from` or the next higher number.
    pub(super) fn next(view: &ShelfView, from: u32) -> Option<Self> {
        for segment in &view.segments {
            let mut logs = segment.logs.iter().flatten();
            if let Some(log) = logs.find(|log| log.number >= from) {
                return Some(Self { log: Arc::clone(log), segment: Some(Arc::clone(segment)) });
            }
        }
        let heads = view.frozen.iter().chain([&view.active]);
        let log = heads.map(|head| &head.log).find(|log| log.number >= from)?;
        Some(Self { log: Arc::clone(log), segment: None })
    }

    fn segment_number(&self) -> Option<u32> {
        self.segment.as_ref().map(|segment| segment.entry.number)
    }

    /// Returns the progress of `place` in this segment, or new progress if `place` is in another
    /// segment.
    pub(super) fn segment_of(&self, place: &mut ScrubPlace) -> Option<SegmentScrub> {
        let number = self.segment_number()?;
        let known = place.segment.take().filter(|known| known.number == number);
        Some(known.unwrap_or_else(|| SegmentScrub::new(number)))
    }

    /// Returns the progress of `place` in this log, or new progress if `place` is in another log.
    pub(super) fn log_of(&self, place: &mut ScrubPlace) -> LogScrub {
        let (log, segment) = (&self.log, self.segment_number());
        let is_same = |known: &LogScrub| {
            (known.number, known.generation, known.segment) == (log.number, log.generation, segment)
        };
        let begin = || LogScrub {
            number: log.number,
            generation: log.generation,
            segment,
            faults: 0,
            offset: HEADER as usize,
            found: 0,
            lost: Vec::new(),
            given_up: None,
        };
        place.log.take().filter(is_same).unwrap_or_else(begin)
    }
}

impl ScrubPlace {
    /// The position at the beginning of the log numbered `from`.
    pub(super) fn before(from: u32) -> Self {
        Self { from, segment: None, log: None }
    }
}

impl SegmentScrub {
    pub(super) fn new(number: u32) -> Self {
        Self {
            number,
            section: (0, 0, 0),
            has_addresses: false,
            rows: HashMap::new(),
            is_suspect: false,
        }
    }

    /// Whether all sections have been read.
    pub(super) fn has_sections(&self) -> bool {
        self.section.0 >= SECTIONS.len()
    }

    /// Whether the sections and the addresses of the segment have been read. The logs of the
    /// segment may still be unread.
    pub(super) fn is_read(&self) -> bool {
        self.has_sections() && self.has_addresses
    }
}

impl LogScrub {
    /// Adds a part without a whole frame. It must come after all earlier parts.
    pub(super) fn lose(&mut self, part: Range<u64>) {
        match self.lost.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => self.lost.push(part),
        }
    }

    /// Whether a frame that begins at `at` is lost.
    pub(super) fn is_lost(&self, at: u64) -> bool {
        let part = self.lost.partition_point(|part| part.end <= at);
        self.lost.get(part).is_some_and(|part| part.contains(&at))
    }
}
