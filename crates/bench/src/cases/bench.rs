//! The measurement of the cases, on one setup after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::args::CasesArgs;
use super::case::{Case, CaseQuestions};
use super::checked::{CheckedForm, CheckedSetup, MeasuredSetup};
use super::costs::FormCosts;
use super::model::QuestionCpu;
use super::round::{CaseRound, FoundEvents, RoundTotals};
use super::setup::{CaseSetup, SpentCpu};
use super::tables;
use crate::report::BenchReport;
use crate::sample::EventSample;

/// Measures the cases on one setup after the other.
pub(super) struct CasesBench<'a> {
    pub(super) args: &'a CasesArgs,
    pub(super) runtime: Runtime,
    pub(super) cases: Vec<Case>,
    pub(super) questions: Arc<CaseQuestions>,
    pub(super) found: FoundEvents,
    pub(super) setups: Vec<MeasuredSetup>,
    pub(super) checked: Vec<CheckedSetup>,
}

impl<'a> CasesBench<'a> {
    pub(super) fn new(
        args: &'a CasesArgs,
        cases: Vec<Case>,
        sample: &EventSample,
    ) -> anyhow::Result<Self> {
        let questions = CaseQuestions::draw(sample, args.seed, args.days, args.page)?;
        Ok(Self {
            args,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            cases,
            questions: Arc::new(questions),
            found: FoundEvents::default(),
            setups: Vec::new(),
            checked: Vec::new(),
        })
    }

    /// Measures all cases on a setup and adds their rows.
    pub(super) fn measure(
        &mut self,
        setup: &CaseSetup<'_>,
        report: &mut BenchReport,
    ) -> anyhow::Result<()> {
        let mut costs: Vec<FormCosts> = Vec::new();
        for &case in &self.cases {
            let (totals, spent, seconds) = self.runtime.block_on(self.ask(setup, case))?;
            let name = format!("{}: {}", setup.name, case.name());
            totals.refusals.add_to(report, &name);
            let different = self.found.compare(case.form, &totals);
            if different > 0 {
                report.fault(format!(
                    "{name}: {different} answers have another number of events than on other \
                     servers"
                ));
            }
            if totals.asked > 0 && totals.events == 0 {
                report.fault(format!("{name}: no answer held an event"));
            }
            tables::add_case(report, &setup.name, case, &totals, seconds);
            // Later cases of the same form have more concurrent questions, so their costs replace
            // the earlier costs.
            costs.retain(|of| of.form != case.form);
            if !setup.harks.is_empty() {
                costs.extend(FormCosts::new(case.form, &totals, &spent));
            }
        }
        self.setups.push(MeasuredSetup { name: setup.name.clone(), costs });
        Ok(())
    }

    /// Sends the questions of a case. Returns the totals received, the CPU spent and the seconds
    /// taken.
    async fn ask(
        &self,
        setup: &CaseSetup<'_>,
        case: Case,
    ) -> anyhow::Result<(RoundTotals, SpentCpu, f64)> {
        let length = Duration::from_secs_f64(self.args.seconds);
        let mut round = CaseRound::connect(&setup.urls, case, &self.questions).await?;
        let (mut sum, mut spent, mut seconds) = (RoundTotals::default(), SpentCpu::default(), 0.0);
        for _ in 0..self.args.output.runs.max(1) {
            round.warm_up(length).await?;
            let (before, start) = (setup.used()?, Instant::now());
            sum.merge(round.ask(length).await?);
            seconds += start.elapsed().as_secs_f64();
            spent.add(&setup.used()?.minus(&before));
        }
        Ok((sum, spent, seconds))
    }

    /// Measures the throughput of the last setup again, now with bounds on the CPU of its
    /// PostgreSQL servers. Does nothing if this machine cannot set bounds.
    pub(super) fn check(&mut self, setup: &CaseSetup<'_>) -> anyhow::Result<()> {
        let unbounded = self.setups.last().map_or(Vec::new(), |setup| setup.costs.clone());
        let mut measured = Vec::new();
        if setup.bound(Some(self.args.cores()))? {
            let throughput = self.runtime.block_on(self.throughput(setup, &unbounded));
            setup.bound(None)?;
            measured = throughput?;
        }
        let busiest = unbounded.iter().filter_map(|of| Some((of.form, of.busiest_share?)));
        self.checked.push(CheckedSetup {
            name: setup.name.clone(),
            count: setup.count,
            measured,
            unbounded: unbounded.iter().map(|of| (of.form, of.cpu)).collect(),
            busiest: busiest.collect(),
        });
        Ok(())
    }

    /// Measures the number of questions answered per second, for each form in `costs`.
    async fn throughput(
        &self,
        setup: &CaseSetup<'_>,
        costs: &[FormCosts],
    ) -> anyhow::Result<Vec<CheckedForm>> {
        let length = Duration::from_secs_f64(self.args.seconds);
        let cores = self.args.cores();
        let mut measured = Vec::new();
        for costs in costs {
            let case = Case { form: costs.form, at_once: self.args.at_once };
            let mut round = CaseRound::connect(&setup.urls, case, &self.questions).await?;
            setup.bound(None)?;
            round.warm_up(length).await?;
            setup.bound(Some(cores))?;
            let load = round.full_load(setup, length).await?;
            let per_s = load.pages_per_s / costs.pages.max(1.0);
            let questions = per_s * load.seconds;
            let each = |time: Duration| time.as_secs_f64() * 1e3 / questions.max(1e-9);
            let used = |time: Duration, cores: f64| time.as_secs_f64() / (load.seconds * cores);
            let all_databases = cores.database(setup.count) * setup.count.databases() as f64;
            measured.push(CheckedForm {
                form: costs.form,
                per_s,
                cpu: QuestionCpu {
                    hark_ms: each(load.spent.hark),
                    database_ms: each(load.spent.database),
                    workers_ms: each(load.spent.workers),
                },
                database_used: used(load.spent.database, all_databases),
                busiest_used: used(load.spent.busiest, cores.postgres),
            });
        }
        Ok(measured)
    }

    /// Adds the tables and charts of all setups.
    pub(super) fn finish(self, report: &mut BenchReport) {
        tables::add_charts(report, &self.cases, &self.setups);
        if self.args.servers.is_empty() {
            tables::add_costs(report, &self.setups);
            tables::add_model(report, self.args.cores(), &self.checked);
        }
    }
}
