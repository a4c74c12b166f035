//! The growth of the archive: how many records and bytes a day it gains.
//!
//! The server notes the size of each shelf once an hour, in a small file of the data directory. The
//! growth is measured over the last seven days, or since the first note.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

/// Name of the file with the sizes, in the data directory.
pub const FILE: &str = "growth";
/// Interval between two notes.
const NOTE_EVERY_S: u64 = 3_600;
/// Time over which growth is measured.
const MEASURED_S: u64 = 7 * DAY_S;
/// The shortest time over which growth is measured.
const MEASURED_MIN_S: u64 = 3_500;
const DAY_S: u64 = 86_400;

/// The sizes of the shelves in the last days, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrowthLog {
    notes: Vec<SizeNote>,
}

/// The size of a shelf at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SizeNote {
    at_s: u64,
    shelf: String,
    records: u64,
    bytes: u64,
}

/// The growth of a shelf.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Change of the number of records a day.
    pub records_per_day: f64,
    /// Change of the number of bytes a day.
    pub bytes_per_day: f64,
    /// Time over which the growth was measured, in seconds.
    pub measured_s: u64,
}

impl FromStr for SizeNote {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let mut words = line.split(' ');
        let mut next = || words.next().ok_or(());
        let number = |word: &str| word.parse().map_err(|_| ());
        let note = Self {
            at_s: number(next()?)?,
            shelf: next()?.to_owned(),
            records: number(next()?)?,
            bytes: number(next()?)?,
        };
        if next().is_ok() { Err(()) } else { Ok(note) }
    }
}

impl GrowthLog {
    /// Reads the notes of a data directory. A missing file has no notes. A line that is not a note
    /// is skipped, because a crash of the machine may have cut the file off.
    pub fn read(data: &Path) -> io::Result<Self> {
        let text = match fs::read(data.join(FILE)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { notes: text.lines().filter_map(|line| line.parse().ok()).collect() })
    }

    fn write(&self, data: &Path) -> io::Result<()> {
        use std::fmt::Write as _;
        let mut text = String::new();
        for SizeNote { at_s, shelf, records, bytes } in &self.notes {
            writeln!(text, "{at_s} {shelf} {records} {bytes}").map_err(io::Error::other)?;
        }
        let aside = data.join(format!("{FILE}.unfinished"));
        fs::write(&aside, text)?;
        fs::rename(aside, data.join(FILE))
    }

    /// Whether no note of the last hour exists.
    fn is_due(&self, now_s: u64) -> bool {
        // A note from the future was made before the clock was set back.
        let ages = self.notes.iter().filter_map(|note| now_s.checked_sub(note.at_s));
        ages.min().is_none_or(|age| age >= NOTE_EVERY_S)
    }

    /// Adds a note for each shelf, and drops the notes that are no longer needed.
    fn add(&mut self, now_s: u64, sizes: impl IntoIterator<Item = (String, u64, u64)>) {
        let kept = now_s.saturating_sub(MEASURED_S + NOTE_EVERY_S)..now_s;
        self.notes.retain(|note| kept.contains(&note.at_s));
        let notes = sizes.into_iter();
        self.notes.extend(notes.map(|(shelf, records, bytes)| SizeNote {
            at_s: now_s,
            shelf,
            records,
            bytes,
        }));
    }

    /// Returns the growth of a shelf. `None` if the notes are too young.
    pub fn of(&self, shelf: &str, now_s: u64) -> Option<Growth> {
        let from = now_s.saturating_sub(MEASURED_S);
        let recent = |note: &&SizeNote| note.shelf == shelf && (from..=now_s).contains(&note.at_s);
        let first = self.notes.iter().find(recent)?;
        let last = self.notes.iter().rfind(recent)?;
        let measured_s = (last.at_s - first.at_s).checked_sub(MEASURED_MIN_S)? + MEASURED_MIN_S;
        let per_day =
            |last: u64, first: u64| (last as f64 - first as f64) / measured_s as f64 * DAY_S as f64;
        Some(Growth {
            records_per_day: per_day(last.records, first.records),
            bytes_per_day: per_day(last.bytes, first.bytes),
            measured_s,
        })
    }

    /// Returns the number of days until all shelves together have used up `free` bytes. `None` if
    /// the shelves do not grow, or if the notes are too young.
    pub fn days_until_full(&self, free: u64, now_s: u64) -> Option<f64> {
        let shelves: BTreeSet<&str> = self.notes.iter().map(|note| note.shelf.as_str()).collect();
        let growths = shelves.iter().filter_map(|shelf| self.of(shelf, now_s));
        let bytes_per_day: f64 = growths.map(|growth| growth.bytes_per_day).sum();
        (bytes_per_day >= 1.0).then(|| free as f64 / bytes_per_day)
    }
}

/// Notes the sizes of the shelves in the file of a data directory.
pub(crate) struct GrowthRecorder {
    data: PathBuf,
    state: Mutex<RecorderState>,
}

struct RecorderState {
    /// Shared with those who read the notes meanwhile.
    log: Arc<GrowthLog>,
    /// Whether the last attempt to write the file failed.
    has_failed: bool,
}

impl GrowthRecorder {
    pub(crate) fn open(data: &Path) -> Self {
        let log = GrowthLog::read(data).unwrap_or_else(|error| {
            let file = data.join(FILE);
            tracing::warn!(
                file = %file.display(), %error,
                "the earlier sizes of the archive cannot be read, so its growth is measured from now on"
            );
            GrowthLog::default()
        });
        let state = Mutex::new(RecorderState { log: Arc::new(log), has_failed: false });
        Self { data: data.to_owned(), state }
    }

    /// Notes the sizes of the shelves, if no note of the last hour exists. Each size is the shelf's
    /// name, its number of records and its number of bytes.
    pub(crate) fn note(&self, sizes: impl IntoIterator<Item = (String, u64, u64)>) {
        let mut state = self.state.lock();
        let now_s = now_s();
        if !state.log.is_due(now_s) {
            return;
        }
        Arc::make_mut(&mut state.log).add(now_s, sizes);
        let written = state.log.write(&self.data);
        if let (Err(error), false) = (&written, state.has_failed) {
            let file = self.data.join(FILE);
            tracing::warn!(
                file = %file.display(), %error,
                "the size of the archive cannot be written to its file; trying again each hour"
            );
        }
        state.has_failed = written.is_err();
    }

    /// Returns the notes of the last days.
    pub(crate) fn log(&self) -> Arc<GrowthLog> {
        Arc::clone(&self.state.lock().log)
    }
}

/// Returns the present time in seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use hark_testkit::folder::Folder;

    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn sizes(records: u64) -> Vec<(String, u64, u64)> {
        vec![("nostr".into(), records, records * 500), ("waku".into(), 7, 7)]
    }

    #[test]
    fn growth_is_measured_over_the_last_days() {
        let mut log = GrowthLog::default();
        assert_eq!(log.of("nostr", NOW_S), None);
        // 1,000 events an hour for three days, then 2,000 an hour for seven days.
        let mut records = 0;
        for hour in 0..=240 {
            let now_s = NOW_S + hour * 3_600;
            assert!(log.is_due(now_s) && (hour == 0 || !log.is_due(now_s - 1)));
            log.add(now_s, sizes(records));
            records += if hour < 72 { 1_000 } else { 2_000 };
        }
        let now_s = NOW_S + 240 * 3_600;
        let growth = log.of("nostr", now_s).unwrap();
        assert_eq!(growth.measured_s, MEASURED_S);
        assert_eq!((growth.records_per_day, growth.bytes_per_day), (48_000.0, 24e6));
        assert_eq!(log.days_until_full(240_000_000, now_s), Some(10.0));
        assert!(log.of("waku", now_s).unwrap().bytes_per_day.abs() < 0.1);
        assert_eq!(log.of("whisper", now_s), None);
        assert!(log.notes.len() <= 2 * (MEASURED_S / 3_600 + 2) as usize, "old notes are dropped");
    }

    #[test]
    fn notes_of_less_than_an_hour_and_of_the_future_say_nothing() {
        let mut log = GrowthLog::default();
        log.add(NOW_S, sizes(5));
        log.add(NOW_S + 3_000, sizes(6));
        assert_eq!(log.of("nostr", NOW_S + 3_000), None);
        assert_eq!(log.days_until_full(1, NOW_S + 3_000), None);
        assert!(log.is_due(NOW_S - 3_000), "the clock was set back");
        log.add(NOW_S - 3_000, sizes(6));
        assert_eq!((log.notes.len(), log.of("nostr", NOW_S - 3_000)), (2, None));
    }

    #[test]
    fn a_file_that_was_cut_off_keeps_its_whole_lines() {
        let folder = Folder::new("growth");
        assert_eq!(GrowthLog::read(&folder).unwrap(), GrowthLog::default());
        let mut log = GrowthLog::default();
        log.add(NOW_S, sizes(5));
        log.write(&folder).unwrap();
        assert_eq!(GrowthLog::read(&folder).unwrap(), log);
        let text = fs::read_to_string(folder.join(FILE)).unwrap();
        fs::write(folder.join(FILE), format!("{text}1800000900 nostr 12")).unwrap();
        assert_eq!(GrowthLog::read(&folder).unwrap(), log);
    }
}
