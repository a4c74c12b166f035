//! `hark bench query`: the queries that clients send, one shape after the other and all mixed. Each
//! connection sends its next query after the EOSE of the previous query.

mod checks;
mod cold;
mod loads;
mod nothing;
mod pages;
mod readers;
mod rounds;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use self::checks::CheckedAnswers;
use self::loads::{DEPTHS, MIXED, ShapeRequests, depths, load, mixed, requests};
use self::nothing::MeasuredNull;
use self::pages::pages;
use self::readers::{InboxOwner, own, prove, readers};
use self::rounds::{PATIENCE, QueryTotals, WARM_UP, round};
use crate::args::BenchQueryArgs;
use crate::expected::ExpectedAnswers;
use crate::page_cache;
use crate::process::thread_cpu;
use crate::report::{BenchReport, Column};
use crate::sample::EventSample;
use crate::shapes::{self, INBOX, SEARCH_SHAPES, SHAPES};
use crate::store::{BenchArchive, BenchArchiveOpener, BenchQuestion};
use crate::target::{BenchTarget, TimeSpent};
use crate::websocket::RelayConnection;
use crate::words::{figure, number};

/// Maximum time for reading all pages of the busiest author.
const WALK: Duration = Duration::from_mins(5);

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

pub(crate) fn run(args: &BenchQueryArgs, open: BenchArchiveOpener<'_>) -> anyhow::Result<ExitCode> {
    if args.cold && args.output.runs > 1 {
        bail!("--runs: with --cold, each question is asked once; start the relay again instead");
    }
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
    let mut answers = expected_answers(args, &loads, targets.len())?;
    for load in &loads {
        let search_ms = archive.map(|archive| search(archive, load, length)).transpose()?;
        for (at, asked) in asked.iter_mut().enumerate() {
            if args.drop_caches
                && let Err(error) = page_cache::drop_caches()
            {
                asked.report.fault(format!("the caches were not dropped: {error:#}"));
            }
            let beside = (null.as_mut(), search_ms);
            if let Err(error) = asked.ask_checked(load, length, answers.get_mut(at), beside).await {
                asked.report.fault(format!("{}: {error:#}", load.name));
                asked.report.row(&load.name, &[None; COLUMNS.len()]);
                let url = &asked.target.url.text;
                let again = asked.connect(args, &readers).await;
                again.with_context(|| format!("{url}, after {}: {error:#}", load.name))?;
            }
        }
    }
    for (asked, answers) in asked.iter_mut().zip(answers) {
        answers.finish(&mut asked.report);
    }
    Ok(asked.into_iter().map(|asked| asked.finish(sample)).collect())
}

/// Computes the expected answers to all questions. Returns a table to be filled for each target, or
/// an empty list without `--check`.
fn expected_answers(
    args: &BenchQueryArgs,
    loads: &[ShapeRequests],
    targets: usize,
) -> anyhow::Result<Vec<CheckedAnswers>> {
    if !args.check {
        return Ok(Vec::new());
    }
    let requests = loads.iter().flat_map(|load| &load.requests).flat_map(|list| list.iter());
    let questions = requests.map(|request| &*request.filters);
    let expected = Arc::new(ExpectedAnswers::read(&args.file, questions)?);
    Ok((0..targets).map(|_| CheckedAnswers::new(&expected)).collect())
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
        report.setting("cold", args.cold);
        report.setting("drop_caches", args.drop_caches);
        let mut asked = Self { target, plain: Vec::new(), readers: Vec::new(), report };
        asked.connect(args, readers).await?;
        Ok(asked)
    }

    /// Opens all connections.
    async fn connect(
        &mut self,
        args: &BenchQueryArgs,
        readers: &[InboxOwner],
    ) -> anyhow::Result<()> {
        self.plain = self.target.connect_all(args.connections).await?;
        self.readers = self.target.connect_all(args.connections).await?;
        for (at, connection) in self.readers.iter_mut().enumerate() {
            let own = own(readers, at, args);
            let proven = tokio::time::timeout(PATIENCE, prove(connection, self.target, own)).await;
            // Without AUTH, only the questions about inboxes fail.
            if let Err(error) = proven.context("AUTH had no answer in a minute")? {
                self.report.fault(format!("{INBOX}: {error:#}"));
                break;
            }
        }
        Ok(())
    }

    /// Compares the answers of a load with the expected answers. Returns whether all are right.
    async fn check(
        &mut self,
        load: &ShapeRequests,
        answers: Option<&mut CheckedAnswers>,
    ) -> anyhow::Result<bool> {
        // Each question of the mixed load belongs to another load, too.
        let Some(answers) = answers.filter(|_| load.name != MIXED) else { return Ok(true) };
        let connections = if load.as_reader { &mut self.readers } else { &mut self.plain };
        answers.check(load, connections, &mut self.report).await
    }

    /// Checks and measures a load, and adds a row. A row of a load with faulty answers has no
    /// figures.
    async fn ask_checked(
        &mut self,
        load: &ShapeRequests,
        length: Duration,
        mut answers: Option<&mut CheckedAnswers>,
        (null, search_ms): (Option<&mut MeasuredNull>, Option<f64>),
    ) -> anyhow::Result<()> {
        // Questions that are sent only once are checked after they were measured.
        if !load.is_once && !self.check(load, answers.as_deref_mut()).await? {
            self.report.row(&load.name, &[None; COLUMNS.len()]);
            return Ok(());
        }
        self.ask(load, length, null, search_ms).await?;
        if load.is_once && !self.check(load, answers).await? {
            self.report.clear_last_row();
        }
        Ok(())
    }

    /// Runs a load for `length`, after a warm-up, and adds a row.
    async fn ask(
        &mut self,
        load: &ShapeRequests,
        length: Duration,
        null: Option<&mut MeasuredNull>,
        search_ms: Option<f64>,
    ) -> anyhow::Result<()> {
        if !load.is_once {
            self.round(load, length.mul_f64(WARM_UP)).await?;
        }
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

/// Makes all loads, in the order of the run.
async fn loads(
    args: &BenchQueryArgs,
    sample: &EventSample,
    readers: &[InboxOwner],
    asked: &mut MeasuredTarget<'_>,
) -> anyhow::Result<Vec<ShapeRequests>> {
    if args.cold {
        return cold::chosen(cold::loads(sample), &args.shapes);
    }
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
            is_once: false,
        };
        loads.insert(at, load);
    }
    let mixed = mixed(&loads, args.connections);
    let connection = asked.plain.first_mut().context("there is no connection")?;
    let pages = tokio::time::timeout(WALK, pages(sample, connection, &mut asked.report)).await;
    let pages = pages.context("the walk through the busiest author's pages took too long")??;
    for (name, part) in DEPTHS.iter().zip(depths(&pages)) {
        loads.push(ShapeRequests {
            name: (*name).into(),
            may_be_empty: false,
            requests: vec![requests(part)],
            as_reader: false,
            is_once: false,
        });
    }
    for shape in SEARCH_SHAPES.iter().filter(|_| args.search) {
        loads.extend(load(shape, sample, &mut asked.report));
    }
    loads.push(mixed);
    shapes::choose(loads, |load| &load.name, &args.shapes)
}
