//! `hark bench cases`: eight cases of a search service, on one server, on several pairs of Hark and
//! PostgreSQL, and on a Citus cluster that grows. The command starts all servers itself, unless
//! `--servers` names running servers. `setup` describes the servers, and `model` predicts
//! throughput from the costs.

mod args;
mod bench;
mod bounded;
mod case;
mod checked;
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

use crate::report::BenchReport;
use crate::sample::EventSample;
use crate::shapes::choose;
use crate::store::BenchStoreOpener;
use crate::target::describe_machine;
pub(crate) use args::CasesArgs;
use bench::CasesBench;
use case::Case;
use setup::CaseSetup;

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
