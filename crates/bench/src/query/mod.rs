//! `hark bench query`: the queries that clients send, one shape after the other and all mixed. Each
//! connection sends its next query after the EOSE of the previous query.

mod loads;
mod readers;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use self::loads::{DEPTHS, MIXED, ShapeRequests, depths, load, mixed, requests};
use self::readers::{InboxOwner, own, prove, readers};
use crate::args::BenchQueryArgs;
use crate::latency::Latencies;
use crate::null::{NullRelay, question_like};
use crate::process::thread_cpu;
use crate::report::{BenchReport, Column};
use crate::requests::{RequestFrames, created_at, request};
use crate::sample::EventSample;
use crate::shapes::{self, INBOX, SEARCH_SHAPES, SHAPES};
use crate::store::{BenchArchive, BenchArchiveOpener, BenchQuestion};
use crate::target::{BenchTarget, Refusals, TimeSpent};
use crate::websocket::{RelayConnection, RelayMessage, fields};
use crate::words::{figure, number};

/// The length of the warm-up, which is not counted, as a share of the measured time.
const WARM_UP: f64 = 0.15;
/// How much longer than planned a shape may take before the run fails.
const PATIENCE: Duration = Duration::from_mins(1);
/// Maximum time for reading all pages of the busiest author.
const WALK: Duration = Duration::from_mins(5);
/// Maximum number of events of a page.
const PAGE: usize = 500;

const COLUMNS: [Column; 10] = [
    Column::plain("requests_per_s", "requests/s", ""),
    Column::plain("events", "events", ""),
    Column::plain("answer_kb", "answer", "KB"),
    Column::compared("cpu_ms", "CPU", "ms"),
    Column::plain("null_cpu_ms", "nothing", "ms"),
    Column::plain("null_ratio", "ratio", ""),
    Column::plain("search_cpu_ms", "+ search", "ms"),
    Column::plain("limit_ratio", "ratio", ""),
    Column::compared("p50_ms", "p50", "ms"),
    Column::compared("p99_ms", "p99", "ms"),
];

/// Totals that one connection, or all connections together, received.
#[derive(Clone, Default)]
struct QueryTotals {
    requests: u64,
    events: u64,
    bytes: u64,
    times: Latencies,
    refusals: Refusals,
}

pub(crate) fn run(args: &BenchQueryArgs, open: BenchArchiveOpener<'_>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sample = EventSample::read(&args.file)?;
    let targets: Vec<BenchTarget> = args.targets.targets()?;
    let archive = args.archive.as_ref().map(|path| open(path)).transpose()?;
    let (mut runs, mut other_runs) = (Vec::new(), Vec::new());
    for _ in 0..args.output.runs.max(1) {
        let mut reports = runtime.block_on(measure(args, &sample, &targets, archive.as_deref()))?;
        other_runs.extend(if reports.len() > 1 { reports.pop() } else { None });
        runs.append(&mut reports);
    }
    let mut report = BenchReport::median(runs).context("there was no run")?;
    if let Some(other) = BenchReport::median(other_runs) {
        report.compare(args.targets.against_name(), &other);
    }
    args.output.publish(report)
}

/// Returns a report for each target. The targets take turns shape by shape, so that other work of
/// the machine affects all targets equally.
async fn measure(
    args: &BenchQueryArgs,
    sample: &EventSample,
    targets: &[BenchTarget],
    archive: Option<&dyn BenchArchive>,
) -> anyhow::Result<Vec<BenchReport>> {
    let readers = readers(sample)?;
    let mut asked = Vec::new();
    for target in targets {
        asked.push(MeasuredTarget::new(target, args, sample, &readers).await?);
    }
    let loads = loads(args, sample, &readers, &mut asked[0]).await?;
    let has_pids = targets.iter().any(BenchTarget::has_processes);
    let mut null = if has_pids && !args.without_null {
        Some(MeasuredNull::start(args.connections).await?)
    } else {
        None
    };
    let length = Duration::from_secs_f64(args.seconds);
    for load in &loads {
        let search_ms = archive.map(|archive| search(archive, load, length)).transpose()?;
        for asked in &mut asked {
            asked.ask(load, length, null.as_mut(), search_ms).await?;
        }
    }
    Ok(asked.into_iter().map(|asked| asked.finish(sample)).collect())
}

/// A target with its connections and its report.
struct MeasuredTarget<'a> {
    target: &'a BenchTarget,
    plain: Vec<RelayConnection>,
    /// Connections for queries of inboxes. Each connection is authenticated as the owners of the
    /// inboxes that it queries.
    readers: Vec<RelayConnection>,
    report: BenchReport,
}

impl<'a> MeasuredTarget<'a> {
    async fn new(
        target: &'a BenchTarget,
        args: &BenchQueryArgs,
        sample: &EventSample,
        readers: &[InboxOwner],
    ) -> anyhow::Result<Self> {
        let mut report = BenchReport::new("query", &COLUMNS);
        target.describe(&mut report).await;
        report.setting("file", args.file.display().to_string());
        report.setting("events", sample.events);
        report.setting("connections", args.connections);
        report.setting("keys", args.keys);
        report.setting("seconds_per_shape", args.seconds);
        let plain = target.connect_all(args.connections).await?;
        let mut with_keys = target.connect_all(args.connections).await?;
        for (at, connection) in with_keys.iter_mut().enumerate() {
            let own = own(readers, at, args);
            let proven = tokio::time::timeout(PATIENCE, prove(connection, target, own)).await;
            proven.context("AUTH had no answer in a minute")??;
        }
        Ok(Self { target, plain, readers: with_keys, report })
    }

    /// Runs a load for `length`, after a warm-up, and adds a row.
    async fn ask(
        &mut self,
        load: &ShapeRequests,
        length: Duration,
        null: Option<&mut MeasuredNull>,
        search_ms: Option<f64>,
    ) -> anyhow::Result<()> {
        let warm_up = length.mul_f64(WARM_UP);
        self.round(load, warm_up).await?;
        let (answers, spent) = self.round(load, length).await?;
        let requests = answers.requests as f64;
        answers.refusals.add_to(&mut self.report, &load.name);
        if answers.requests > 0 && answers.events == 0 && !load.may_be_empty {
            self.report.fault(format!(
                "{}: no answer held an event; does {} hold the events of the file?",
                load.name, self.target.url.text
            ));
        }
        let each = |sum: f64| (requests > 0.0).then(|| sum / requests);
        let cpu_ms = spent.server.and_then(|cpu| each(cpu.as_secs_f64() * 1e3));
        let null_ms = match null {
            Some(null) if answers.requests > 0 => null.ask(load, &answers, length).await?,
            _ => None,
        };
        let figures = [
            Some(requests / spent.elapsed.as_secs_f64()),
            each(answers.events as f64),
            each(answers.bytes as f64 / 1e3),
            cpu_ms,
            null_ms,
            cpu_ms.zip(null_ms).map(|(cpu, null)| cpu / null),
            search_ms,
            cpu_ms.zip(null_ms).zip(search_ms).map(|((cpu, null), search)| cpu / (null + search)),
            answers.times.at_ms(0.5),
            answers.times.at_ms(0.99),
        ];
        self.report.row(&load.name, &figures);
        if load.name == MIXED {
            self.report.curve(answers.times.curve(MIXED));
            if let (Some(driver), Some(each)) = (spent.driver, each(1e3)) {
                let own = figure(driver.as_secs_f64() * each);
                self.report
                    .note(format!("The driver itself took {own} ms of CPU per mixed request."));
            }
        }
        Ok(())
    }

    async fn round(
        &mut self,
        load: &ShapeRequests,
        length: Duration,
    ) -> anyhow::Result<(QueryTotals, TimeSpent)> {
        let connections = if load.as_reader { &mut self.readers } else { &mut self.plain };
        round(self.target, connections, load, length).await
    }

    fn finish(mut self, sample: &EventSample) -> BenchReport {
        let p50 = |name: &str| {
            let row = self.report.rows().iter().find(|row| row.name == name)?;
            row.figures[COLUMNS.iter().position(|column| column.key == "p50_ms")?]
        };
        if let (Some(first), Some(last)) = (p50(DEPTHS[0]), p50(DEPTHS[2])) {
            let notes = sample.authors.first().map_or(0, |(_, notes)| u64::from(*notes));
            self.report.note(format!(
                "The busiest author has {} notes, and the last page takes {}x as long as the first.",
                number(notes),
                figure(last / first)
            ));
        }
        self.report
    }
}

/// Runs a load on all connections for `length`.
async fn round(
    target: &BenchTarget,
    connections: &mut Vec<RelayConnection>,
    load: &ShapeRequests,
    length: Duration,
) -> anyhow::Result<(QueryTotals, TimeSpent)> {
    let count = connections.len();
    let start = target.start()?;
    let until = Instant::now() + length;
    let mut tasks = Vec::new();
    for (at, connection) in std::mem::take(connections).into_iter().enumerate() {
        let requests = Arc::clone(&load.requests[at % load.requests.len()]);
        // Each connection begins at a different request, so that no two connections send the same
        // request at once.
        let from = at * requests.len() / count;
        tasks.push(tokio::spawn(ask_until(connection, requests, from, until)));
    }
    let mut sum = QueryTotals::default();
    for task in tasks {
        let answered = tokio::time::timeout(length + PATIENCE, task).await;
        let answered = answered.ok().context("an answer did not end within a minute");
        let (connection, answers) = answered
            .and_then(|joined| joined?)
            .with_context(|| format!("{}, {}", target.url.text, load.name))?;
        connections.push(connection);
        sum.add(answers);
    }
    Ok((sum, target.stop(&start)?))
}

/// The relay that does nothing, with its connections.
struct MeasuredNull {
    target: BenchTarget,
    connections: Vec<RelayConnection>,
    _relay: NullRelay,
}

impl MeasuredNull {
    async fn start(connections: usize) -> anyhow::Result<Self> {
        let relay = NullRelay::start()?;
        let target = BenchTarget::new(&relay.url, &[relay.id()])?;
        let connections = target.connect_all(connections).await?;
        Ok(Self { target, connections, _relay: relay })
    }

    /// Sends requests like those of the load to the relay that does nothing. Each answer has the
    /// mean size of `answers`. Returns the CPU time of a request, in ms.
    async fn ask(
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
        };
        round(&self.target, &mut self.connections, &load, length.mul_f64(WARM_UP)).await?;
        let (sum, spent) = round(&self.target, &mut self.connections, &load, length).await?;
        let ms = spent.server.map(|cpu| cpu.as_secs_f64() * 1e3 / sum.requests as f64);
        Ok(ms.filter(|_| sum.requests > 0))
    }
}

/// Runs the searches of a load in this process: each search once, then repeatedly for a quarter of
/// `length`. Returns the CPU time of one search, in ms.
fn search(
    archive: &dyn BenchArchive,
    load: &ShapeRequests,
    length: Duration,
) -> anyhow::Result<f64> {
    let all = load.requests.iter().flat_map(|requests| requests.iter());
    let questions = all.map(|request| archive.question(&request.filters));
    let questions = questions.collect::<anyhow::Result<Vec<BenchQuestion<'_>>>>()?;
    let mut answer = Vec::new();
    let mut ask = |question: &BenchQuestion<'_>| {
        answer.clear();
        question(&mut answer)
    };
    questions.iter().try_for_each(&mut ask)?;
    let (before, until, mut asked) = (thread_cpu(), Instant::now() + length / 4, 0);
    for question in questions.iter().cycle() {
        ask(question)?;
        asked += 1;
        if Instant::now() >= until {
            break;
        }
    }
    Ok(thread_cpu().saturating_sub(before).as_secs_f64() * 1e3 / f64::from(asked))
}

impl QueryTotals {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.events += other.events;
        self.bytes += other.bytes;
        self.times.merge(&other.times);
        self.refusals.merge(other.refusals);
    }
}

async fn ask_until(
    mut connection: RelayConnection,
    requests: Arc<Vec<RequestFrames>>,
    mut at: usize,
    until: Instant,
) -> anyhow::Result<(RelayConnection, QueryTotals)> {
    let mut answers = QueryTotals::default();
    let mut frames = Vec::new();
    while Instant::now() < until {
        let request = &requests[at % requests.len()];
        at += 1;
        frames.extend_from_slice(&request.req);
        let bytes = connection.bytes;
        let sent = Instant::now();
        connection.send(&frames).await?;
        frames.clear();
        let mut events = 0;
        let is_complete = loop {
            match connection.next().await? {
                RelayMessage::Event(_) => events += 1,
                RelayMessage::Eose(text) if text.starts_with(&request.eose) => break true,
                RelayMessage::Closed(text) if fields(text).get(1) == Some(&request.sub) => {
                    answers.refusals.add_message(RelayMessage::Closed(text));
                    break false;
                }
                notice @ RelayMessage::Notice(_) => {
                    answers.refusals.add_message(notice);
                    break false;
                }
                _ => {}
            }
        };
        if is_complete {
            answers.times.add(sent.elapsed());
            answers.requests += 1;
            answers.events += events;
            answers.bytes += connection.bytes - bytes;
        } else {
            // After a refusal for too many requests, the pause avoids further refusals.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Clients that want only stored events send a CLOSE. This CLOSE is sent with the next
        // request.
        frames.extend_from_slice(&request.close);
    }
    connection.send(&frames).await?;
    Ok((connection, answers))
}

/// Makes all loads, in the order of the run.
async fn loads(
    args: &BenchQueryArgs,
    sample: &EventSample,
    readers: &[InboxOwner],
    asked: &mut MeasuredTarget<'_>,
) -> anyhow::Result<Vec<ShapeRequests>> {
    let mut loads = Vec::new();
    for shape in &SHAPES {
        loads.extend(load(shape, sample, &mut asked.report));
    }
    let inboxes: Vec<_> = (0..args.connections)
        .map(|at| {
            let own = own(readers, at, args);
            requests(&own.iter().map(|reader| shapes::inbox(&reader.key)).collect::<Vec<_>>())
        })
        .collect();
    if inboxes.iter().any(|requests| requests.is_empty()) {
        asked.report.note(format!("{INBOX}: too few inboxes with a key that can be derived."));
    } else {
        // The inbox comes before "50 profiles", as in other tables.
        let at = loads.iter().position(|load| load.name == "50 profiles").unwrap_or(loads.len());
        let load = ShapeRequests {
            name: INBOX.into(),
            may_be_empty: false,
            requests: inboxes,
            as_reader: true,
        };
        loads.insert(at, load);
    }
    let mixed = mixed(&loads, args.connections);
    let pages = tokio::time::timeout(WALK, pages(sample, asked)).await;
    let pages = pages.context("the walk through the busiest author's pages took too long")??;
    for (name, part) in DEPTHS.iter().zip(depths(&pages)) {
        loads.push(ShapeRequests {
            name: (*name).into(),
            may_be_empty: false,
            requests: vec![requests(part)],
            as_reader: false,
        });
    }
    for shape in SEARCH_SHAPES.iter().filter(|_| args.search) {
        loads.extend(load(shape, sample, &mut asked.report));
    }
    loads.push(mixed);
    shapes::choose(loads, |load| &load.name, &args.shapes)
}

/// Returns the filters of the busiest author's pages, newest first, after reading all pages once.
async fn pages(
    sample: &EventSample,
    asked: &mut MeasuredTarget<'_>,
) -> anyhow::Result<Vec<String>> {
    let Some((author, notes)) = sample.authors.first() else { return Ok(Vec::new()) };
    let page = (*notes as usize / 10).clamp(1, PAGE);
    let connection = asked.plain.first_mut().context("there is no connection")?;
    let mut until = sample.times.last().copied().unwrap_or(0);
    let mut pages = Vec::new();
    loop {
        let filters = shapes::page(author, until, page);
        let request = request(0, &filters);
        connection.send(&request.req).await?;
        let (mut events, mut oldest) = (0, until);
        loop {
            match connection.next().await? {
                RelayMessage::Event(text) => {
                    events += 1;
                    oldest = oldest.min(created_at(text).unwrap_or(oldest));
                }
                RelayMessage::Eose(text) if text.starts_with(&request.eose) => break,
                refusal @ (RelayMessage::Closed(_) | RelayMessage::Notice(_)) => {
                    let mut refusals = Refusals::default();
                    refusals.add_message(refusal);
                    refusals.add_to(&mut asked.report, "the walk through pages");
                    return Ok(Vec::new());
                }
                _ => {}
            }
        }
        connection.send(&request.close).await?;
        // The last page is not full and cannot be compared with the others.
        if events < page {
            return Ok(pages);
        }
        pages.push(filters);
        // The next page repeats the events of the oldest second, unless these events fill a whole
        // page.
        until = if oldest < until { oldest } else { until.saturating_sub(1) };
    }
}
