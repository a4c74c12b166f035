//! `hark bench sql`: runs the same queries on the same events in nostream's tables and in a store
//! of Hark, over several connections at once. The bench repeats this for each number of events.

mod fill;
mod form;
mod schema;
pub(crate) mod server;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::args::{NostreamArgs, SqlArgs};
use crate::latency::Latencies;
use crate::lines;
use crate::report::{BenchReport, Column};
use crate::sample::EventSample;
use crate::shapes::{QueryShape, STORE_SHAPES, choose};
use crate::sql::form::TagLookup;
use crate::sql::server::SqlServer;
use crate::store::{BenchStore, BenchStoreOpener, StoreQuerier};
use crate::words::number;

/// The databases that this bench creates on the measured server.
const NOSTREAM: &str = "hark_bench_nostream";
const HARK: &str = "hark_bench_hark";
/// Number of queries whose answers are compared before any time is measured. The comparison also
/// warms up the server.
const COMPARED: usize = 8;

const COLUMNS: [Column; 10] = [
    Column::plain("events", "events", ""),
    Column::compared("p50_ms", "p50", "ms"),
    Column::compared("p99_ms", "p99", "ms"),
    Column::plain("growth", "growth", "x"),
    Column::plain("jsonb_p50_ms", "jsonb p50", "ms"),
    Column::plain("jsonb_p99_ms", "jsonb p99", "ms"),
    Column::plain("jsonb_ratio", "ratio", "x"),
    Column::plain("event_tags_p50_ms", "event_tags p50", "ms"),
    Column::plain("event_tags_p99_ms", "event_tags p99", "ms"),
    Column::plain("event_tags_ratio", "ratio", "x"),
];

/// A connection to nostream's tables.
struct SqlConnection {
    runtime: Runtime,
    client: Client,
    form: TagLookup,
}

impl StoreQuerier for SqlConnection {
    fn ask(&mut self, filter: &str) -> anyhow::Result<u64> {
        self.runtime.block_on(self.form.ask(&self.client, filter))
    }
}

/// `hark bench nostream`: fills a database with nostream's tables, for a trial of `hark adopt`.
pub(crate) fn nostream(args: &NostreamArgs) -> anyhow::Result<ExitCode> {
    let server = SqlServer::new(&args.database)?;
    let database = server.database_of_url();
    if database == "postgres" {
        bail!("name the database to create: postgres://user@127.0.0.1:5432/nostream");
    }
    server.create(database, args.replace)?;
    let (runtime, client) = server.connect(database)?;
    let events = args.events.unwrap_or(u64::MAX);
    let filled = runtime.block_on(async {
        schema::tables(&client, !args.without_event_tags).await?;
        let filled = fill::fill(&client, &args.file, 0..events).await?;
        if !args.without_event_tags {
            schema::event_tags(&client).await?;
        }
        schema::indices(&client, !args.without_event_tags).await?;
        anyhow::Ok(filled)
    })?;
    println!("{}: {} events in nostream's tables", args.database, number(filled));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: &SqlArgs, open: BenchStoreOpener<'_>) -> anyhow::Result<ExitCode> {
    let server = SqlServer::new(&args.server)?;
    if !args.again && !args.alone {
        server.create(NOSTREAM, args.replace)?;
    }
    let hark = if args.again {
        SqlServer::url_of(&args.server, HARK)
    } else if let Some(store) = &args.store {
        store.clone()
    } else {
        server.create(HARK, args.replace)?;
        SqlServer::url_of(&args.server, HARK)
    };
    let measured = measure(args, &server, &*open(&hark)?);
    if !args.keep && !args.again {
        if !args.alone {
            server.remove(NOSTREAM)?;
        }
        if args.store.is_none() {
            server.remove(HARK)?;
        }
    }
    args.output.publish(measured?)
}

fn measure(
    args: &SqlArgs,
    server: &SqlServer,
    hark: &dyn BenchStore,
) -> anyhow::Result<BenchReport> {
    let chosen = choose(&STORE_SHAPES, |shape| shape.name, &args.shapes)?;
    let theirs = !args.alone;
    let (runtime, client) = server.connect(if theirs { NOSTREAM } else { "postgres" })?;
    let version = runtime.block_on(async {
        if theirs && !args.again {
            schema::tables(&client, true).await?;
        }
        schema::version(&client).await
    })?;
    let mut report = BenchReport::new("sql", &COLUMNS);
    report.setting("file", args.file.display().to_string());
    report.setting("postgresql", version);
    report.setting("connections", args.connections);
    report.setting("seconds_per_shape", args.seconds);
    let (mut from, mut first) = (0, Vec::new());
    let sizes = if args.again { &args.events[args.events.len() - 1..] } else { &args.events[..] };
    for &events in sizes {
        if events <= from {
            bail!("--events: give sizes in ascending order");
        }
        if !args.again {
            if theirs {
                runtime.block_on(async {
                    schema::no_indices(&client).await?;
                    fill::fill(&client, &args.file, from..events).await?;
                    schema::event_tags(&client).await?;
                    schema::indices(&client, true).await
                })?;
                server.run_maintenance(NOSTREAM)?;
            }
            lines::put(hark, &args.file, from..events)?;
            if args.store.is_none() {
                server.run_maintenance(HARK)?;
            }
        }
        from = events;
        let sample = EventSample::read_first(&args.file, events)?;
        if sample.events < events {
            bail!("{} has {} events only", args.file.display(), sample.events);
        }
        for (at, shape) in chosen.iter().enumerate() {
            let p50 = ask_all(args, server, hark, shape, &sample, first.get(at), &mut report)?;
            if first.len() == at {
                first.push(p50);
            }
        }
    }
    report.note(
        "growth: p50 divided by the p50 at the first size. ratio: nostream's p50 divided by \
         Hark's. nostream's full-text index is left out, as no query here needs the index.",
    );
    Ok(report)
}

/// Measures a shape on Hark and on each form of nostream, adds a row, and returns Hark's median.
fn ask_all(
    args: &SqlArgs,
    server: &SqlServer,
    hark: &dyn BenchStore,
    shape: &QueryShape,
    sample: &EventSample,
    first: Option<&Option<f64>>,
    report: &mut BenchReport,
) -> anyhow::Result<Option<f64>> {
    let filters = shape.filters(sample);
    let name = format!("{}, {} events", shape.name, number(sample.events));
    if filters.is_empty() {
        report.note(format!("{name}: no queries can be drawn from the file."));
        return Ok(None);
    }
    let mut figures = Vec::new();
    let ours: Vec<Box<dyn StoreQuerier + '_>> =
        (0..args.connections).map(|_| Box::new(hark) as Box<dyn StoreQuerier>).collect();
    let (ours, compared) = ask_until(ours, &filters, args.seconds)?;
    let p50 = ours.times.at_ms(0.5);
    let growth = p50.zip(first.copied().flatten()).map(|(p50, first)| p50 / first);
    figures.extend([ours.events_each(), p50, ours.times.at_ms(0.99), growth]);
    for form in [TagLookup::Jsonb, TagLookup::EventTags] {
        // Filters without tags become the same SQL in both forms.
        if args.alone || form == TagLookup::EventTags && !filters[0].contains('#') {
            figures.extend([None; 3]);
            continue;
        }
        let mut theirs: Vec<Box<dyn StoreQuerier>> = Vec::new();
        for _ in 0..args.connections {
            let (runtime, client) = server.connect(NOSTREAM)?;
            theirs.push(Box::new(SqlConnection { runtime, client, form }));
        }
        let (theirs, answers) = ask_until(theirs, &filters, args.seconds)?;
        if answers != compared {
            report.fault(format!("{name}: ours find {compared:?} events, {form:?} {answers:?}"));
        }
        let other = theirs.times.at_ms(0.5);
        let ratio = other.zip(p50).map(|(other, own)| other / own);
        figures.extend([other, theirs.times.at_ms(0.99), ratio]);
    }
    report.row(name.clone(), &figures);
    report.curve(ours.times.curve(&name));
    Ok(p50)
}

/// Totals of all connections.
#[derive(Default)]
struct SqlTotals {
    questions: u64,
    events: u64,
    times: Latencies,
}

impl SqlTotals {
    fn events_each(&self) -> Option<f64> {
        (self.questions > 0).then(|| self.events as f64 / self.questions as f64)
    }
}

/// Runs the first [`COMPARED`] queries once and returns the sizes of their answers. Then runs all
/// queries in turn for `seconds`, over all connections at once. Each connection waits for an answer
/// before its next query.
fn ask_until(
    mut askers: Vec<Box<dyn StoreQuerier + '_>>,
    filters: &[String],
    seconds: f64,
) -> anyhow::Result<(SqlTotals, Vec<u64>)> {
    let first = askers.first_mut().context("there must be a connection")?;
    let compared = filters.iter().take(COMPARED).map(|filter| first.ask(filter));
    let compared = compared.collect::<anyhow::Result<Vec<_>>>()?;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let count = askers.len();
    let mut sum = SqlTotals::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = askers
            .iter_mut()
            .enumerate()
            .map(|(number, asker)| {
                scope.spawn(move || {
                    let mut answers = SqlTotals::default();
                    let mut at = number * filters.len() / count;
                    while Instant::now() < until {
                        let asked = Instant::now();
                        answers.events += asker.ask(&filters[at % filters.len()])?;
                        answers.times.add(asked.elapsed());
                        answers.questions += 1;
                        at += 1;
                    }
                    anyhow::Ok(answers)
                })
            })
            .collect();
        for thread in threads {
            let answers = thread.join().map_err(|_| anyhow::anyhow!("an asker has panicked"))??;
            sum.questions += answers.questions;
            sum.events += answers.events;
            sum.times.merge(&answers.times);
        }
        anyhow::Ok(())
    })?;
    Ok((sum, compared))
}
