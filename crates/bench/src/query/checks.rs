//! Compares a relay's answers with the answers computed from the file of events. Nothing is timed
//! meanwhile.

use std::sync::Arc;

use anyhow::Context as _;
use hark_codec::hex;
use hark_codec::record::Id;
use serde_json::Value;

use super::loads::ShapeRequests;
use super::rounds::PATIENCE;
use crate::expected::{AnswerVerdict, AnsweredEvent, ExpectedAnswers};
use crate::report::{BenchReport, Column, ReportSection};
use crate::requests::{RequestFrames, created_at, event_id};
use crate::websocket::{RelayConnection, RelayMessage};

/// Maximum length of a filter in a fault, in bytes.
const EXAMPLE_BYTES: usize = 240;

const COLUMNS: [Column; 6] = [
    Column::plain("checked", "answers checked", ""),
    Column::plain("wrong", "wrong", ""),
    Column::plain("short", "short", ""),
    Column::plain("unordered", "unordered", ""),
    Column::plain("refused", "refused", ""),
    Column::plain("other_ties", "other order of ties", ""),
];

/// The number of answers of each verdict, and a question with a faulty answer.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckedCounts {
    checked: u64,
    wrong: u64,
    short: u64,
    unordered: u64,
    refused: u64,
    other_ties: u64,
    example: Option<Box<str>>,
}

/// The checked answers of all shapes.
pub(super) struct CheckedAnswers {
    expected: Arc<ExpectedAnswers>,
    report: BenchReport,
}

impl CheckedAnswers {
    pub(super) fn new(expected: &Arc<ExpectedAnswers>) -> Self {
        Self { expected: Arc::clone(expected), report: BenchReport::new("answers", &COLUMNS) }
    }

    /// Sends each request of a load once, and adds a row. Returns whether all answers were right.
    pub(super) async fn check(
        &mut self,
        load: &ShapeRequests,
        connections: &mut Vec<RelayConnection>,
        report: &mut BenchReport,
    ) -> anyhow::Result<bool> {
        let (count, lists) = (connections.len(), load.requests.len());
        let mut tasks = Vec::new();
        for (at, connection) in std::mem::take(connections).into_iter().enumerate() {
            let requests = Arc::clone(&load.requests[at % lists]);
            // Connections with the same list share its requests.
            let (from, step) = (at / lists, count.div_ceil(lists));
            let own = (from..requests.len()).step_by(step).collect();
            tasks.push(tokio::spawn(ask(connection, requests, own, Arc::clone(&self.expected))));
        }
        let mut counts = CheckedCounts::default();
        for task in tasks {
            let (connection, own) = task.await?.with_context(|| load.name.clone())?;
            connections.push(connection);
            counts.merge(own);
        }
        let of = &counts;
        let figures = [of.checked, of.wrong, of.short, of.unordered, of.refused, of.other_ties];
        self.report.row(&load.name, &figures.map(|count| Some(count as f64)));
        let Some(example) = &counts.example else { return Ok(true) };
        report.fault(format!(
            "{}: of {} answers, {} are wrong, {} short, {} unordered, {} refused, so its times do \
             not count. One of the questions: {example}",
            load.name, of.checked, of.wrong, of.short, of.unordered, of.refused
        ));
        Ok(false)
    }

    /// Adds the table of all shapes to the report.
    pub(super) fn finish(self, report: &mut BenchReport) {
        let title = "Answers compared with those computed from the file";
        report.section(ReportSection { key: "answers", title, report: self.report });
    }
}

impl CheckedCounts {
    fn merge(&mut self, other: Self) {
        self.checked += other.checked;
        self.wrong += other.wrong;
        self.short += other.short;
        self.unordered += other.unordered;
        self.refused += other.refused;
        self.other_ties += other.other_ties;
        self.example = self.example.take().or(other.example);
    }

    fn add(&mut self, filters: &str, verdict: Option<AnswerVerdict>) {
        self.checked += 1;
        let count = match verdict {
            Some(AnswerVerdict::Wrong) => &mut self.wrong,
            Some(AnswerVerdict::Short) => &mut self.short,
            Some(AnswerVerdict::Unordered) => &mut self.unordered,
            Some(AnswerVerdict::OtherTies) => {
                self.other_ties += 1;
                return;
            }
            Some(AnswerVerdict::Right) => return,
            None => &mut self.refused,
        };
        *count += 1;
        self.example.get_or_insert_with(|| {
            let shown: String = filters.chars().take(EXAMPLE_BYTES).collect();
            if shown.len() < filters.len() { format!("{shown}…").into() } else { shown.into() }
        });
    }
}

async fn ask(
    mut connection: RelayConnection,
    requests: Arc<Vec<RequestFrames>>,
    own: Vec<usize>,
    expected: Arc<ExpectedAnswers>,
) -> anyhow::Result<(RelayConnection, CheckedCounts)> {
    let mut counts = CheckedCounts::default();
    for request in own.into_iter().filter_map(|at| requests.get(at)) {
        let answer = tokio::time::timeout(PATIENCE, answer(&mut connection, request)).await;
        let answer = answer.context("an answer did not end within a minute")??;
        let verdict = match answer {
            Some(answer) => match expected.check(&request.filters, &answer) {
                Some(verdict) => Some(verdict),
                // The question has no expected answer.
                None => continue,
            },
            None => None,
        };
        counts.add(&request.filters, verdict);
    }
    Ok((connection, counts))
}

/// Sends a request and reads the whole answer. `None` if the relay refuses the request.
async fn answer(
    connection: &mut RelayConnection,
    request: &RequestFrames,
) -> anyhow::Result<Option<Vec<AnsweredEvent>>> {
    connection.send(&request.req).await?;
    let mut events = Vec::new();
    let is_complete = loop {
        match connection.next().await? {
            RelayMessage::Event(text) if request.is_event(text) => events.push(answered(text)),
            RelayMessage::Eose(text) if request.is_ended_by(text) => break true,
            RelayMessage::Closed(text) if request.is_named_by(text) => break false,
            // A NOTICE may be about anything, and ends no answer.
            _ => {}
        }
    };
    connection.send(&request.close).await?;
    Ok(is_complete.then_some(events))
}

/// Reads the time and the id of the event in a message. Zeros if the message is not readable, as no
/// expected answer has such an event.
fn answered(message: &[u8]) -> AnsweredEvent {
    let quick = || -> Option<(u64, Id)> {
        Some((created_at(message)?, hex::decode_32(&event_id(message)?)?))
    };
    let parsed = || {
        let message: Value = serde_json::from_slice(message).ok()?;
        let id = hex::decode_32(message[2]["id"].as_str()?.as_bytes())?;
        Some((message[2]["created_at"].as_u64()?, id))
    };
    quick().or_else(parsed).unwrap_or_default()
}
