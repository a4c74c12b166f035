//! A normal client: one subscription, and a question or an event from time to time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::material::{ClientGroup, CrowdMaterial, connect, is_accepted};
use crate::latency::Latencies;
use crate::requests::{RequestFrames, request, request_named};
use crate::target::{BenchTarget, Refusals};
use crate::websocket::{RelayConnection, RelayMessage};

/// One request of this number publishes an event. All others ask a question.
const PUBLISH_EVERY: u64 = 20;

/// The figures of a normal client in a round.
#[derive(Default)]
pub(super) struct ClientTotals {
    /// The times of questions until EOSE.
    pub(super) asked: Latencies,
    /// The times of events until OK.
    pub(super) published: Latencies,
    pub(super) refusals: Refusals,
}

impl ClientTotals {
    pub(super) fn add(&mut self, other: Self) {
        self.asked.merge(&other.asked);
        self.published.merge(&other.published);
        self.refusals.merge(other.refusals);
    }
}

/// A client with a live subscription.
pub(super) struct CrowdClient {
    number: usize,
    connection: RelayConnection,
    material: Arc<CrowdMaterial>,
    requests: u64,
}

impl CrowdClient {
    /// Connects, subscribes, and reads the first answer.
    pub(super) async fn open(
        target: &BenchTarget,
        number: usize,
        material: Arc<CrowdMaterial>,
    ) -> anyhow::Result<Self> {
        let mut connection = connect(target, ClientGroup::Normal, number).await?;
        let feed = request_named("feed".into(), &material.feeds[number % material.feeds.len()]);
        connection.send(&feed.req).await?;
        let mut refusals = Refusals::default();
        ask(&mut connection, &feed, &mut refusals).await?;
        if let Some(reason) = refusals.first() {
            anyhow::bail!("the subscription of client {} was refused: {reason}", number + 1);
        }
        Ok(Self { number, connection, material, requests: 0 })
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Sends a request at `first` and after each `pace`, and reads live events in between.
    pub(super) async fn send_requests(
        mut self,
        first: Instant,
        pace: Duration,
        until: Instant,
    ) -> anyhow::Result<(Self, ClientTotals)> {
        let mut totals = ClientTotals::default();
        let mut due = first;
        while due < until {
            self.read_until(due).await?;
            self.requests += 1;
            // Clients publish at different times.
            if (self.requests + self.number as u64).is_multiple_of(PUBLISH_EVERY) {
                self.publish(due, &mut totals).await?;
            } else {
                self.ask(due, &mut totals).await?;
            }
            due += pace;
        }
        self.read_until(until).await?;
        Ok((self, totals))
    }

    /// Reads live events until this time.
    async fn read_until(&mut self, time: Instant) -> anyhow::Result<()> {
        let time = tokio::time::Instant::from_std(time);
        while let Ok(message) = tokio::time::timeout_at(time, self.connection.next()).await {
            message?;
        }
        Ok(())
    }

    async fn ask(&mut self, due: Instant, totals: &mut ClientTotals) -> anyhow::Result<()> {
        let questions = &self.material.questions;
        let at = (self.number * 61 + self.requests as usize) % questions.len();
        let request = request(self.requests as usize, &questions[at]);
        self.connection.send(&request.req).await?;
        if ask(&mut self.connection, &request, &mut totals.refusals).await? {
            totals.asked.add(due.elapsed());
            self.connection.send(&request.close).await?;
        }
        Ok(())
    }

    async fn publish(&mut self, due: Instant, totals: &mut ClientTotals) -> anyhow::Result<()> {
        let mut frame = Vec::new();
        if self.material.put_fresh(&mut frame, 1)? == 0 {
            return Ok(());
        }
        self.connection.send(&frame).await?;
        loop {
            if let RelayMessage::Ok(text) = self.connection.next().await? {
                if is_accepted(text, &mut totals.refusals) {
                    totals.published.add(due.elapsed());
                }
                return Ok(());
            }
        }
    }
}

/// Reads the answer to a request that was sent. Returns false if the request was refused.
pub(super) async fn ask(
    connection: &mut RelayConnection,
    request: &RequestFrames,
    refusals: &mut Refusals,
) -> anyhow::Result<bool> {
    loop {
        match connection.next().await? {
            RelayMessage::Eose(text) if request.is_ended_by(text) => return Ok(true),
            message @ RelayMessage::Closed(text) if request.is_named_by(text) => {
                refusals.add_message(message);
                return Ok(false);
            }
            message @ RelayMessage::Notice(_) => {
                refusals.add_message(message);
                return Ok(false);
            }
            _ => {}
        }
    }
}
