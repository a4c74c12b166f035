//! Decides when changed files are ready to be read by a running process. A script that rewrites a
//! file in place empties the file first, and for a while the file is incomplete. An incomplete list
//! would let strangers in or shut members out, so the earlier settings stay in force until the file
//! is complete.

use std::time::{Duration, Instant};

use super::files::FileState;
use super::values::Config;

/// Interval between two checks of the files.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long files must be unchanged before they are read.
const QUIET: Duration = Duration::from_secs(1);
/// How long files must be unchanged after an explicit request. A shorter time is enough, because
/// the files are complete when the request is made.
const QUIET_IF_ASKED: Duration = Duration::from_millis(100);
/// How long a file must be unchanged if its end may be missing ([`Config::may_be_cut_off`]).
const QUIET_IF_SHORT: Duration = Duration::from_secs(10);
/// Maximum time that a request waits for unchanged files.
const ASKED_MAX: Duration = Duration::from_secs(30);

/// Watches files that are read again after a change or on request.
pub(crate) struct FileWatch {
    /// The states of the files when they were read.
    read: Vec<FileState>,
    /// The states of the files at the last check.
    seen: Vec<FileState>,
    /// The time at which a check last found a change.
    changed: Option<Instant>,
    asked: Option<Instant>,
}

impl FileWatch {
    /// Creates a watch of files that were read in these states.
    pub(crate) fn new(read: Vec<FileState>) -> Self {
        Self { seen: read.clone(), read, changed: None, asked: None }
    }

    /// Requests that the files are read even if they have not changed.
    pub(crate) fn ask(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Checks the files. Returns whether the files must be read now: they have changed or a request
    /// is pending, and the last change is old enough ([`QUIET`] or [`QUIET_IF_ASKED`]).
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let seen: Vec<FileState> = self.read.iter().map(FileState::again).collect();
        if seen != self.seen {
            self.seen = seen;
            self.changed = Some(now);
        }
        let quiet = if self.asked.is_some() { QUIET_IF_ASKED } else { QUIET };
        (self.asked.is_some() || self.seen != self.read) && self.quiet_for(now) >= quiet
    }

    /// Returns whether the files must be read once more later. This is the case if a file changed
    /// during the read, or if the end of a file may be missing and its last change is recent.
    pub(crate) fn must_wait(&self, config: &Config, before: &Config, now: Instant) -> bool {
        let is_short = config.may_be_cut_off(before) && self.quiet_for(now) < QUIET_IF_SHORT;
        is_short || config.files.iter().any(|file| file.again() != *file)
    }

    /// Whether a request has waited too long for unchanged files. Ends such a request; the caller
    /// answers that the files still change.
    pub(crate) fn has_timed_out(&mut self, now: Instant) -> bool {
        let is_late =
            self.asked.is_some_and(|asked| now.saturating_duration_since(asked) > ASKED_MAX);
        if is_late {
            self.asked = None;
        }
        is_late
    }

    /// Records the states in which files were read. These files are watched from now on.
    pub(crate) fn was_read(&mut self, files: Vec<FileState>) {
        self.seen.clone_from(&files);
        (self.read, self.asked) = (files, None);
    }

    fn quiet_for(&self, now: Instant) -> Duration {
        self.changed.map_or(Duration::MAX, |changed| now.saturating_duration_since(changed))
    }
}

impl Config {
    /// Whether the end of a file may be missing: its last line has no line break, its text is the
    /// beginning of the previous text, or it has fewer than half as many lines as the previous
    /// text.
    fn may_be_cut_off(&self, before: &Self) -> bool {
        self.texts.iter().any(|(path, text)| {
            before.texts.get(path).is_some_and(|old| old != text && is_short(old, text))
        })
    }

    /// Returns the reason why the files must not be used, if any: a file has lost all entries of
    /// its previous text, or its end is certainly missing. Both happen if a file is rewritten on a
    /// full disk.
    pub(crate) fn lost(&self, before: &Self) -> Option<String> {
        self.texts.iter().find_map(|(named, text)| {
            let (old, path) = (before.texts.get(named)?, named.display());
            if has_entries(old) && !has_entries(text) {
                let meant = if self.file.as_ref() == Some(named) {
                    "a restart puts the empty file in force"
                } else {
                    "if that is meant, write [] for the list that names it, or restart"
                };
                return Some(format!("{path} had entries and has none now; {meant}"));
            }
            is_cut_off(old, text).then(|| {
                format!("{path} ends in the middle of a line, so its end may be missing; end it with a line break")
            })
        })
    }
}

/// Whether a text has a line that is neither empty nor a comment.
fn has_entries(text: &str) -> bool {
    text.lines().map(str::trim).any(|line| !line.is_empty() && !line.starts_with('#'))
}

fn is_short(old: &str, text: &str) -> bool {
    !text.ends_with('\n') || old.starts_with(text) || text.lines().count() * 2 < old.lines().count()
}

/// Whether a text ends in the middle of a line: it has no final line break, although the old text
/// had a final line break or had more of the same line.
fn is_cut_off(old: &str, text: &str) -> bool {
    if text.is_empty() || text.ends_with('\n') || old.trim_end() == text {
        return false;
    }
    let rest = old.strip_prefix(text);
    old.ends_with('\n')
        || rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['\n', '\r']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> Config {
        Config { texts: [("members.txt".into(), text.into())].into(), ..Config::default() }
    }

    #[test]
    fn a_file_that_is_being_rewritten_is_told_from_one_that_is_whole() {
        let whole = "# members\naa # alice\nbb\ncc\n";
        let before = with(whole);
        // (new text, whether its end may be missing, whether it is refused)
        for (now, is_short, is_lost) in [
            (whole, false, false),
            ("# members\naa # alice\nbb\ncc\ndd\n", false, false),
            ("# members\nbb\ncc\n", false, false),
            ("", true, true),
            ("# members\n", true, true),
            ("# membe", true, true),
            ("# members\naa # alice\n", true, false),
            ("# members\naa # alice\nbb\n", true, false),
            ("# members\naa # alice\nbb\nc", true, true),
            ("# members\naa # alice\nbb\ncc", true, false),
            ("# members\ndd\n", false, false),
            ("dd\n", true, false),
            ("dd", true, true),
        ] {
            let config = with(now);
            assert_eq!(config.may_be_cut_off(&before), is_short, "{now:?}");
            assert_eq!(config.lost(&before).is_some(), is_lost, "{now:?}");
        }
        // A list that is named for the first time, and a list that had no entries, may be empty.
        assert_eq!(with("").lost(&Config::default()), None);
        assert_eq!(with("# none\n").lost(&with("")), None);
    }

    #[test]
    fn files_are_read_once_they_have_been_still_for_a_while() {
        let path = std::env::temp_dir().join(format!("hark-reread-{}", std::process::id()));
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("aa\n");
        let mut watch = FileWatch::new(vec![FileState::new(path.clone())]);
        let (start, ms) = (Instant::now(), Duration::from_millis);
        assert!(!watch.is_due(start));
        // If no file has changed, a request is due at once.
        watch.ask(start);
        assert!(watch.is_due(start));
        watch.was_read(vec![FileState::new(path.clone())]);
        // The file changes at each of ten checks, and is read a second after the last change.
        for n in 1..=10 {
            write(&"aa\n".repeat(n + 1));
            assert!(!watch.is_due(start + LOOK_EVERY * n as u32));
        }
        let last = start + LOOK_EVERY * 10;
        assert!(!watch.is_due(last + ms(999)) && watch.is_due(last + ms(1_000)));
        // A request waits for a shorter time without changes.
        watch.ask(start);
        assert!(!watch.is_due(last + ms(99)) && watch.is_due(last + ms(100)));
        // A file whose end may be missing waits longer, and a file that changes during the read is
        // read again.
        let config = |text: &str| {
            let texts = [(path.clone(), text.into())].into();
            Config { texts, files: vec![FileState::new(path.clone())], ..Config::default() }
        };
        let (before, cut) = (config("aa\nbb\ncc\n"), config("aa\n"));
        assert!(watch.must_wait(&cut, &before, last + ms(9_999)));
        assert!(!watch.must_wait(&cut, &before, last + ms(10_000)));
        assert!(!watch.must_wait(&before, &before, last + ms(1_000)));
        write("changed meanwhile\n");
        assert!(watch.must_wait(&before, &before, last + ms(10_000)));
        assert!(
            !watch.has_timed_out(start + ms(30_000)) && watch.has_timed_out(start + ms(30_001))
        );
        std::fs::remove_file(&path).unwrap();
    }
}
