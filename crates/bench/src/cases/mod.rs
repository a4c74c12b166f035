//! `hark bench cases`: eight cases of a search service, on one server, on several pairs of Hark and
//! PostgreSQL, and on a Citus cluster that grows. The command starts all servers itself, unless
//! `--servers` names running servers. `setup` describes the servers, and `model` predicts
//! throughput from the costs.

mod args;
mod case;
mod cluster;
mod costs;
mod machine;
mod model;
mod round;
mod setup;
mod stages;
mod tables;
mod walk;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::report::BenchReport;
use crate::sample::EventSample;
use crate::shapes::choose;
use crate::store::BenchStoreOpener;
use crate::target::describe_machine;
pub(crate) use args::CasesArgs;
use case::{Case, CaseForm, CaseQuestions};
use costs::FormCosts;
use model::{QuestionCpu, ServerCount};
use round::{CaseRound, FoundEvents, RoundTotals};
use setup::{CaseSetup, SpentCpu};

pub(crate) fn run(args: &CasesArgs, open: BenchStoreOpener<'_>) -> anyhow::Result<ExitCode> {
    let named = Case::all().into_iter().map(|case| (case.name(), case));
    let cases = choose(named, |(name, _)| name, &args.cases)?;
    let cases = cases.into_iter().map(|(_, case)| case).collect();
    let mut report = BenchReport::new("cases", &tables::TIMES);
    describe_machine(&mut report);
    report.setting("seed", args.seed);
    report.setting("days", args.days);
    report.setting("page", args.page);
    report.setting("seconds_per_case", args.seconds);
    report.setting("runs", args.output.runs);
    if args.servers.is_empty() {
        stages::run(args, cases, open, &mut report)?;
    } else if let Some(file) = &args.file {
        let sample = EventSample::read(file)?;
        report.setting("file", file.display().to_string());
        let mut bench = CasesBench::new(args, cases, &sample)?;
        bench.measure(&CaseSetup::elsewhere(&args.servers), &mut report)?;
        bench.finish(&mut report);
    }
    args.output.publish(report)
}

/// A measured setup, with the costs of its questions.
struct MeasuredSetup {
    name: String,
    costs: Vec<FormCosts>,
}

/// A setup whose throughput is predicted.
struct CheckedSetup {
    name: String,
    count: ServerCount,
    /// Empty if nothing was measured with bounds.
    measured: Vec<CheckedForm>,
    /// CPU of a question without bounds, by form.
    unbounded: Vec<(CaseForm, QuestionCpu)>,
    /// The share of the busiest worker in the CPU of all workers, by form.
    busiest: Vec<(CaseForm, f64)>,
}

/// The measurements of a form while the CPU of the servers of PostgreSQL is bounded.
#[derive(Clone, Copy)]
struct CheckedForm {
    form: CaseForm,
    /// Questions a second.
    per_s: f64,
    /// CPU of a question.
    cpu: QuestionCpu,
    /// The used share of the CPU bound, for the database or coordinator, and for the busiest
    /// worker.
    database_used: f64,
    busiest_used: f64,
}

impl CheckedSetup {
    /// Creates a setup without measurements.
    fn unmeasured(name: String, count: ServerCount) -> Self {
        let (measured, unbounded, busiest) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, count, measured, unbounded, busiest }
    }

    /// Returns the CPU of a question, preferably as measured with bounds: a question takes more CPU
    /// on a server that often has to pause.
    fn cpu_of(&self, form: CaseForm) -> Option<QuestionCpu> {
        let unbounded = self.unbounded.iter().find(|(of, _)| *of == form);
        self.measured_of(form).map(|of| of.cpu).or_else(|| Some(unbounded?.1))
    }

    /// Returns the measured share of the busiest worker. Questions do not use all shards equally.
    fn busiest_of(&self, form: CaseForm) -> Option<f64> {
        self.busiest.iter().find(|(of, _)| *of == form).map(|(_, share)| *share)
    }

    fn measured_of(&self, form: CaseForm) -> Option<CheckedForm> {
        self.measured.iter().find(|of| of.form == form).copied()
    }
}

/// Measures the cases on one setup after the other.
struct CasesBench<'a> {
    args: &'a CasesArgs,
    runtime: Runtime,
    cases: Vec<Case>,
    questions: Arc<CaseQuestions>,
    found: FoundEvents,
    setups: Vec<MeasuredSetup>,
    checked: Vec<CheckedSetup>,
}

impl<'a> CasesBench<'a> {
    fn new(args: &'a CasesArgs, cases: Vec<Case>, sample: &EventSample) -> anyhow::Result<Self> {
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
    fn measure(&mut self, setup: &CaseSetup<'_>, report: &mut BenchReport) -> anyhow::Result<()> {
        let mut costs: Vec<FormCosts> = Vec::new();
        for &case in &self.cases {
            let (totals, spent, seconds) = self.runtime.block_on(self.ask(setup, case))?;
            let name = format!("{}: {}", setup.name, case.name());
            totals.refusals.add_to(report, &name);
            let different = self.found.compare(case.form, &totals);
            if different > 0 {
                report.fault(format!(
                    "{name}: {different} answers have not as many events as elsewhere"
                ));
            }
            if totals.asked > 0 && totals.events == 0 {
                report.fault(format!("{name}: no answer held an event"));
            }
            tables::add_case(report, &setup.name, case, &totals, seconds);
            // The costs come from the case with the most questions at once.
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

    /// Measures the throughput of the last measured setup with bounds on the CPU of its servers of
    /// PostgreSQL, if this machine can set bounds.
    fn check(&mut self, setup: &CaseSetup<'_>) -> anyhow::Result<()> {
        let unbounded = self.setups.last().map_or(Vec::new(), |setup| setup.costs.clone());
        let mut measured = Vec::new();
        if setup.bound(Some(stages::cores(self.args)))? {
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

    /// Measures the questions a second of each form that has costs.
    async fn throughput(
        &self,
        setup: &CaseSetup<'_>,
        costs: &[FormCosts],
    ) -> anyhow::Result<Vec<CheckedForm>> {
        let length = Duration::from_secs_f64(self.args.seconds);
        let cores = stages::cores(self.args);
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
    fn finish(self, report: &mut BenchReport) {
        tables::add_charts(report, &self.cases, &self.setups);
        if self.args.servers.is_empty() {
            tables::add_costs(report, &self.setups);
            tables::add_model(report, stages::cores(self.args), &self.checked);
        }
    }
}
