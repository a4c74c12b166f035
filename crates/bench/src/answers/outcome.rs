//! The outcome of a run of questions, as text or as JSON.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};

/// Maximum number of wrong answers that are shown.
const SHOWN_MAX: usize = 20;
/// Maximum number of ids that are shown of a list.
const IDS_MAX: usize = 5;

/// A wrong answer to a question.
#[derive(Clone, Debug)]
pub(super) struct WrongAnswer {
    /// The number of the question.
    pub(super) question: u64,
    /// `missing`, `unexpected`, `order`, `twice`, `count` or `refused`.
    pub(super) fault: &'static str,
    pub(super) filters: Value,
    pub(super) expected: Vec<String>,
    pub(super) found: Vec<String>,
    /// The text of a refusal, or the count.
    pub(super) text: String,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub(super) struct AnswersReport {
    pub(super) url: String,
    pub(super) relay: String,
    pub(super) seed: u64,
    pub(super) to: u64,
    pub(super) published: u64,
    /// The number of events that the relay must have.
    pub(super) stored: usize,
    /// The refusals of events that the relay should accept, by their text.
    pub(super) refused: BTreeMap<String, u64>,
    /// The numbers of the refused events in the order of publishing, for `--without`.
    pub(super) refused_numbers: Vec<usize>,
    pub(super) asked: u64,
    pub(super) counted: u64,
    pub(super) wrong: Vec<WrongAnswer>,
    /// The number of events that remain after the deletion.
    pub(super) remaining: Option<usize>,
}

impl WrongAnswer {
    fn json(&self) -> Value {
        json!({
            "question": self.question,
            "fault": self.fault,
            "filters": self.filters,
            "expected": self.expected,
            "found": self.found,
            "text": self.text,
        })
    }
}

impl AnswersReport {
    /// Prints the report. The exit code is 1 if an answer was wrong.
    pub(super) fn publish(&self, is_json: bool) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        if is_json {
            writeln!(out, "{:#}", self.json())?;
        } else {
            self.print(&mut out)?;
        }
        Ok(if self.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn json(&self) -> Value {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        json!({
            "bench": "answers",
            "hark": hark::VERSION,
            "at_s": at.as_secs(),
            "settings": {"url": self.url, "relay": self.relay, "seed": self.seed, "to": self.to},
            "published": self.published,
            "stored": self.stored,
            "refused": self.refused,
            "refused_events": self.refused_numbers,
            "asked": self.asked,
            "counted": self.counted,
            "wrong": self.wrong.iter().map(WrongAnswer::json).collect::<Vec<_>>(),
            "events_left": self.remaining,
        })
    }

    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "{} at {}", self.relay, self.url)?;
        writeln!(out, "The same run again: --seed {} --to {}\n", self.seed, self.to)?;
        for wrong in self.wrong.iter().take(SHOWN_MAX) {
            writeln!(out, "question {}: {}", wrong.question, wrong.fault)?;
            writeln!(out, "    filters   {}", wrong.filters)?;
            writeln!(out, "    expected  {}", list(&wrong.expected))?;
            writeln!(out, "    found     {}", list(&wrong.found))?;
            if !wrong.text.is_empty() {
                writeln!(out, "    text      {}", wrong.text)?;
            }
        }
        if self.wrong.len() > SHOWN_MAX {
            writeln!(out, "and {} more", self.wrong.len() - SHOWN_MAX)?;
        }
        for (why, count) in &self.refused {
            writeln!(out, "{count} events were refused: {why}")?;
        }
        if !self.refused_numbers.is_empty() && self.remaining.is_none() {
            let numbers: Vec<_> = self.refused_numbers.iter().map(usize::to_string).collect();
            writeln!(out, "Later questions with --ask-only need --without {}", numbers.join(","))?;
        }
        let (published, stored) = (self.published, self.stored);
        writeln!(out, "{published} events were published, of which {stored} remain in force.")?;
        let (asked, counted, wrong) = (self.asked, self.counted, self.wrong.len());
        writeln!(out, "{asked} questions and {counted} counts: {wrong} wrong answers.")?;
        match self.remaining {
            Some(left) => writeln!(out, "{left} of the run's events remain in the relay."),
            None => writeln!(out, "The run's events remain in the relay."),
        }
    }
}

/// The first ids of a list, and its length.
fn list(ids: &[String]) -> String {
    let shown: Vec<_> = ids.iter().take(IDS_MAX).map(String::as_str).collect();
    let more = if ids.len() > IDS_MAX { " …" } else { "" };
    format!("{} events: {}{more}", ids.len(), shown.join(" "))
}
