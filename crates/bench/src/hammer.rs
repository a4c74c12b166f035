//! `hark bench hammer`: queries and insertions at the same time, on a relay or a store. Each
//! request has a due time. Latencies count from the due time and include waiting behind earlier
//! requests.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::runtime::Runtime;

use crate::args::HammerArgs;
use crate::latency::Latencies;
use crate::lines::{self, EventFile};
use crate::report::{BenchReport, Column};
use crate::sample::EventSample;
use crate::schedule::Schedule;
use crate::shapes::{STORE_SHAPES, choose};
use crate::store::{BenchStore, BenchStoreOpener, StoreInserter, StoreQuerier};
use crate::target::BenchTarget;
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, Url, fields, put_text};

/// Maximum number of events to insert, all of which are read from the file before the run.
const EVENTS_MAX: usize = 2_000_000;

const COLUMNS: [Column; 7] = [
    Column::plain("count", "count", ""),
    Column::plain("per_s", "per second", ""),
    Column::plain("events", "events each", ""),
    Column::compared("p50_ms", "p50", "ms"),
    Column::compared("p95_ms", "p95", "ms"),
    Column::compared("p99_ms", "p99", "ms"),
    Column::plain("max_ms", "longest", "ms"),
];

/// A client of a relay, with its own connection.
struct RelayClient {
    runtime: Runtime,
    connection: RelayConnection,
    asked: u64,
}

impl RelayClient {
    fn open(target: &BenchTarget) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connection = runtime.block_on(target.connect(ConnectionKind::Busy))?;
        Ok(Self { runtime, connection, asked: 0 })
    }
}

impl StoreQuerier for RelayClient {
    fn ask(&mut self, filter: &str) -> anyhow::Result<u64> {
        self.asked += 1;
        let sub = format!("h{}", self.asked);
        let (mut req, mut close) = (Vec::new(), Vec::new());
        put_text(&mut req, &[format!("[\"REQ\",\"{sub}\",{filter}]").as_bytes()]);
        put_text(&mut close, &[format!("[\"CLOSE\",\"{sub}\"]").as_bytes()]);
        let connection = &mut self.connection;
        self.runtime.block_on(async {
            connection.send(&req).await?;
            let mut events = 0;
            loop {
                match connection.next().await? {
                    RelayMessage::Event(_) => events += 1,
                    RelayMessage::Eose(text) if fields(text).get(1) == Some(&sub) => break,
                    RelayMessage::Closed(text) | RelayMessage::Notice(text) => {
                        bail!("refused: {}", fields(text).join(" "))
                    }
                    _ => {}
                }
            }
            connection.send(&close).await?;
            Ok(events)
        })
    }
}

impl StoreInserter for RelayClient {
    fn insert(&mut self, events: &[Vec<u8>]) -> anyhow::Result<()> {
        let mut frames = Vec::new();
        for event in events {
            put_text(&mut frames, &[b"[\"EVENT\",", event, b"]"]);
        }
        let connection = &mut self.connection;
        self.runtime.block_on(async {
            connection.send(&frames).await?;
            let mut answered = 0;
            while answered < events.len() {
                if let RelayMessage::Ok(text) = connection.next().await? {
                    answered += 1;
                    let said = fields(text);
                    let is_known = |reason: &String| {
                        ["duplicate:", "replaced:"].iter().any(|known| reason.starts_with(known))
                    };
                    if said.get(2).is_none_or(|accepted| accepted != "true")
                        && !said.last().is_some_and(is_known)
                    {
                        bail!("refused: {}", said.last().map_or("", String::as_str));
                    }
                }
            }
            Ok(())
        })
    }
}

#[derive(Default)]
struct HammerTotals {
    count: u64,
    events: u64,
    times: Latencies,
    longest: Duration,
    refused: Vec<String>,
}

impl HammerTotals {
    fn note(&mut self, due: Instant, result: anyhow::Result<u64>) -> anyhow::Result<()> {
        match result {
            Ok(events) => {
                let time = due.elapsed();
                self.count += 1;
                self.events += events;
                self.times.add(time);
                self.longest = self.longest.max(time);
                Ok(())
            }
            Err(error) if error.to_string().starts_with("refused: ") => {
                self.refused.push(error.to_string());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.events += other.events;
        self.times.merge(&other.times);
        self.longest = self.longest.max(other.longest);
        self.refused.extend(other.refused);
    }
}

pub(crate) fn run(args: &HammerArgs, open: BenchStoreOpener<'_>) -> anyhow::Result<ExitCode> {
    let report = if args.target.starts_with("ws://") {
        let url: Url = args.target.parse().map_err(anyhow::Error::msg)?;
        let target = BenchTarget::new(&url, &[])?;
        let each = || RelayClient::open(&target);
        let load = |loaded| load_relay(args, &target, loaded);
        hammer(args, &load, &|| Ok(Box::new(each()?)), &|| Ok(Box::new(each()?)))?
    } else {
        let store = open(&args.target)?;
        let store: &dyn BenchStore = &*store;
        let load = |loaded| lines::put(store, &args.file, 0..loaded);
        hammer(args, &load, &|| Ok(Box::new(store)), &|| Ok(Box::new(store)))?
    };
    args.output.publish(report)
}

fn load_relay(args: &HammerArgs, target: &BenchTarget, loaded: u64) -> anyhow::Result<()> {
    let mut relay = RelayClient::open(target)?;
    let mut lines = EventFile::open(&args.file)?;
    for _ in 0..loaded.div_ceil(100) {
        let mut batch = Vec::new();
        while batch.len() < 100
            && let Some(line) = lines.line()?
        {
            batch.push(line.to_vec());
        }
        relay.insert(&batch)?;
    }
    Ok(())
}

type HammerSetup<'a, T> = &'a dyn Fn() -> anyhow::Result<Box<T>>;

fn hammer<'a>(
    args: &HammerArgs,
    load: &dyn Fn(u64) -> anyhow::Result<()>,
    asker: HammerSetup<'_, dyn StoreQuerier + 'a>,
    inserter: HammerSetup<'_, dyn StoreInserter + 'a>,
) -> anyhow::Result<BenchReport> {
    let loaded = if let Some(loaded) = args.loaded {
        loaded
    } else {
        let half = EventFile::open(&args.file)?.count()? / 2;
        load(half)?;
        half
    };
    let sample = EventSample::read_first(&args.file, loaded)?;
    let chosen = choose(&STORE_SHAPES, |shape| shape.name, &args.shapes)?;
    let mut filters: Vec<_> = chosen.iter().map(|shape| shape.filters(&sample)).collect();
    filters.retain(|filters| !filters.is_empty());
    if filters.is_empty() {
        bail!("no queries can be drawn: the file has too few events");
    }
    let batches = batches(args, loaded)?;
    let askers = (0..args.questions).map(|_| asker()).collect::<anyhow::Result<Vec<_>>>()?;
    let inserters = (0..args.inserters).map(|_| inserter()).collect::<anyhow::Result<Vec<_>>>()?;
    let start = Instant::now();
    let until = start + Duration::from_secs_f64(args.seconds);
    let questions = Schedule::new(start, Some(args.rate)).until(until);
    let batches_per_s = args.insert_rate / args.batch as f64;
    let insertions = Schedule::new(start, Some(batches_per_s)).until(until);
    let (mut asked, mut inserted) = (HammerTotals::default(), HammerTotals::default());
    std::thread::scope(|scope| {
        let asking: Vec<_> = askers
            .into_iter()
            .map(|mut asker| {
                let (questions, filters) = (&questions, &filters);
                scope.spawn(move || {
                    let mut done = HammerTotals::default();
                    while let Some((number, due)) = questions.next() {
                        let shape = &filters[number as usize % filters.len()];
                        let filter = &shape[number as usize / filters.len() % shape.len()];
                        done.note(due, asker.ask(filter))?;
                    }
                    anyhow::Ok(done)
                })
            })
            .collect();
        let inserting: Vec<_> = inserters
            .into_iter()
            .map(|mut inserter| {
                let (insertions, batches) = (&insertions, &batches);
                scope.spawn(move || {
                    let mut done = HammerTotals::default();
                    while let Some((number, due)) = insertions.next() {
                        let Some(batch) = batches.get(number as usize) else { break };
                        let events = batch.len() as u64;
                        done.note(due, inserter.insert(batch).map(|()| events))?;
                    }
                    anyhow::Ok(done)
                })
            })
            .collect();
        for (threads, sum) in [(asking, &mut asked), (inserting, &mut inserted)] {
            for thread in threads {
                sum.add(thread.join().ok().context("a thread has panicked")??);
            }
        }
        anyhow::Ok(())
    })?;
    let spent = start.elapsed().as_secs_f64();
    let mut report = BenchReport::new("hammer", &COLUMNS);
    report.setting("file", args.file.display().to_string());
    report.setting("target", shown(&args.target));
    report.setting("questions", args.questions);
    report.setting("rate", args.rate);
    report.setting("inserters", args.inserters);
    report.setting("insert_rate", args.insert_rate);
    report.setting("batch", args.batch);
    report.setting("seconds", args.seconds);
    report.setting("events_before", loaded);
    for (name, done, wanted) in
        [("questions", asked, args.rate), ("insertions", inserted, batches_per_s)]
    {
        if done.count == 0 {
            report.fault(format!("{name}: none succeeded"));
        }
        if let Some(reason) = done.refused.first() {
            report.fault(format!("{name}: {} were {reason}", done.refused.len()));
        }
        // One request may be missing because its due time was just at the end.
        if (done.count as f64) < wanted * args.seconds * 0.95 - 1.0 {
            report.note(format!(
                "{name}: {} of {:.0} succeeded: the target does not keep up, or the file has ended.",
                done.count,
                wanted * args.seconds
            ));
        }
        let count = done.count as f64;
        report.row(
            name,
            &[
                Some(count),
                Some(count / spent),
                (done.count > 0).then(|| done.events as f64 / count),
                done.times.at_ms(0.5),
                done.times.at_ms(0.95),
                done.times.at_ms(0.99),
                (done.count > 0).then_some(done.longest.as_secs_f64() * 1e3),
            ],
        );
        report.curve(done.times.curve(name));
    }
    Ok(report)
}

/// Returns an address without user and password.
fn shown(target: &str) -> String {
    match (target.split_once("://"), target.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => target.to_owned(),
    }
}

/// Reads the batches to insert, in the order of the file.
fn batches(args: &HammerArgs, loaded: u64) -> anyhow::Result<Vec<Vec<Vec<u8>>>> {
    let mut lines = EventFile::open(&args.file)?;
    lines.skip(loaded)?;
    let wanted = (args.insert_rate * args.seconds).ceil() as usize;
    let (mut batches, mut batch) = (Vec::new(), Vec::new());
    for _ in 0..wanted.min(EVENTS_MAX) {
        let Some(line) = lines.line()? else { break };
        batch.push(line.to_vec());
        if batch.len() == args.batch {
            batches.push(std::mem::take(&mut batch));
        }
    }
    Ok(batches)
}
