//! The setups that a run starts, one after the other: one pair of Hark and PostgreSQL, several pairs,
//! and a Citus cluster that grows.

use std::path::Path;

use anyhow::Context as _;

use super::CasesBench;
use super::args::CasesArgs;
use super::case::Case;
use super::cluster::{DATABASE, GrowingCluster, PostgresStarter};
use super::costs::{FormCosts, count_traffic};
use super::machine::{CpuQuota, HarkProcess, InstalledPostgres, RunDirectory};
use super::model::{ClusterSize, ServerCores};
use super::setup::{BoundedPostgres, CaseSetup};
use crate::generate;
use crate::lines;
use crate::report::BenchReport;
use crate::sample::EventSample;
use crate::store::BenchStoreOpener;
use crate::words::number;

/// The cores of Hark in the model.
const HARK_CORES: f64 = 1.0;
/// Workers of the clusters that are predicted, besides those that are measured.
const PREDICTED: [usize; 5] = [1, 3, 4, 16, 64];

/// The CPU that servers have in the model.
pub(super) fn cores(args: &CasesArgs) -> ServerCores {
    ServerCores { hark: HARK_CORES, postgres: args.share }
}

/// Starts, loads and measures all setups, and adds them to the report.
pub(super) fn run(
    args: &CasesArgs,
    cases: Vec<Case>,
    open: BenchStoreOpener<'_>,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let installed = InstalledPostgres::find(&args.settings)?;
    let run = RunDirectory::new()?;
    let with_quotas = !args.unchecked && can_bound(&run, report);
    let starter = PostgresStarter { run: &run, installed: &installed, with_quotas };
    let made = run.path().join("events.jsonl");
    let file = args.file.as_deref().unwrap_or(&made);
    if args.file.is_none() {
        generate::write_file(file, args.events, args.seed, false)?;
    }
    let sample = EventSample::read(file)?;
    report.setting("events", sample.events);
    report.setting("cores_per_postgresql", args.share);
    report.setting("postgresql_settings", args.settings.join(" "));
    let mut bench = CasesBench::new(args, cases, &sample)?;
    let loader = EventLoader { open, file, events: sample.events };
    pairs(&mut bench, &starter, &loader, report)?;
    if installed.has_citus() {
        cluster(&mut bench, &starter, &loader, report)?;
    } else {
        report.note("Citus is left out, as PostgreSQL has no extension `citus` here.");
    }
    bench.finish(report);
    Ok(())
}

/// Whether the CPU of a process can be bounded. If not, says so in the report.
fn can_bound(run: &RunDirectory, report: &mut BenchReport) -> bool {
    let tried = CpuQuota::possible(run);
    if let Err(error) = &tried {
        report.note(format!("The model is not checked, as CPU cannot be bounded here: {error:#}"));
    }
    tried.is_ok()
}

/// Loads the events into the database of a server.
struct EventLoader<'a> {
    open: BenchStoreOpener<'a>,
    file: &'a Path,
    events: u64,
}

impl EventLoader<'_> {
    fn load(&self, server: &BoundedPostgres) -> anyhow::Result<()> {
        let store = (self.open)(&server.process.url(DATABASE))?;
        lines::put(&*store, self.file, 0..self.events)
    }
}

/// Measures one pair of Hark and PostgreSQL, then all pairs in turn.
fn pairs(
    bench: &mut CasesBench<'_>,
    starter: &PostgresStarter<'_>,
    loader: &EventLoader<'_>,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let first = starter.start("database-1", false)?;
    loader.load(&first)?;
    first.process.server()?.settle(DATABASE)?;
    let hark = |number: usize, database: &BoundedPostgres| {
        HarkProcess::start(starter.run, &format!("hark-{number}"), &database.process.url(DATABASE))
    };
    let one = CaseSetup::new("1 pair".into(), vec![hark(1, &first)?], vec![&first], Vec::new());
    bench.measure(&one, report)?;
    let costs = costs_with_traffic(bench, starter, &first, None)?;
    bench.check(&one, None, &costs)?;
    if bench.args.pairs < 2 {
        return Ok(());
    }
    let mut others = Vec::new();
    for number in 2..=bench.args.pairs {
        others.push(starter.copy(&format!("database-{number}"), &first)?);
    }
    let databases: Vec<_> = std::iter::once(&first).chain(&others).collect();
    let mut harks = one.harks;
    for (number, database) in (2..).zip(&others) {
        harks.push(hark(number, database)?);
    }
    let name = format!("{} pairs", databases.len());
    bench.measure(&CaseSetup::new(name, harks, databases, Vec::new()), report)
}

/// Measures one Hark on a cluster, and again after each further worker.
fn cluster(
    bench: &mut CasesBench<'_>,
    starter: &PostgresStarter<'_>,
    loader: &EventLoader<'_>,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let first = bench.args.workers;
    let mut cluster = GrowingCluster::start(starter, first)?;
    loader.load(&cluster.coordinator)?;
    cluster.settle()?;
    let shards = cluster.shards()?;
    report.setting("shards", shards);
    let mut costs = Vec::new();
    for workers in first..=first + bench.args.grow {
        if workers > first {
            cluster.grow(starter)?;
        }
        let hark = HarkProcess::start(
            starter.run,
            &format!("hark-on-{workers}"),
            &cluster.coordinator.process.url(DATABASE),
        )?;
        let setup = CaseSetup::new(
            cluster_name(workers),
            vec![hark],
            vec![&cluster.coordinator],
            cluster.workers.iter().collect(),
        );
        bench.measure(&setup, report)?;
        if workers == first {
            costs = costs_with_traffic(bench, starter, &cluster.coordinator, Some(&cluster))?;
        }
        bench.check(&setup, Some(ClusterSize { workers, shards }), &costs)?;
    }
    let measured = first..=first + bench.args.grow;
    for workers in PREDICTED.into_iter().filter(|workers| !measured.contains(workers)) {
        let size = ClusterSize { workers, shards };
        bench.predict(cluster_name(workers), Some(size), &costs, Vec::new());
    }
    bench.checked.sort_by_key(|setup| setup.cluster.map_or(0, |size| size.workers));
    Ok(())
}

fn cluster_name(workers: usize) -> String {
    let plural = if workers == 1 { "" } else { "s" };
    format!("Citus, {} worker{plural}", number(workers as u64))
}

/// Counts the traffic of the setup that was measured last, and returns its costs.
fn costs_with_traffic(
    bench: &mut CasesBench<'_>,
    starter: &PostgresStarter<'_>,
    database: &BoundedPostgres,
    cluster: Option<&GrowingCluster>,
) -> anyhow::Result<Vec<FormCosts>> {
    let setup = bench.setups.last_mut().context("no setup was measured")?;
    let name = format!("hark-counted-{}", if cluster.is_some() { "citus" } else { "pair" });
    count_traffic(
        &bench.runtime,
        starter.run,
        &name,
        database,
        cluster,
        &bench.questions,
        &mut setup.costs,
    )?;
    Ok(setup.costs.clone())
}
