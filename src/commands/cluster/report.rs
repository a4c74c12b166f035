//! Prints the events of work on a cluster: lines for people, or one JSON object a line.

use std::fmt::Write as _;

use hark_store_postgres::cluster::{
    CheckVerdict, ClusterCheck, ClusterEvent, ClusterStep, MoveProgress, MoveState,
};
use serde_json::{Value, json};

use crate::print::{self, CommandProgress, CountedUnit};

/// Prints events at once. The work continues even if the reader of the output closes its end.
pub(super) struct ClusterReport {
    json: bool,
    meter: Option<CommandProgress>,
    /// A node and its met requirements, which are printed on one line.
    met: Option<(String, Vec<String>)>,
    failed: Option<anyhow::Error>,
}

impl ClusterReport {
    pub(super) fn new(json: bool) -> Self {
        Self { json, meter: None, met: None, failed: None }
    }

    /// Prints an event.
    pub(super) fn show(&mut self, event: &ClusterEvent) {
        if self.json {
            return self.line(&to_json(event).to_string());
        }
        if let ClusterEvent::Check(check) = event
            && check.verdict == CheckVerdict::Passed
        {
            return self.gather(check);
        }
        self.show_met();
        match event {
            ClusterEvent::Check(check) => self.line(&check_line(check)),
            ClusterEvent::Step(step) => self.line(&step_line(step)),
            ClusterEvent::Note(words) => {
                self.pause();
                print::note!("hark: {words}");
            }
            ClusterEvent::Move(progress) => self.show_move(progress),
        }
    }

    fn show_move(&mut self, one: &MoveProgress) {
        match one.state {
            MoveState::Started | MoveState::Running => {
                let meter = self.meter.get_or_insert_with(|| {
                    CommandProgress::start("moving", one.total_bytes, CountedUnit::Bytes)
                });
                let words = format!("{} of {}: {} {}", one.number, one.of, tables(one), one.phase);
                meter.at(one.total_arrived, one.total_bytes, words.trim_end());
            }
            MoveState::Planned | MoveState::Done => {
                let verb = if one.state == MoveState::Done { "moved" } else { "would move" };
                let mut line = format!(
                    "{verb:<10}  {} of {}: {}, shard {}, {}, {} -> {}",
                    one.number,
                    one.of,
                    tables(one),
                    one.shard,
                    print::bytes(one.bytes),
                    one.from,
                    one.to
                );
                if one.state == MoveState::Done {
                    // Writing to a string does not fail.
                    let _ = write!(line, " in {:.1} s", one.seconds);
                    if let Some(left) = one.left_s.filter(|_| one.number < one.of) {
                        let _ = write!(
                            line,
                            "; {} of {} are there, about {left} s left",
                            print::bytes(one.total_arrived),
                            print::bytes(one.total_bytes)
                        );
                    }
                }
                self.line(&line);
            }
        }
    }

    /// Adds a met requirement to the line of its node.
    fn gather(&mut self, check: &ClusterCheck) {
        let node = subject(check);
        if self.met.as_ref().is_some_and(|(of, _)| *of != node) {
            self.show_met();
        }
        let (_, met) = self.met.get_or_insert_with(|| (node, Vec::new()));
        met.push(format!("{} ({})", check.subject, check.found));
    }

    fn show_met(&mut self) {
        if let Some((node, met)) = self.met.take() {
            self.line(&format!("{:<10}  {node}  {}", "ok", met.join(", ")));
        }
    }

    fn line(&mut self, text: &str) {
        self.pause();
        if self.failed.is_none() {
            self.failed = print::line(text).err();
        }
    }

    /// Removes the progress bar. The next progress event shows a new bar.
    fn pause(&mut self) {
        if let Some(meter) = self.meter.take() {
            meter.finish();
        }
    }

    /// Ends the output, and fails if some of it could not be printed.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.show_met();
        self.pause();
        self.failed.take().map_or(Ok(()), Err)
    }
}

fn tables(one: &MoveProgress) -> String {
    match one.tables.as_slice() {
        [] => String::new(),
        [table] => table.clone(),
        [table, others @ ..] => format!("{table} and {} more", others.len()),
    }
}

/// Returns the subject of a requirement: its node, or the cluster.
fn subject(check: &ClusterCheck) -> String {
    check.node.as_ref().map_or("cluster".into(), ToString::to_string)
}

fn check_line(check: &ClusterCheck) -> String {
    let verdict = match check.verdict {
        CheckVerdict::Passed => "ok",
        CheckVerdict::Warning => "note",
        CheckVerdict::Failed => "not met",
    };
    format!("{verdict:<10}  {}  {}: {}", subject(check), check.subject, check.found)
}

fn step_line(step: &ClusterStep) -> String {
    if step.taken {
        format!("{:<10}  {} ({:.2} s)", "done", step.words, step.seconds)
    } else {
        format!("{:<10}  {}", "would do", step.words)
    }
}

fn to_json(event: &ClusterEvent) -> Value {
    match event {
        ClusterEvent::Check(check) => json!({
            "event": "check",
            "node": check.node.as_ref().map(ToString::to_string),
            "subject": check.subject,
            "verdict": match check.verdict {
                CheckVerdict::Passed => "passed",
                CheckVerdict::Warning => "warning",
                CheckVerdict::Failed => "failed",
            },
            "found": check.found,
        }),
        ClusterEvent::Step(step) => json!({
            "event": "step",
            "name": step.name,
            "words": step.words,
            "taken": step.taken,
            "seconds": step.seconds,
        }),
        ClusterEvent::Note(words) => json!({ "event": "note", "words": words }),
        ClusterEvent::Move(one) => json!({
            "event": "move",
            "state": match one.state {
                MoveState::Planned => "planned",
                MoveState::Started => "started",
                MoveState::Running => "running",
                MoveState::Done => "done",
            },
            "number": one.number,
            "of": one.of,
            "shard": one.shard,
            "tables": one.tables,
            "from": one.from.to_string(),
            "to": one.to.to_string(),
            "bytes": one.bytes,
            "bytes_arrived": one.bytes_arrived,
            "total_bytes": one.total_bytes,
            "total_bytes_arrived": one.total_arrived,
            "phase": one.phase,
            "seconds": one.seconds,
            "seconds_left": one.left_s,
        }),
    }
}
