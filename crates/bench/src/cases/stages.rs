//! The setups that a run starts, one after the other: one pair of Hark and PostgreSQL, several
//! pairs, and a Citus cluster that grows.

use std::path::Path;

use anyhow::Context as _;

use super::args::CasesArgs;
use super::bench::CasesBench;
use super::bounded::BoundedPostgres;
use super::case::Case;
use super::checked::CheckedSetup;
use super::cluster::{DATABASE, GrowingCluster, PostgresStarter};
use super::costs::count_traffic;
use super::machine::{CpuQuota, HarkProcess, InstalledPostgres, RunDirectory};
use super::model::{ClusterSize, ServerCount};
use super::setup::{CaseSetup, cluster_name};
use crate::generate;
use crate::lines;
use crate::report::BenchReport;
use crate::sample::EventSample;
use crate::store::BenchStoreOpener;
use crate::text::Vocabulary;

/// Numbers of workers for which throughput is predicted, in addition to the measured clusters.
const PREDICTED: [usize; 3] = [4, 16, 64];

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
        generate::write_file(file, args.events, args.seed, (Vocabulary::Few, false))?;
    }
    let sample = EventSample::read(file)?;
    report.setting("events", sample.events);
    report.setting("cores_per_postgresql", args.share);
    report.setting("cores_of_coordinator", args.coordinator_share);
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

/// Returns whether the CPU of a process can be bounded. If not, adds a note to the report.
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
    first.process.server()?.run_maintenance(DATABASE)?;
    let hark = |number: usize, database: &BoundedPostgres| {
        HarkProcess::start(starter.run, &format!("hark-{number}"), &database.process.url(DATABASE))
    };
    let one = CaseSetup::pairs(vec![hark(1, &first)?], vec![&first]);
    bench.measure(&one, report)?;
    add_traffic(bench, starter, &first, None)?;
    bench.check(&one)?;
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
    let all = CaseSetup::pairs(harks, databases);
    bench.measure(&all, report)?;
    bench.check(&all)
}

/// Measures one Hark on a cluster of each size.
fn cluster(
    bench: &mut CasesBench<'_>,
    starter: &PostgresStarter<'_>,
    loader: &EventLoader<'_>,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let mut sizes = bench.args.workers.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let mut cluster = GrowingCluster::start(starter, sizes.first().copied().unwrap_or(1))?;
    loader.load(&cluster.coordinator)?;
    cluster.run_maintenance()?;
    let shards = cluster.shards()?;
    report.setting("shards", shards);
    for (at, &workers) in sizes.iter().enumerate() {
        if at > 0 {
            cluster.grow(starter, workers)?;
        }
        let hark = HarkProcess::start(
            starter.run,
            &format!("hark-on-{workers}"),
            &cluster.coordinator.process.url(DATABASE),
        )?;
        let setup = CaseSetup::cluster(hark, &cluster, ClusterSize { workers, shards });
        bench.measure(&setup, report)?;
        if at == 0 {
            add_traffic(bench, starter, &cluster.coordinator, Some(&cluster))?;
        }
        bench.check(&setup)?;
    }
    for workers in PREDICTED.into_iter().filter(|workers| !sizes.contains(workers)) {
        let size = ServerCount::Cluster(ClusterSize { workers, shards });
        bench.checked.push(CheckedSetup::unmeasured(cluster_name(workers), size));
    }
    bench.checked.sort_by_key(|setup| setup.count.workers());
    Ok(())
}

/// Counts the traffic of the last measured setup and adds the traffic to its costs.
fn add_traffic(
    bench: &mut CasesBench<'_>,
    starter: &PostgresStarter<'_>,
    database: &BoundedPostgres,
    cluster: Option<&GrowingCluster>,
) -> anyhow::Result<()> {
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
    )
}
