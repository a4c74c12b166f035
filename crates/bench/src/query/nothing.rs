//! The relay that does nothing, which is measured beside the target.

use std::sync::Arc;
use std::time::Duration;

use super::loads::ShapeRequests;
use super::rounds::{QueryTotals, WARM_UP, round};
use crate::null::{NullRelay, question_like};
use crate::requests::RequestFrames;
use crate::target::BenchTarget;
use crate::websocket::RelayConnection;

/// The relay that does nothing, with its connections.
pub(super) struct MeasuredNull {
    target: BenchTarget,
    connections: Vec<RelayConnection>,
    _relay: NullRelay,
}

impl MeasuredNull {
    pub(super) async fn start(connections: usize) -> anyhow::Result<Self> {
        let relay = NullRelay::start()?;
        let target = BenchTarget::new(&relay.url, &[relay.id()])?;
        let connections = target.connect_all(connections).await?;
        Ok(Self { target, connections, _relay: relay })
    }

    /// Sends requests like those of the load to the relay that does nothing. Each answer has the
    /// mean size of `answers`. Returns the CPU time of a request, in ms.
    pub(super) async fn ask(
        &mut self,
        load: &ShapeRequests,
        answers: &QueryTotals,
        length: Duration,
    ) -> anyhow::Result<Option<f64>> {
        let (events, bytes) = (answers.events / answers.requests, answers.bytes / answers.requests);
        let like = |asked: &RequestFrames| question_like(asked, events, bytes);
        let alike = |all: &Arc<Vec<RequestFrames>>| Arc::new(all.iter().map(like).collect());
        let load = ShapeRequests {
            name: load.name.clone(),
            may_be_empty: true,
            requests: load.requests.iter().map(alike).collect(),
            as_reader: false,
            is_once: false,
        };
        round(&self.target, &mut self.connections, &load, length.mul_f64(WARM_UP)).await?;
        let (sum, spent) = round(&self.target, &mut self.connections, &load, length).await?;
        let ms = spent.server.map(|cpu| cpu.as_secs_f64() * 1e3 / sum.requests as f64);
        Ok(ms.filter(|_| sum.requests > 0))
    }
}
