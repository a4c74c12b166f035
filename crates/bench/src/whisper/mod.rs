//! `hark bench whisper`: queries the envelopes of few and of many topics, like Status' engineers in
//! their comparison of stores for the mail server (2019). The bench opens Hark's stores itself, and
//! measures them beside the mail server's ways of answering on the same data. New ways of answering
//! belong in `ways`.

mod answer;
mod args;
mod envelopes;
mod generate;
mod http;
mod load;
mod mailserver;
mod measure;
mod questions;
mod store;
mod ways;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use crate::meter::ProgressMeter;
use crate::report::{BarChart, BenchReport, ChartBar, Column};
use crate::shapes::choose;
use crate::words::number;
pub(crate) use args::WhisperBenchArgs;
use args::WhisperBenchCommand;
use load::LoadedStores;
use measure::{QuestionTimes, measure};
use questions::{NamedQuestion, QuestionForm, questions};
pub use store::{EnvelopeStore, EnvelopeStoreOpener, StoreQuestion, WantedTopics};
use ways::AnswerWay;

/// Numbers of concurrent threads; the first is a single thread.
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Maximum expected time, in ms, of a round with several threads. Longer rounds are not measured.
const ROUND_MAX_MS: f64 = 120_000.0;

const COLUMNS: [Column; 9] = [
    Column::plain("envelopes", "envelopes", ""),
    Column::plain("mb", "size", "MB"),
    Column::compared("p50_ms", "p50", "ms"),
    Column::plain("min_ms", "min", "ms"),
    Column::plain("faster", "faster", "x"),
    Column::plain("p50_2_ms", "2 at once", "ms"),
    Column::plain("p50_4_ms", "4 at once", "ms"),
    Column::plain("p50_8_ms", "8 at once", "ms"),
    Column::plain("slower_8", "8 beside 1", "x"),
];

pub(crate) fn run(
    args: &WhisperBenchArgs,
    open: EnvelopeStoreOpener<'_>,
) -> anyhow::Result<ExitCode> {
    if let Some(WhisperBenchCommand::Gen(args)) = &args.command {
        return generate::write(args);
    }
    let mut report = BenchReport::new("whisper", &COLUMNS);
    crate::target::describe_machine(&mut report);
    let stores = LoadedStores::open(args, open, &mut report)?;
    let measured = ask_all(args, &stores, &mut report);
    stores.close()?;
    measured?;
    args.output.publish(report)
}

/// Measures all questions in all ways and adds their rows.
fn ask_all(
    args: &WhisperBenchArgs,
    stores: &LoadedStores<'_>,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    report.setting("runs", args.output.runs);
    report.setting("seconds_max", args.seconds);
    let files = stores.files();
    let (_, newest_s) = files.times_s().context("there are no envelopes")?;
    let all = questions(files.topics()?, newest_s)?;
    let all = choose(all, |question| &question.name, &args.questions)?;
    let ways = choose(stores.ways()?, |way| way.name, &args.ways)?;
    let mut meter = ProgressMeter::start("asking", (all.len() * ways.len()) as u64);
    let mut done = 0;
    for question in &all {
        let mut rows = Vec::new();
        for way in &ways {
            rows.push(ask(args, way, question)?);
            done += 1;
            meter.at(done);
        }
        add_rows(question, &ways, &rows, report);
    }
    meter.finish();
    report.note(
        "A time ends when each thread has copied its whole answer. faster: the best p50 of the \
         mail server's ways, divided by this p50.",
    );
    Ok(())
}

/// The times of one question in one way, for each number of [`THREADS`]; `None` if not measured.
type WayTimes = [Option<QuestionTimes>; THREADS.len()];

fn ask(
    args: &WhisperBenchArgs,
    way: &AnswerWay<'_>,
    question: &NamedQuestion,
) -> anyhow::Result<WayTimes> {
    let (limit, runs) = (Duration::from_secs_f64(args.seconds), args.output.runs.max(1));
    let mut times = WayTimes::default();
    let mut alone_ms = 0.0;
    for (found, threads) in times.iter_mut().zip(THREADS) {
        if threads > 1 && (args.single || alone_ms * threads as f64 > ROUND_MAX_MS) {
            break;
        }
        let measured = measure(way, question.form(way.form), threads, runs, limit)
            .with_context(|| format!("{}: {}", question.name, way.name))?;
        if threads == 1 {
            alone_ms = measured.min_ms().unwrap_or_default();
        }
        *found = Some(measured);
    }
    Ok(times)
}

/// Adds the rows and the chart of a question. Ways with the same form of question must have found
/// the same number of envelopes.
fn add_rows(
    question: &NamedQuestion,
    ways: &[AnswerWay<'_>],
    rows: &[WayTimes],
    report: &mut BenchReport,
) {
    for form in [QuestionForm::Topics, QuestionForm::Bloom] {
        let found = ways.iter().zip(rows).filter(|(way, _)| way.form == form);
        let found = found
            .flat_map(|(way, row)| row.iter().flatten().map(|times| (way.name, times.envelopes)));
        let found: Vec<(&str, u64)> = found.collect();
        if let Some((name, count)) = found.first()
            && let Some((other, others)) = found.iter().find(|(_, others)| others != count)
        {
            report.fault(format!(
                "{}: `{name}` finds {}, `{other}` {}",
                question.name,
                number(*count),
                number(*others)
            ));
        }
    }
    let p50 = |row: &WayTimes, at: usize| row.get(at)?.as_ref()?.median_ms();
    let min = |row: &WayTimes, at: usize| row.get(at)?.as_ref()?.min_ms();
    let theirs = ways.iter().zip(rows).filter(|(way, _)| !way.is_own);
    let best = theirs.filter_map(|(_, row)| p50(row, 0)).min_by(f64::total_cmp);
    let mut chart = BarChart { name: question.name.clone(), unit: "ms", bars: Vec::new() };
    for (way, row) in ways.iter().zip(rows) {
        let of = row[0].as_ref();
        let ratio = |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(a, b)| a / b);
        let figures = [
            of.map(|times| times.envelopes as f64),
            of.map(|times| times.sent_bytes as f64 / 1e6),
            p50(row, 0),
            min(row, 0),
            ratio(best, p50(row, 0)),
            p50(row, 1),
            p50(row, 2),
            p50(row, 3),
            ratio(min(row, 3), min(row, 0)),
        ];
        report.row(format!("{}: {}", question.name, way.name), &figures);
        if let Some(value) = p50(row, 0) {
            chart.bars.push(ChartBar { name: way.name.into(), value, is_own: way.is_own });
        }
    }
    report.chart(chart);
}
