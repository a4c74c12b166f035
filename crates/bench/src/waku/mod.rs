//! `hark bench waku`: publishes to a Waku node, through its REST API or by gossip, and queries its
//! history at the same time. Then the bench checks whether all published messages are stored.

#[cfg(feature = "libp2p")]
mod gossip;
mod load;
mod messages;
#[cfg(feature = "libp2p")]
mod metadata;
mod publisher;
mod questions;
mod rest;
mod stored;
#[cfg(test)]
mod tests;
mod totals;
mod watch;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::args::{WakuBenchArgs, WakuBenchCommand};
use crate::random::Random;
use crate::report::{BenchReport, Column, Curve};
use crate::shapes::choose;
use crate::target::{BenchTarget, describe_machine};
use crate::words::{figure, number};
use load::{HistoryReaders, LoadResult, ShapeQueries, drive};
use publisher::PublishEndpoint;
use questions::{HistorySample, HistoryShape, SHAPES};
use rest::RestClient;
use stored::missing;
use totals::RequestTotals;

const COLUMNS: [Column; 9] = [
    Column::plain("count", "count", ""),
    Column::plain("per_s", "per second", ""),
    Column::plain("messages", "messages each", ""),
    Column::compared("first_ms", "first", "ms"),
    Column::compared("p50_ms", "p50", "ms"),
    Column::compared("p95_ms", "p95", "ms"),
    Column::compared("p99_ms", "p99", "ms"),
    Column::compared("cpu_ms", "CPU", "ms"),
    Column::plain("rss_mb", "memory", "MB"),
];

pub(crate) fn run(args: &WakuBenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(WakuBenchCommand::Gen(args)) = &args.command {
        return messages::write(args);
    }
    if args.messages == 0 && args.readers == 0 {
        bail!("with --messages 0 and --readers 0 there is nothing to measure");
    }
    let shapes = choose(&SHAPES, |shape| shape.name, &args.shapes)?;
    let sides = ComparedNode::all(args)?;
    let mut runs: Vec<Vec<BenchReport>> = sides.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.output.runs.max(1) {
        let mut reports =
            sides.iter().map(|side| begin(args, side)).collect::<anyhow::Result<Vec<_>>>()?;
        // The nodes take turns, so that other work of the machine affects both equally.
        for bytes in &args.payload_bytes {
            for (side, report) in sides.iter().zip(&mut reports) {
                measure(args, &shapes, side, *bytes, report)
                    .with_context(|| side.target.url.text.clone())?;
            }
        }
        for (runs, report) in runs.iter_mut().zip(reports) {
            runs.push(report);
        }
    }
    let mut medians = runs.into_iter().filter_map(BenchReport::median);
    let mut report = medians.next().context("there was no run")?;
    if let Some(other) = medians.next() {
        let name = args.nodes.against_name();
        for note in other.notes() {
            report.note(format!("{name}: {note}"));
        }
        for curve in other.curves() {
            let points = curve.points.clone();
            report.curve(Curve { name: format!("{name}: {}", curve.name), points });
        }
        report.compare(name, &other);
    }
    args.output.publish(report)
}

/// One of the compared nodes.
struct ComparedNode {
    target: BenchTarget,
    /// The endpoint for publishing messages to the node.
    door: PublishEndpoint,
}

impl ComparedNode {
    fn all(args: &WakuBenchArgs) -> anyhow::Result<Vec<Self>> {
        let targets = args.nodes.targets()?;
        let doors = PublishEndpoint::all(args, &targets)?;
        let sides = targets.into_iter().zip(doors);
        Ok(sides.map(|(target, door)| Self { target, door }).collect())
    }
}

fn begin(args: &WakuBenchArgs, side: &ComparedNode) -> anyhow::Result<BenchReport> {
    let url = &side.target.url;
    let mut report = BenchReport::new("store", &COLUMNS);
    report.setting("url", url.text.clone());
    let version = match RestClient::open(url)?.get("/debug/v1/version")? {
        Ok(body) => String::from_utf8_lossy(&body).trim().trim_matches('"').to_owned(),
        Err(_) => "unknown".into(),
    };
    report.setting("node", version);
    describe_machine(&mut report);
    report.setting("publish_to", side.door.addr());
    report.setting("publishers", args.publishers);
    report.setting("messages", args.messages);
    report.setting("payload_bytes", args.payload_bytes.clone());
    report.setting("publish_rate_per_s", args.publish_rate);
    report.setting("pubsub_topic", args.pubsub_topic.clone());
    report.setting("readers", args.readers);
    report.setting("pages", args.pages);
    report.setting("query_rate_per_s", args.query_rate);
    report.setting("seconds", args.seconds);
    Ok(report)
}

/// Publishes payloads of one size and queries at the same time, and adds the rows of the results to
/// the report.
fn measure(
    args: &WakuBenchArgs,
    shapes: &[&HistoryShape],
    side: &ComparedNode,
    bytes: usize,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let ComparedNode { target, door } = side;
    let several = args.payload_bytes.len() > 1;
    let name = |name: &str| if several { format!("{bytes} B: {name}") } else { name.to_owned() };
    let open =
        |count| (0..count).map(|_| RestClient::open(&target.url)).collect::<Result<Vec<_>, _>>();
    let publishes = args.messages > 0;
    let mut client = RestClient::open(&target.url)?;
    let questions =
        if args.readers > 0 { questions(&mut client, shapes, bytes)? } else { Vec::new() };
    // Publishers stay connected until the end, as gossip may still be sending their messages.
    let mut publishers = door.open(if publishes { args.publishers } else { 0 })?;
    let watcher = open(usize::from(publishes && !door.answers()))?.pop();
    let readers = HistoryReaders::open(&target.url, args.readers, args.query_rate)?;

    let used = target.start()?;
    let start = Instant::now();
    let driven = drive(args, bytes, start, &mut publishers, watcher, readers, &questions)?;
    let spent = target.stop(&used)?;

    let LoadResult { mut published, accepted, answers, watched } = driven;
    let mut all = RequestTotals::default();
    if publishes {
        let name = name("publish");
        if let Some(watched) = watched {
            published.times.merge(&watched.times);
            watched.refusals.add_to(report, &format!("{name}, watched"));
            report.note(format!(
                "{name}: a time begins when a message is due, and ends when the node returns the \
                 message to a query; {} of {} messages were watched, with {} of all requests.",
                number(watched.messages),
                number(published.count),
                number(watched.count)
            ));
            all.add(watched);
        }
        row(report, &name, &published, start, None);
        report.curve(published.times.curve(&name));
        note_slow_rate(report, &name, &published, start, args.publish_rate);
        all.add(published);
    }
    let mut queries = RequestTotals::default();
    for (question, done) in questions.iter().zip(answers) {
        let name = name(question.name);
        row(report, &name, &done, start, question.first);
        if done.count > 0 && done.messages == 0 && !question.may_be_empty {
            report.fault(format!("{name}: no answer held a message"));
        }
        queries.add(done);
    }
    if args.readers > 0 {
        let name = name("questions");
        report.curve(queries.times.curve(&name));
        note_slow_rate(report, &name, &queries, start, args.query_rate);
        all.add(queries);
    }
    let each_ms = |cpu: Duration| cpu.as_secs_f64() * 1e3 / all.count.max(1) as f64;
    let count = all.count as f64;
    let mut figures = [None; COLUMNS.len()];
    figures[0] = Some(count);
    figures[1] = Some(count / spent.elapsed.as_secs_f64());
    figures[7] = spent.server.map(each_ms);
    figures[8] = target.memory().map(|memory| memory.rss as f64 * 1.024 / 1e3);
    report.row(name("all requests"), &figures);
    if let Some(driver) = spent.driver {
        report.note(name(&format!("driver: {} ms of CPU per request.", figure(each_ms(driver)))));
    }
    if publishes {
        let missing = missing(args, &mut client, &accepted, bytes)?;
        let (of, stored) = (accepted.len(), accepted.len() - missing.len());
        let (of, stored) = (number(of as u64), number(stored as u64));
        report.note(name(&format!("publish: {stored} of {of} messages are stored.")));
        if let Some(first) = missing.first() {
            let missing = number(missing.len() as u64);
            let text = format!("publish: {missing} of {of} messages are not stored: {first}, ...");
            report.fault(name(&text));
        }
    }
    Ok(())
}

/// Adds a row to the report, and a fault for each reason of refused requests.
fn row(
    report: &mut BenchReport,
    name: &str,
    done: &RequestTotals,
    start: Instant,
    first: Option<Duration>,
) {
    done.refusals.add_to(report, name);
    if done.count == 0 {
        report.fault(format!("{name}: none succeeded"));
    }
    let count = done.count as f64;
    let figures = [
        Some(count),
        per_s(done, start),
        (done.count > 0 && done.messages > 0).then(|| done.messages as f64 / count),
        first.map(|first| first.as_secs_f64() * 1e3),
        done.times.at_ms(0.5),
        done.times.at_ms(0.95),
        done.times.at_ms(0.99),
        None,
        None,
    ];
    report.row(name, &figures);
}

fn per_s(done: &RequestTotals, start: Instant) -> Option<f64> {
    Some(done.count as f64 / (done.ended? - start).as_secs_f64())
}

/// Adds a note if the rate of requests was below the requested rate.
fn note_slow_rate(
    report: &mut BenchReport,
    name: &str,
    done: &RequestTotals,
    start: Instant,
    rate: Option<f64>,
) {
    if let (Some(rate), Some(per_s)) = (rate, per_s(done, start))
        && per_s < rate * 0.95
    {
        report.note(format!(
            "{name}: {} of {} a second succeeded: the node does not keep up.",
            figure(per_s),
            figure(rate)
        ));
    }
}

/// Draws the queries of each shape, and runs the first query of each before the load begins.
fn questions(
    client: &mut RestClient,
    shapes: &[&HistoryShape],
    seed: usize,
) -> anyhow::Result<Vec<ShapeQueries>> {
    // Each payload size has a different seed, so that its first queries are new to the node.
    let mut random = Random::new(seed as u64);
    let sample = HistorySample::read(client, &mut random)?;
    let mut questions = Vec::new();
    for shape in shapes {
        let queries = shape.queries(&sample, &mut random);
        let first = queries.first().with_context(|| {
            format!("{}: what the node holds has nothing to ask for", shape.name)
        })?;
        let sent = Instant::now();
        let answer = client.messages(first)?;
        // A refusal is no error here: under load, the query is refused again, and counted.
        let first = answer.is_ok().then(|| sent.elapsed());
        let HistoryShape { name, may_be_empty, .. } = **shape;
        questions.push(ShapeQueries { name, may_be_empty, queries, first });
    }
    Ok(questions)
}
