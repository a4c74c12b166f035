//! The progress of a long step: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

pub(crate) struct ProgressMeter(Option<ProgressBar>);

impl ProgressMeter {
    /// Shows the bar, at 0 of `total`.
    pub(crate) fn start(what: &str, total: u64) -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            let template = "{prefix} {wide_bar} {human_pos}/{human_len} {per_sec}  {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(what.to_owned());
            bar
        }))
    }

    pub(crate) fn at(&mut self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}
