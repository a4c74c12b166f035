//! Rounds of a load: each connection sends its next question after the EOSE of the previous question.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::loads::ShapeRequests;
use crate::latency::Latencies;
use crate::requests::RequestFrames;
use crate::target::{BenchTarget, Refusals, TimeSpent};
use crate::websocket::{RelayConnection, RelayMessage, fields};

/// The length of the warm-up, which is not counted, as a share of the measured time.
pub(super) const WARM_UP: f64 = 0.15;
/// How much longer than planned a shape may take before the run fails.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// Totals that one connection, or all connections together, received.
#[derive(Clone, Default)]
pub(super) struct QueryTotals {
    pub(super) requests: u64,
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) times: Latencies,
    pub(super) refusals: Refusals,
}

/// Runs a load on all connections for `length`.
pub(super) async fn round(
    target: &BenchTarget,
    connections: &mut Vec<RelayConnection>,
    load: &ShapeRequests,
    length: Duration,
) -> anyhow::Result<(QueryTotals, TimeSpent)> {
    let count = connections.len();
    let start = target.start()?;
    let until = Instant::now() + length;
    let mut tasks = Vec::new();
    for (at, connection) in std::mem::take(connections).into_iter().enumerate() {
        let requests = Arc::clone(&load.requests[at % load.requests.len()]);
        let order = if load.is_once {
            RequestOrder {
                from: at,
                step: count,
                most: requests.len().saturating_sub(at).div_ceil(count),
            }
        } else {
            // Each connection begins at a different request, so that no two connections send the
            // same request at once.
            RequestOrder { from: at * requests.len() / count, step: 1, most: usize::MAX }
        };
        tasks.push(tokio::spawn(ask_until(connection, requests, order, until)));
    }
    let mut sum = QueryTotals::default();
    for task in tasks {
        let answered = tokio::time::timeout(length + PATIENCE, task).await;
        let answered = answered.ok().context("an answer did not end within a minute");
        let (connection, answers) = answered
            .and_then(|joined| joined?)
            .with_context(|| format!("{}, {}", target.url.text, load.name))?;
        connections.push(connection);
        sum.add(answers);
    }
    Ok((sum, target.stop(&start)?))
}

impl QueryTotals {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.events += other.events;
        self.bytes += other.bytes;
        self.times.merge(&other.times);
        self.refusals.merge(other.refusals);
    }
}

/// The order in which a connection sends its requests.
#[derive(Clone, Copy)]
struct RequestOrder {
    from: usize,
    step: usize,
    /// Maximum number of requests.
    most: usize,
}

async fn ask_until(
    mut connection: RelayConnection,
    requests: Arc<Vec<RequestFrames>>,
    order: RequestOrder,
    until: Instant,
) -> anyhow::Result<(RelayConnection, QueryTotals)> {
    let mut answers = QueryTotals::default();
    let mut frames = Vec::new();
    for turn in 0..order.most {
        if Instant::now() >= until {
            break;
        }
        let request = &requests[(order.from + turn * order.step) % requests.len()];
        frames.extend_from_slice(&request.req);
        let bytes = connection.bytes;
        let sent = Instant::now();
        connection.send(&frames).await?;
        frames.clear();
        let mut events = 0;
        let is_complete = loop {
            match connection.next().await? {
                RelayMessage::Event(_) => events += 1,
                RelayMessage::Eose(text) if request.is_ended_by(text) => break true,
                RelayMessage::Closed(text) if fields(text).get(1) == Some(&request.sub) => {
                    answers.refusals.add_message(RelayMessage::Closed(text));
                    break false;
                }
                notice @ RelayMessage::Notice(_) => {
                    answers.refusals.add_message(notice);
                    break false;
                }
                _ => {}
            }
        };
        if is_complete {
            answers.times.add(sent.elapsed());
            answers.requests += 1;
            answers.events += events;
            answers.bytes += connection.bytes - bytes;
        } else {
            // After a refusal for too many requests, the pause avoids further refusals.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Clients that want only stored events send a CLOSE. This CLOSE is sent with the next
        // request.
        frames.extend_from_slice(&request.close);
    }
    connection.send(&frames).await?;
    Ok((connection, answers))
}
