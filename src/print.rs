//! The output of commands: readable numbers, tables, and progress as a bar or occasional lines.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

pub(crate) use hark_server::words::{bytes, count, moment, number};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle, WeakProgressBar};
use parking_lot::Mutex;

/// The error if the output of a command could not be written.
#[derive(Debug)]
pub(crate) struct OutputError(io::Error);

impl std::fmt::Display for OutputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the output could not be written: {}", self.0)
    }
}

impl std::error::Error for OutputError {}

/// Stdout, with errors that can be distinguished from errors of other files; see
/// [`is_closed_output`].
pub(crate) struct Output(io::StdoutLock<'static>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(io::stdout().lock())
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_output)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_output)
    }
}

fn of_output(error: io::Error) -> io::Error {
    // The kind of the error stays the same, because callers retry a write that was interrupted.
    io::Error::new(error.kind(), OutputError(error))
}

/// Prints a line of a result to stdout. If the reader of stdout has closed its end, the line is
/// lost, and the command still does its work and ends with its usual exit code.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    match row(text) {
        Err(error) if is_closed_output(&error) => Ok(()),
        printed => printed,
    }
}

/// Prints a row of a list to stdout. Fails if the reader of stdout has closed its end, so that the
/// list ends.
pub(crate) fn row(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(Output::new(), "{text}")?)
}

/// Prints bytes to stdout unchanged.
pub(crate) fn text(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = Output::new();
    Ok(out.write_all(bytes).and_then(|()| out.flush())?)
}

/// Prints a line to stderr, like `eprintln`, but ignores errors. A command with a closed stderr
/// does its work nevertheless, and ends with the usual exit code.
macro_rules! note {
    ($($words:tt)*) => {
        crate::print::to_stderr(format_args!($($words)*))
    };
}
pub(crate) use note;

/// Prints a text without a line break to stderr, for an answer on the same line.
pub(crate) fn prompt(words: &str) {
    // Without stderr, the answer is read nevertheless.
    let _ = write!(io::stderr().lock(), "{words}");
}

pub(crate) fn to_stderr(words: std::fmt::Arguments<'_>) {
    // With stderr closed, the error cannot be reported.
    let _ = writeln!(io::stderr().lock(), "{words}");
}

/// Whether the error means that the reader of stdout has closed its end.
pub(crate) fn is_closed_output(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let error = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let error = error.and_then(|error| error.downcast_ref::<OutputError>());
        error.is_some_and(|error| error.0.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Returns a time in the past as text, in the largest unit that fits: `3 minutes ago`.
pub(crate) fn ago(seconds: u64) -> String {
    let units = [("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)];
    let unit = units.into_iter().find(|(_, unit_s)| seconds >= *unit_s);
    unit.map_or("just now".into(), |(unit, unit_s)| {
        format!("{} ago", count(seconds / unit_s, unit))
    })
}

/// Returns a table of two aligned columns, the second flush right, followed by the details of each
/// row.
pub(crate) fn table(rows: &[(&str, String, String)]) -> String {
    let names = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    let values = rows.iter().map(|row| row.1.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value, rest) in rows {
        let _ = write!(out, "  {name:names$}  {value:>values$}");
        if !rest.is_empty() {
            let _ = write!(out, "  {rest}");
        }
        out.push('\n');
    }
    out.pop();
    out
}

/// Shows the progress of a long command: a bar on a terminal, else occasional lines on stderr.
pub(crate) struct CommandProgress {
    bar: Option<ProgressBar>,
    started: Instant,
    shown_at: Instant,
    what: String,
}

/// The bar that this process shows, for a thread that ends the process.
static SHOWN: Mutex<ShownBar> = Mutex::new(ShownBar::Running(None));

enum ShownBar {
    /// The last bar; `None` before the first bar.
    Running(Option<WeakProgressBar>),
    /// The process is ending, and shows no further bar.
    Ending,
}

/// Removes the bar of a command that ends at once, so that its last message begins on a new line.
pub(crate) fn clear_progress() {
    let shown = std::mem::replace(&mut *SHOWN.lock(), ShownBar::Ending);
    if let ShownBar::Running(Some(bar)) = shown
        && let Some(bar) = bar.upgrade()
    {
        bar.finish_and_clear();
    }
}

/// Interval between two lines if stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

impl CommandProgress {
    /// Starts a meter at 0. `total` is 0 if it is unknown.
    pub(crate) fn start(what: &str, total: u64, unit: CountedUnit) -> Self {
        // The first text of a bar is drawn here. A thread that ends the process must find this bar.
        let mut shown = SHOWN.lock();
        let is_shown = matches!(*shown, ShownBar::Running(_)) && std::io::stderr().is_terminal();
        let bar = is_shown.then(|| {
            let bar = if total == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(total) };
            let template = match (unit, total) {
                (_, 0) => "{spinner} {prefix}  {elapsed}  {msg}",
                (CountedUnit::Bytes, _) => {
                    "{prefix} {wide_bar} {bytes}/{total_bytes}  {msg}  {eta} left"
                }
                (CountedUnit::Records, _) => {
                    "{prefix} {wide_bar} {human_pos}/{human_len}  {msg}  {eta} left"
                }
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(what.to_owned());
            // The bar is cleared even if the command ends early, so that its messages begin on a
            // new line.
            bar.with_finish(ProgressFinish::AndClear)
        });
        if let Some(bar) = &bar {
            *shown = ShownBar::Running(Some(bar.downgrade()));
        }
        drop(shown);
        let now = Instant::now();
        Self { bar, started: now, shown_at: now, what: what.into() }
    }

    /// Shows the progress that the store reports.
    pub(crate) fn store(&mut self, progress: hark_store_embedded::JobProgress) {
        self.at(progress.done, progress.total, progress.what);
    }

    /// Shows `done` of `total`, and a short text.
    pub(crate) fn at(&mut self, done: u64, total: u64, words: &str) {
        if let Some(bar) = &self.bar {
            if total > 0 {
                bar.set_length(total);
            }
            bar.set_position(done);
            bar.set_message(words.to_owned());
        } else if self.shown_at.elapsed() >= LINE_EVERY {
            self.shown_at = Instant::now();
            let share = match (done * 100).checked_div(total) {
                Some(percent) => {
                    let spent_s = self.started.elapsed().as_secs();
                    let left_s = spent_s * (total - done.min(total)) / done.max(1);
                    format!("{percent} %, about {left_s} s left")
                }
                None => format!("{} s", self.started.elapsed().as_secs()),
            };
            note!("{}: {share}  {words}", self.what);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The unit that a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedUnit {
    Bytes,
    Records,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [("a", "1".into(), String::new()), ("bcd", "22".into(), "x".into())];
        assert_eq!(table(&rows), "  a     1\n  bcd  22  x");
    }
}
