//! Where the slow check is.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::log::{HEADER, Log};
use crate::segment::SECTIONS;
use crate::segment::view::Segment;
use crate::view::ShelfView;

/// Where the slow check is. A segment and each of its logs are gone on with as long as they are the
/// same: so a rewrite of another log of the segment begins neither again.
pub(super) struct ScrubPlace {
    /// The lowest number of a log that is still to be read.
    pub(super) from: u32,
    pub(super) segment: Option<SegmentScrub>,
    pub(super) log: Option<LogScrub>,
}

/// What was read of a segment.
pub(super) struct SegmentScrub {
    number: u32,
    /// The section being read, its bytes read so far, and their checksum.
    pub(super) section: (usize, usize, u32),
    /// Whether the addresses were read, which follow the sections.
    pub(super) has_addresses: bool,
    /// Number of rows of each log, with the log's generation at that time.
    pub(super) rows: HashMap<u32, (u32, u64)>,
    /// Whether it was found to be damaged.
    pub(super) is_suspect: bool,
}

/// What was read of a log.
pub(super) struct LogScrub {
    number: u32,
    generation: u32,
    /// The number of the segment that covers it.
    segment: Option<u32>,
    /// Pages that could not be read.
    pub(super) faults: u32,
    /// Bytes read.
    pub(super) offset: usize,
    /// Records whose row was found.
    pub(super) found: u64,
    /// Parts in which no frame is whole; no two of them meet.
    pub(super) lost: Vec<Range<u64>>,
    /// Where reading was given up, as too many pages could not be read.
    pub(super) given_up: Option<u64>,
}

/// A log, and the segment that covers it.
pub(super) struct ScrubTarget {
    pub(super) log: Arc<Log>,
    pub(super) segment: Option<Arc<Segment>>,
}

impl ScrubTarget {
    /// The first log of a view from the one numbered `from` on.
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

    /// What is known of the segment, of which `place` may know something.
    pub(super) fn segment_of(&self, place: &mut ScrubPlace) -> Option<SegmentScrub> {
        let number = self.segment_number()?;
        let known = place.segment.take().filter(|known| known.number == number);
        Some(known.unwrap_or_else(|| SegmentScrub::new(number)))
    }

    /// What is known of the log, of which `place` may know something.
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
    /// The beginning of the log numbered `from`.
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

    /// Whether all of its sections are read.
    pub(super) fn has_sections(&self) -> bool {
        self.section.0 >= SECTIONS.len()
    }

    /// Whether all of it is read, except its logs.
    pub(super) fn is_read(&self) -> bool {
        self.has_sections() && self.has_addresses
    }
}

impl LogScrub {
    /// Notes a part in which no frame is whole, behind all others.
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
