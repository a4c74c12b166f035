//! The output of a report: text or JSON on stdout, and an HTML page.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

use super::results::BenchReport;
use crate::html;

impl BenchReport {
    /// Prints the report as text or JSON, and writes the HTML page to `page` if given.
    pub fn publish(&self, json: bool, page: Option<&Path>) -> anyhow::Result<()> {
        if let Some(path) = page {
            std::fs::write(path, html::page(self))
                .with_context(|| format!("{} could not be written", path.display()))?;
        }
        let text = if json { format!("{:#}\n", self.to_json()) } else { self.to_text() };
        Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
    }
}
