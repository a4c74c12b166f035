//! What commands print: numbers for people, tables, progress on a terminal or a line now and then.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

pub(crate) use hark_server::words::{bytes, number};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints a line to stdout. A reader who has gone is an error, told by [`is_broken_pipe`].
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    Ok(writeln!(out, "{text}")?)
}

/// Whether the reader of our output has gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Two columns, the second flush right, the rest as it comes.
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

/// How far a long command has come: a bar on a terminal, else a line on stderr now and then.
pub(crate) struct Meter {
    bar: Option<ProgressBar>,
    started: Instant,
    told: Instant,
    what: String,
}

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

impl Meter {
    /// Begins at nothing. `total` is 0 where it is not known.
    pub(crate) fn start(what: &str, total: u64, unit: Unit) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = if total == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(total) };
            let template = match (unit, total) {
                (_, 0) => "{spinner} {prefix}  {elapsed}  {msg}",
                (Unit::Bytes, _) => "{prefix} {wide_bar} {bytes}/{total_bytes}  {msg}  {eta} left",
                (Unit::Records, _) => {
                    "{prefix} {wide_bar} {human_pos}/{human_len} {per_sec}  {msg}  {eta} left"
                }
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(what.to_owned());
            bar
        });
        let now = Instant::now();
        Self { bar, started: now, told: now, what: what.into() }
    }

    /// Takes progress as the store reports it.
    pub(crate) fn store(&mut self, progress: hark_store_embedded::Progress) {
        self.at(progress.done, progress.total, progress.what);
    }

    /// `done` of `total`, and a few words.
    pub(crate) fn at(&mut self, done: u64, total: u64, words: &str) {
        if let Some(bar) = &self.bar {
            if total > 0 {
                bar.set_length(total);
            }
            bar.set_position(done);
            bar.set_message(words.to_owned());
        } else if self.told.elapsed() >= LINE_EVERY {
            self.told = Instant::now();
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

    /// Takes the bar away.
    pub(crate) fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
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
