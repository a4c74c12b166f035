//! The costs of a question by form: CPU of each server, bytes, round trips and shards.

use std::sync::Arc;

use tokio::runtime::Runtime;

use super::bounded::BoundedPostgres;
use super::case::{Case, CaseForm, CaseQuestions, FORMS};
use super::cluster::{DATABASE, GrowingCluster};
use super::machine::{HarkProcess, RunDirectory, TrafficCounter, TrafficCounts, url};
use super::model::QuestionCpu;
use super::round::{CaseRound, RoundTotals};
use super::setup::SpentCpu;

/// Number of questions of each form whose traffic is counted.
const COUNTED: usize = 64;

/// The costs of a question of one form on one setup. Each cost is the sum over all servers of the
/// same kind.
#[derive(Clone, Debug)]
pub(super) struct FormCosts {
    pub(super) form: CaseForm,
    pub(super) cpu: QuestionCpu,
    /// The share of the busiest worker in the CPU of all workers. `None` without workers.
    pub(super) busiest_share: Option<f64>,
    pub(super) events: f64,
    pub(super) pages: f64,
    /// The traffic between Hark and its database, and between the coordinator and its workers.
    /// `None` if the traffic was not counted.
    pub(super) hark_traffic: Option<QuestionTraffic>,
    pub(super) worker_traffic: Option<QuestionTraffic>,
}

/// The traffic of a question between two kinds of servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuestionTraffic {
    pub(super) received_bytes: f64,
    pub(super) statements: f64,
    pub(super) round_trips: f64,
}

impl FormCosts {
    /// Divides the costs of a round by its answers. `None` if there were no answers.
    pub(super) fn new(form: CaseForm, totals: &RoundTotals, spent: &SpentCpu) -> Option<Self> {
        let ms = |time: std::time::Duration| totals.each(time.as_secs_f64() * 1e3);
        let workers_s = spent.workers.as_secs_f64();
        Some(Self {
            form,
            cpu: QuestionCpu {
                hark_ms: ms(spent.hark)?,
                database_ms: ms(spent.database)?,
                workers_ms: ms(spent.workers)?,
            },
            busiest_share: (workers_s > 0.0).then(|| spent.busiest.as_secs_f64() / workers_s),
            events: totals.each(totals.events as f64)?,
            pages: totals.each(totals.pages as f64)?,
            hark_traffic: None,
            worker_traffic: None,
        })
    }
}

impl QuestionTraffic {
    fn new(counts: TrafficCounts, totals: &RoundTotals) -> Option<Self> {
        Some(Self {
            received_bytes: totals.each(counts.received_bytes as f64)?,
            statements: totals.each(counts.statements as f64)?,
            round_trips: totals.each(counts.round_trips as f64)?,
        })
    }
}

/// Counts the traffic between the servers and adds the counts to the costs. For this purpose,
/// another Hark runs and connects to its database through a counting port.
pub(super) fn count_traffic(
    runtime: &Runtime,
    run: &RunDirectory,
    name: &str,
    database: &BoundedPostgres,
    cluster: Option<&GrowingCluster>,
    questions: &Arc<CaseQuestions>,
    costs: &mut [FormCosts],
) -> anyhow::Result<()> {
    let workers = cluster.map(GrowingCluster::count_traffic).transpose()?.unwrap_or_default();
    let counted = runtime.block_on(count(run, name, database, &workers, questions, costs));
    if let Some(cluster) = cluster {
        cluster.count_no_traffic(&workers)?;
    }
    counted
}

async fn count(
    run: &RunDirectory,
    name: &str,
    database: &BoundedPostgres,
    workers: &[TrafficCounter],
    questions: &Arc<CaseQuestions>,
    costs: &mut [FormCosts],
) -> anyhow::Result<()> {
    let counter = TrafficCounter::new(database.process.port())?;
    let hark = HarkProcess::start(run, name, &url(counter.port(), DATABASE))?;
    let of_workers =
        || workers.iter().map(TrafficCounter::counts).fold(<_>::default(), |a, b| a + b);
    for form in FORMS {
        let Some(costs) = costs.iter_mut().find(|costs| costs.form == form) else { continue };
        let urls = std::slice::from_ref(hark.url());
        let mut round = CaseRound::connect(urls, Case { form, at_once: 1 }, questions).await?;
        // A first run, which is not counted, opens the connections between the servers.
        round.ask_first(COUNTED).await?;
        let before: (TrafficCounts, TrafficCounts) = (counter.counts(), of_workers());
        let totals = round.ask_first(COUNTED).await?;
        costs.hark_traffic = QuestionTraffic::new(counter.counts() - before.0, &totals);
        if !workers.is_empty() {
            costs.worker_traffic = QuestionTraffic::new(of_workers() - before.1, &totals);
        }
    }
    Ok(())
}
