//! Detects from the duration of reads whether records are in memory or on the disk. A system call
//! that reports this would cost more than reading a record.

use std::time::{Duration, Instant};

/// A read of one record that takes at least this time counts as a read from the disk.
const FROM_DISK: Duration = Duration::from_micros(20);
/// Maximum duration of reading and processing a record that is in memory.
const FROM_MEMORY: Duration = Duration::from_micros(4);

#[derive(Debug, Default)]
pub(super) struct ReadPace {
    since: Option<Instant>,
    is_cold: bool,
}

impl ReadPace {
    /// Notes the number of records that were looked up and read since the last call.
    pub(super) fn note(&mut self, records: usize) {
        let now = Instant::now();
        if let (Some(since), Ok(records @ 1..)) = (self.since.replace(now), u32::try_from(records))
        {
            self.judge(now.duration_since(since) / records);
        }
    }

    fn judge(&mut self, each: Duration) {
        // Parallel reads from the disk take less time per record than a single read. So the pace
        // stays cold until reads are as fast as from memory.
        self.is_cold = each >= if self.is_cold { FROM_MEMORY } else { FROM_DISK };
    }

    /// Returns whether the next records should all be read at the same time.
    pub(super) fn is_cold(&self) -> bool {
        self.is_cold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_recognised_by_the_time_it_takes() {
        let mut pace = ReadPace::default();
        pace.note(0);
        std::thread::sleep(FROM_DISK);
        pace.note(0);
        assert!(!pace.is_cold(), "nothing was read");
        std::thread::sleep(FROM_DISK);
        pace.note(1);
        assert!(pace.is_cold());
        for (micros, is_cold) in [(2, false), (10, false), (90, true), (10, true), (2, false)] {
            pace.judge(Duration::from_micros(micros));
            assert_eq!(pace.is_cold(), is_cold, "after {micros} us a record");
        }
    }
}
