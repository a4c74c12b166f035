//! `hark explain`: shows the plan for a filter and, with `--run`, compares the estimate with the
//! real figures.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use hark_archive::Store;
use hark_archive::query::explain::Explanation;
use serde_json::json;

use crate::location::ArchiveLocation;
use crate::question::{self, MergedAnswer};
use crate::{damage, print, when};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark explain '{\"kinds\":[1],\"#t\":[\"bread\"],\"limit\":100}'
  hark explain --run '{\"authors\":[\"<hex key>\"],\"kinds\":[0]}'")]
pub(crate) struct ExplainArgs {
    /// Filters of the network, as JSON; each is explained separately
    #[arg(value_name = "FILTER", required = true)]
    pub(crate) filters: Vec<String>,
    /// Run the filter too, and compare the rows visited with the estimate
    #[arg(long)]
    pub(crate) run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The figures of an executed query.
struct RunResult {
    events: u64,
    visited: u64,
    took_us: u64,
    /// Number of records that this query, or an earlier query of the same command, could not read.
    damaged: u64,
}

pub(crate) fn run(args: &ExplainArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let store = location.read()?;
    for text in &args.filters {
        let queries = question::read(location, std::slice::from_ref(text), when::now_s())?;
        let Some(query) = queries.first() else {
            let plan = "nothing can match: a list in the filter is empty, or since is after until";
            let said = json!({ "filter": text, "plan": plan, "estimate": 0, "steps": [] });
            print::line(&if args.json {
                said.to_string()
            } else {
                format!("{text}\nplan: {plan}")
            })?;
            continue;
        };
        let explanation = store.explain(query)?;
        let ran = args.run.then(|| ask(&*store, &queries)).transpose()?;
        if args.json {
            print::line(&to_json(text, &explanation, ran.as_ref()).to_string())?;
            continue;
        }
        print::line(&format!("{text}\n{}", explanation.to_string().trim_end()))?;
        if let Some(ran) = ran {
            print::line(&format!(
                "run: {}, {} visited ({:.2} times the estimate) in {:.3} ms",
                print::count(ran.events, location.network.record()),
                print::count(ran.visited, "row"),
                ran.visited as f64 / explanation.estimate.max(1) as f64,
                ran.took_us as f64 / 1000.0,
            ))?;
        }
    }
    if !args.run {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(damage::report(&*store, location, "The run's figures are without them"))
}

fn ask(store: &dyn Store, queries: &[hark_archive::Query]) -> anyhow::Result<RunResult> {
    let started = Instant::now();
    let mut answer = MergedAnswer::new(store, queries)?;
    let mut events = 0;
    while answer.next()?.is_some() {
        events += 1;
    }
    let took_us = started.elapsed().as_micros() as u64;
    let damaged = store.stats().damaged;
    Ok(RunResult { events, visited: answer.visited(), took_us, damaged })
}

fn to_json(filter: &str, explanation: &Explanation, ran: Option<&RunResult>) -> serde_json::Value {
    let steps: Vec<_> = explanation
        .steps
        .iter()
        .map(|step| {
            json!({
                "source": step.source,
                "rows": step.rows,
                "driver": step.driver,
                "intersect": step.intersect,
                "residual": step.residual,
                "estimate": step.estimate,
            })
        })
        .collect();
    let ran = ran.map(|ran| {
        json!({
            "events": ran.events,
            "visited": ran.visited,
            "took_us": ran.took_us,
            "damaged": ran.damaged,
        })
    });
    json!({
        "filter": filter,
        "plan": explanation.plan,
        "estimate": explanation.estimate,
        "steps": steps,
        "details": explanation.details,
        "run": ran,
    })
}
