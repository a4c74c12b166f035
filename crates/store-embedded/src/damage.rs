//! Records that could not be read. Each record is counted once, and the first is logged at once.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Maximum number of counted records. A file that is lost as a whole may have more records; the
/// count then means "at least this many".
const COUNTED_MAX: usize = 1 << 20;
/// Shortest time between two lines in the log, so that a lost file does not fill the disk with log
/// lines.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// The damaged records of a shelf. All its logs share this list.
#[derive(Debug, Default)]
pub struct DamagedRecords(Mutex<DamageState>);

#[derive(Debug, Default)]
struct DamageState {
    /// Each damaged record, as the number of its log and the offset of its frame.
    known: BTreeSet<(u32, u32)>,
    /// When damage was last reported in the log, and the number of damaged records known then.
    told: Option<(Instant, usize)>,
}

impl DamagedRecords {
    /// Notes that the record at `offset` of the log numbered `log` could not be read. `path` is the
    /// log's file.
    pub fn note(&self, path: &Path, log: u32, offset: u32) {
        let mut state = self.0.lock();
        if state.known.len() >= COUNTED_MAX || !state.known.insert((log, offset)) {
            return;
        }
        let count = state.known.len();
        let before = match state.told {
            None => 0,
            Some((at, before)) if at.elapsed() >= LOG_EVERY => before,
            Some(_) => return,
        };
        state.told = Some((Instant::now(), count));
        drop(state);
        tracing::error!(
            file = %path.display(),
            byte = offset,
            records = count,
            new = count - before,
            "a record of the archive is damaged and left out of every answer; `hark check` names all \
             damage, `hark salvage` brings what is whole into a new archive"
        );
    }

    /// Number of known damaged records.
    pub fn count(&self) -> u64 {
        self.0.lock().known.len() as u64
    }

    /// Removes the records of a log from the list, because the log was replaced or removed.
    pub fn forget(&self, log: u32) {
        self.0.lock().known.retain(|(of, _)| *of != log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_once_until_its_log_is_replaced() {
        let damaged = DamagedRecords::default();
        for (log, offset) in [(1, 24), (2, 24), (1, 24), (2, u32::MAX)] {
            damaged.note(Path::new("log"), log, offset);
        }
        assert_eq!(damaged.count(), 3);
        damaged.forget(2);
        assert_eq!(damaged.count(), 1);
    }
}
