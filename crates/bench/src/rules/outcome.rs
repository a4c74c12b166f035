//! The outcomes of the rules, as a table, as Markdown or as JSON.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::rule::Rule;
use crate::probe::end::{ProbeEnd, ProbeResult};

/// The outcome of a rule.
pub(super) struct RuleOutcome {
    pub(super) rule: &'static Rule,
    pub(super) end: ProbeResult,
    /// The last messages of the check.
    pub(super) frames: Vec<String>,
    pub(super) time: Duration,
}

/// The outcomes of a run.
pub(super) struct RulesReport {
    pub(super) url: String,
    pub(super) relay: String,
    pub(super) outcomes: Vec<RuleOutcome>,
    /// The number of events that the relay accepted.
    pub(super) published: usize,
    /// The number of events that remain. `None` if the deletion failed.
    pub(super) remaining: Option<usize>,
}

impl RuleOutcome {
    /// The result in reports, and the reason.
    fn result(&self) -> (&'static str, &str) {
        match &self.end {
            Ok(()) => ("pass", ""),
            Err(ProbeEnd::Failed(why)) => ("fail", why),
            Err(ProbeEnd::Unsupported(why)) => ("not supported", why),
            Err(ProbeEnd::Undecided(why)) => ("undecided", why),
        }
    }

    fn is_failed(&self) -> bool {
        matches!(self.end, Err(ProbeEnd::Failed(_)))
    }

    fn json(&self) -> Value {
        let (result, why) = self.result();
        let mut out = rule_json(self.rule);
        out["result"] = json!(result);
        out["why"] = json!(why);
        out["ms"] = json!(self.time.as_millis() as u64);
        out["frames"] = json!(if self.is_failed() { &self.frames[..] } else { &[] });
        out
    }
}

fn rule_json(rule: &Rule) -> Value {
    json!({
        "id": rule.id(),
        "nip": rule.nip,
        "force": rule.force.name(),
        "sentence": rule.sentence,
        "sent": rule.sent,
        "expected": rule.expected,
    })
}

/// Prints the rules without outcomes.
pub(super) fn print_list(rules: &[&Rule], is_json: bool, is_markdown: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if is_json {
        let rules: Vec<_> = rules.iter().map(|rule| rule_json(rule)).collect();
        writeln!(out, "{:#}", json!({"bench": "rules", "rules": rules}))?;
    } else if is_markdown {
        writeln!(out, "| rule | | sentence | sent | expected |\n|---|---|---|---|---|")?;
        for rule in rules {
            let sentence = cell(rule.sentence);
            let (id, force, sent, expected) =
                (rule.id(), rule.force.name(), rule.sent, rule.expected);
            writeln!(out, "| {id} | {force} | {sentence} | {sent} | {expected} |")?;
        }
    } else {
        for rule in rules {
            writeln!(out, "{} ({})", rule.id(), rule.force.name())?;
            print_rule(&mut out, rule)?;
        }
    }
    Ok(())
}

/// Prints the sentence of a rule and its check.
fn print_rule(out: &mut impl std::io::Write, rule: &Rule) -> std::io::Result<()> {
    writeln!(out, "    sentence  {}", rule.sentence)?;
    writeln!(out, "    sent      {}", rule.sent)?;
    writeln!(out, "    expected  {}", rule.expected)
}

/// Text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

impl RulesReport {
    /// The number of outcomes with this result.
    fn count(&self, result: &str) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.result().0 == result).count()
    }

    /// The number of failed rules whose sentences are binding.
    fn binding_failures(&self) -> usize {
        let is_binding =
            |outcome: &&RuleOutcome| outcome.is_failed() && outcome.rule.force.is_binding();
        self.outcomes.iter().filter(is_binding).count()
    }

    /// Prints the report. The exit code is 1 if a binding rule has failed.
    pub(super) fn publish(&self, is_json: bool, is_markdown: bool) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        if is_json {
            writeln!(out, "{:#}", self.json())?;
        } else if is_markdown {
            self.print_markdown(&mut out)?;
        } else {
            self.print_table(&mut out)?;
        }
        let is_failed = self.binding_failures() > 0;
        Ok(if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn json(&self) -> Value {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        json!({
            "bench": "rules",
            "hark": hark::VERSION,
            "at_s": at.as_secs(),
            "settings": {"url": self.url, "relay": self.relay},
            "passed": self.count("pass"),
            "failed": self.count("fail"),
            "failed_binding": self.binding_failures(),
            "not_supported": self.count("not supported"),
            "undecided": self.count("undecided"),
            "events_published": self.published,
            "events_left": self.remaining,
            "rules": self.outcomes.iter().map(RuleOutcome::json).collect::<Vec<_>>(),
        })
    }

    /// The last line of a report.
    fn summary(&self) -> String {
        let left = match self.remaining {
            Some(left) => format!("{left} of the run's events remain in the relay"),
            None => "the relay refused to delete the run's events".into(),
        };
        format!(
            "{} rules: {} passed, {} failed ({} of them MUST or plain), {} not supported, \
             {} undecided. {} events were published; {left}.",
            self.outcomes.len(),
            self.count("pass"),
            self.count("fail"),
            self.binding_failures(),
            self.count("not supported"),
            self.count("undecided"),
            self.published,
        )
    }

    fn print_table(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "{} at {}\n", self.relay, self.url)?;
        for outcome in &self.outcomes {
            let (result, why) = outcome.result();
            let (id, force) = (outcome.rule.id(), outcome.rule.force.name());
            let why = if outcome.is_failed() { "" } else { why };
            let line = format!("{result:<14}{id:<30}{force:<8}{why}");
            writeln!(out, "{}", line.trim_end())?;
        }
        for outcome in self.outcomes.iter().filter(|outcome| outcome.is_failed()) {
            let (id, force) = (outcome.rule.id(), outcome.rule.force.name());
            writeln!(out, "\nfailed: {id} ({force})")?;
            print_rule(out, outcome.rule)?;
            writeln!(out, "    found     {}", outcome.result().1)?;
            for frame in &outcome.frames {
                writeln!(out, "    {frame}")?;
            }
        }
        writeln!(out, "\n{}", self.summary())
    }

    fn print_markdown(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "{} at {}\n", self.relay, self.url)?;
        writeln!(out, "| rule | | sentence | result | |\n|---|---|---|---|---|")?;
        for outcome in &self.outcomes {
            let (result, why) = outcome.result();
            let (id, force) = (outcome.rule.id(), outcome.rule.force.name());
            let (sentence, why) = (cell(outcome.rule.sentence), cell(why));
            writeln!(out, "| {id} | {force} | {sentence} | {result} | {why} |")?;
        }
        writeln!(out, "\n{}", self.summary())
    }
}
