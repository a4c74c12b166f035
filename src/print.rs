//! The output of commands: numbers for people, tables, and progress as a bar or occasional lines.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

pub(crate) use hark_server::words::{bytes, count, moment, number};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints a line to stdout. If the reader has closed its end, this fails with an error that
/// [`is_broken_pipe`] recognises.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    Ok(writeln!(out, "{text}")?)
}

/// Prints bytes to stdout as they are; fails as [`line`] does.
pub(crate) fn text(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(bytes).and_then(|()| out.flush())?)
}

/// Whether the error means that the reader of the output has closed its end.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Returns a table of two aligned columns, the second flush right, and the rest of each row.
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

/// Interval between two lines if stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

impl CommandProgress {
    /// Starts a meter at 0. `total` is 0 if it is unknown.
    pub(crate) fn start(what: &str, total: u64, unit: CountedUnit) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
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
            bar
        });
        let now = Instant::now();
        Self { bar, started: now, shown_at: now, what: what.into() }
    }

    /// Shows the progress that the store reports.
    pub(crate) fn store(&mut self, progress: hark_store_embedded::JobProgress) {
        self.at(progress.done, progress.total, progress.what);
    }

    /// Shows `done` of `total`, and a few words.
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
            eprintln!("{}: {share}  {words}", self.what);
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
