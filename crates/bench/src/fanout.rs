//! `hark bench fanout`: the time from publishing an event to its delivery to subscriptions. Each
//! event carries its number, so that every delivery is counted for the right event. The same
//! measurement runs on a relay that only copies the event to the sockets.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use hark_codec::crypto::KeyPair;
use hark_codec::nostr::EventDraft;
use parking_lot::Mutex;

use crate::args::FanoutArgs;
use crate::ingest::{IdDigits, id_digits, ok_digits};
use crate::latency::Latencies;
use crate::null::NullRelay;
use crate::people;
use crate::random::Random;
use crate::report::{BenchReport, Column};
use crate::target::{BenchTarget, Refusals, TimeSpent};
use crate::text::hex;
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, fields, put_text};

/// The longest wait after the last event. Later deliveries count as lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may wait for an EOSE or an OK before the run fails.
const SETUP: Duration = Duration::from_mins(1);
/// Number of subscriptions opened at once, before their EOSEs are awaited.
const ASKED_AT_ONCE: usize = 50;
/// The text before an event's number in its content.
const MARK: &[u8] = b"hark bench no. ";
/// Number of digits of an event's number.
const DIGITS: usize = 8;

const COLUMNS: [Column; 12] = [
    Column::plain("published", "events published", ""),
    Column::plain("expected", "deliveries expected", ""),
    Column::plain("delivered", "delivered", ""),
    Column::plain("lost", "lost", ""),
    Column::plain("doubled", "delivered twice", ""),
    Column::compared("deliveries_per_s", "deliveries/s", ""),
    Column::compared("p50_ms", "publish to delivery, p50", "ms"),
    Column::compared("p99_ms", "publish to delivery, p99", "ms"),
    Column::compared("ok_p50_ms", "publish to OK, p50", "ms"),
    Column::compared("cpu_us", "server CPU an event", "us"),
    Column::compared("cpu_us_per_delivery", "server CPU a delivery", "us"),
    Column::plain("driver_us", "driver CPU an event", "us"),
];

/// The events of a run: when each event was sent, and how often each was delivered.
struct EventsInFlight {
    /// When each event was sent, in ns after `began`; 0 if it was not sent yet.
    sent_ns: Vec<AtomicU64>,
    /// How often each event was delivered.
    delivered: Vec<AtomicU32>,
    began: Instant,
    /// Whether all events are published and no more deliveries are awaited.
    over: AtomicBool,
    times: Mutex<Latencies>,
    refusals: Mutex<Refusals>,
}

impl EventsInFlight {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    fn all_delivered(&self) -> u64 {
        self.delivered.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }

    fn refuse(&self, message: RelayMessage<'_>) {
        self.refusals.lock().add_message(message);
    }
}

pub(crate) fn run(args: &FanoutArgs) -> anyhow::Result<ExitCode> {
    let target = args.target.target()?;
    args.output.measure(async || measure(args, &target).await)
}

/// Derives the author of a group. Each run has different authors, so a run receives no events of
/// earlier runs.
fn author(group: usize, run: u64) -> anyhow::Result<KeyPair> {
    people::keys_of(&format!("fanout {run} {group}"))
}

async fn measure(args: &FanoutArgs, target: &BenchTarget) -> anyhow::Result<BenchReport> {
    let groups = groups(args);
    let mut report = BenchReport::new("fanout", &COLUMNS);
    target.describe(&mut report).await;
    for (key, value) in [
        ("subscriptions", args.subscriptions),
        ("connections", args.connections),
        ("publishers", args.publishers),
        ("deliveries_per_event", args.subscriptions / groups),
        ("held", args.hold),
    ] {
        report.setting(key, value);
    }
    report.setting("rate_per_s", args.rate);
    report.setting("seconds", args.seconds);
    report.setting("ephemeral", args.ephemeral);

    let null =
        if target.has_processes() && !args.without_null { Some(NullRelay::start()?) } else { None };
    let asked = deliver(args, target, args.hold).await?;
    if asked.lost() > 0 {
        report.fault(format!("{} deliveries were lost", asked.lost()));
    }
    if asked.doubled() > 0 {
        report.fault(format!("{} deliveries came twice", asked.doubled()));
    }
    asked.flight.refusals.lock().add_to(&mut report, "fanout");
    report.row("all", &asked.figures());
    report.curve(asked.flight.times.lock().curve("publish to delivery"));
    if let Some(null) = null {
        let target = BenchTarget::new(&null.url, &[null.id()])?;
        report.row("nothing", &deliver(args, &target, 0).await?.figures());
    }
    Ok(report)
}

/// The outcome of a finished run.
struct FanoutOutcome {
    flight: Arc<EventsInFlight>,
    /// Expected number of deliveries of each event.
    expected: Vec<u64>,
    times_to_ok: Latencies,
    spent: TimeSpent,
}

/// Publishes to subscriptions while `hold` other subscriptions are open.
async fn deliver(
    args: &FanoutArgs,
    target: &BenchTarget,
    hold: usize,
) -> anyhow::Result<FanoutOutcome> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let run = now.as_nanos() as u64;
    let groups = groups(args);
    let authors = (0..groups).map(|group| author(group, run)).collect::<Result<Vec<_>, _>>()?;
    let count = (args.rate * args.seconds).ceil() as usize;
    if count == 0 || count >= 10usize.pow(DIGITS as u32) {
        bail!("--rate times --seconds is {count} events; 1 to 99,999,999 can be distinguished");
    }
    let events = events(count, &authors, now.as_secs(), args.ephemeral);
    let flight = Arc::new(EventsInFlight {
        sent_ns: (0..count).map(|_| AtomicU64::new(0)).collect(),
        delivered: (0..count).map(|_| AtomicU32::new(0)).collect(),
        began: Instant::now(),
        over: AtomicBool::new(false),
        times: Mutex::default(),
        refusals: Mutex::default(),
    });
    let held = open_held(args, target, hold, &flight).await?;
    let listeners = listen(args, target, &authors, &flight).await?;
    let expected: Vec<u64> = (0..count).map(|at| listeners_of(at % groups, groups, args)).collect();
    let (times_to_ok, spent) = publish(args, target, events, &flight, &expected).await?;
    flight.over.store(true, Ordering::Relaxed);
    for task in held.into_iter().chain(listeners) {
        // A task that still waits has nothing to report. A finished task may have failed.
        if task.is_finished() {
            task.await??;
        } else {
            task.abort();
        }
    }
    Ok(FanoutOutcome { flight, expected, times_to_ok, spent })
}

impl FanoutOutcome {
    /// Sums `of` over all events. `of` gets the counted and the expected deliveries of an event.
    fn sum(&self, of: impl Fn(u64, u64) -> u64) -> u64 {
        let delivered = self.flight.delivered.iter().map(|count| count.load(Ordering::Relaxed));
        delivered.zip(&self.expected).map(|(count, expected)| of(u64::from(count), *expected)).sum()
    }

    fn lost(&self) -> u64 {
        self.sum(|delivered, expected| expected.saturating_sub(delivered))
    }

    fn doubled(&self) -> u64 {
        self.sum(u64::saturating_sub)
    }

    /// Returns a figure for each column.
    fn figures(&self) -> [Option<f64>; COLUMNS.len()] {
        let (count, delivered) = (self.expected.len() as u64, self.flight.all_delivered());
        let each = |cpu: Option<Duration>, of: u64| {
            cpu.filter(|_| of > 0).map(|cpu| cpu.as_secs_f64() * 1e6 / of as f64)
        };
        let times = self.flight.times.lock();
        [
            Some(count as f64),
            Some(self.sum(|_, expected| expected) as f64),
            Some(delivered as f64),
            Some(self.lost() as f64),
            Some(self.doubled() as f64),
            Some(delivered as f64 / self.spent.elapsed.as_secs_f64()),
            times.at_ms(0.5),
            times.at_ms(0.99),
            self.times_to_ok.at_ms(0.5),
            each(self.spent.server, count),
            each(self.spent.server, delivered),
            each(self.spent.driver, count),
        ]
    }
}

/// Returns the number of groups of subscriptions, each of which follows one author.
fn groups(args: &FanoutArgs) -> usize {
    let matches = args.matches.unwrap_or(args.subscriptions).clamp(1, args.subscriptions);
    (args.subscriptions / matches).max(1)
}

/// Returns the number of subscriptions that follow the author of a group.
fn listeners_of(group: usize, groups: usize, args: &FanoutArgs) -> u64 {
    ((args.subscriptions + groups - 1 - group) / groups) as u64
}

/// Makes the events as frames, in the order in which they are published.
fn events(count: usize, authors: &[KeyPair], now_s: u64, ephemeral: bool) -> Vec<Vec<u8>> {
    let kind = if ephemeral { 20_001 } else { 1 };
    let mark = String::from_utf8_lossy(MARK);
    let mut event = Vec::new();
    (0..count)
        .map(|at| {
            event.clear();
            let content = format!("{mark}{at:0DIGITS$}: hark, there is news.");
            let draft = EventDraft { created_at: now_s, kind, tags: &[], content: &content };
            draft.sign(&authors[at % authors.len()], &mut event);
            let mut frame = Vec::new();
            put_text(&mut frame, &[b"[\"EVENT\",", &event, b"]"]);
            frame
        })
        .collect()
}

type FanoutTask = tokio::task::JoinHandle<anyhow::Result<()>>;

/// Opens the subscriptions that get no events: each is for an author who writes nothing.
async fn open_held(
    args: &FanoutArgs,
    target: &BenchTarget,
    count: usize,
    flight: &Arc<EventsInFlight>,
) -> anyhow::Result<Vec<FanoutTask>> {
    let mut random = Random::new(17);
    let mut tasks = Vec::new();
    let mut left = count;
    while left > 0 {
        let own = left.min(args.per_connection);
        let filters: Vec<String> = (0..own)
            .map(|_| format!(r#"{{"authors":["{}"],"limit":1}}"#, hex(&random.bytes())))
            .collect();
        let mut connection = target.connect(ConnectionKind::Quiet { deflate: false }).await?;
        subscribe(&mut connection, &filters).await?;
        tasks.push(tokio::spawn(count_deliveries(connection, Arc::clone(flight))));
        left -= own;
    }
    Ok(tasks)
}

/// Opens the subscriptions that get events, spread over the connections.
async fn listen(
    args: &FanoutArgs,
    target: &BenchTarget,
    authors: &[KeyPair],
    flight: &Arc<EventsInFlight>,
) -> anyhow::Result<Vec<FanoutTask>> {
    let kind = if args.ephemeral { 20_001 } else { 1 };
    let mut tasks = Vec::new();
    for at in 0..args.connections.min(args.subscriptions) {
        let filters: Vec<String> = (at..args.subscriptions)
            .step_by(args.connections)
            .map(|subscription| {
                let author = hex(authors[subscription % authors.len()].public());
                format!(r#"{{"authors":["{author}"],"kinds":[{kind}],"limit":1}}"#)
            })
            .collect();
        let mut connection = target.connect(ConnectionKind::Busy).await?;
        subscribe(&mut connection, &filters).await?;
        tasks.push(tokio::spawn(count_deliveries(connection, Arc::clone(flight))));
    }
    Ok(tasks)
}

/// Opens a subscription for each filter and waits until all are open.
async fn subscribe(connection: &mut RelayConnection, filters: &[String]) -> anyhow::Result<()> {
    let mut frames = Vec::new();
    for (chunk, filters) in filters.chunks(ASKED_AT_ONCE).enumerate() {
        frames.clear();
        for (at, filter) in filters.iter().enumerate() {
            let sub = format!("[\"REQ\",\"s{}\",", chunk * ASKED_AT_ONCE + at);
            put_text(&mut frames, &[sub.as_bytes(), filter.as_bytes(), b"]"]);
        }
        connection.send(&frames).await?;
        let mut open = 0;
        while open < filters.len() {
            let next = tokio::time::timeout(SETUP, connection.next()).await;
            match next.context("a subscription had no EOSE in a minute")?? {
                RelayMessage::Eose(_) => open += 1,
                RelayMessage::Closed(text) | RelayMessage::Notice(text) => bail!(
                    "the relay refuses a subscription: {}. It needs room for all of them (of Hark: \
                     limits.subscriptions_max and limits.connections_per_address_max)",
                    String::from_utf8_lossy(text)
                ),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Counts the deliveries to a connection until the run is over.
async fn count_deliveries(
    mut connection: RelayConnection,
    flight: Arc<EventsInFlight>,
) -> anyhow::Result<()> {
    // Events of one run have the same length, so their numbers are mostly at the same position.
    let mut place = 0;
    let mut times = Vec::new();
    while !flight.over.load(Ordering::Relaxed) {
        let now_ns = flight.now_ns();
        while let Some(message) = connection.next_read()? {
            match message {
                RelayMessage::Event(text) => {
                    let Some(number) = number(text, &mut place) else { continue };
                    let Some(delivered) = flight.delivered.get(number) else { continue };
                    delivered.fetch_add(1, Ordering::Relaxed);
                    let sent_ns = flight.sent_ns[number].load(Ordering::Relaxed);
                    times.push(now_ns.saturating_sub(sent_ns));
                }
                RelayMessage::Closed(_) | RelayMessage::Notice(_) => flight.refuse(message),
                _ => {}
            }
        }
        if !times.is_empty() {
            let mut all = flight.times.lock();
            times.drain(..).for_each(|ns| all.add(Duration::from_nanos(ns)));
        }
        connection.fill().await?;
    }
    Ok(())
}

/// Reads the number of an event. Tries `place` first, the position of the previous event's number.
fn number(text: &[u8], place: &mut usize) -> Option<usize> {
    let stands_at = |at: usize| text.get(at..).is_some_and(|rest| rest.starts_with(MARK));
    if !stands_at(*place) {
        *place = text.windows(MARK.len()).position(|part| part == MARK)?;
    }
    let from = *place + MARK.len();
    str::from_utf8(text.get(from..from + DIGITS)?).ok()?.parse().ok()
}

/// Publishes all events at their rate, waits for their deliveries, and returns the times to OK.
async fn publish(
    args: &FanoutArgs,
    target: &BenchTarget,
    events: Vec<Vec<u8>>,
    flight: &Arc<EventsInFlight>,
    expected: &[u64],
) -> anyhow::Result<(Latencies, TimeSpent)> {
    let connections = target.connect_all(args.publishers).await?;
    let expected: u64 = expected.iter().sum();
    let events = Arc::new(events);
    let start = target.start()?;
    let began = Instant::now();
    let mut tasks = Vec::new();
    for (at, connection) in connections.into_iter().enumerate() {
        let (events, flight) = (Arc::clone(&events), Arc::clone(flight));
        let (publishers, rate) = (args.publishers, args.rate);
        tasks.push(tokio::spawn(async move {
            let own = (at..events.len()).step_by(publishers);
            let due = |at: usize| began + Duration::from_secs_f64(at as f64 / rate);
            publish_own(connection, own.map(|at| (at, due(at))), &events, &flight).await
        }));
    }
    let mut times = Latencies::default();
    for task in tasks {
        times.merge(&task.await??);
    }
    let patience = Instant::now() + PATIENCE;
    while flight.all_delivered() < expected && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok((times, target.stop(&start)?))
}

async fn publish_own(
    mut connection: RelayConnection,
    events: impl Iterator<Item = (usize, Instant)>,
    frames: &[Vec<u8>],
    flight: &EventsInFlight,
) -> anyhow::Result<Latencies> {
    let mut answers = PublisherAnswers { times: Latencies::default(), waited_for: Vec::new() };
    for (at, due) in events {
        while Instant::now() < due {
            answers.process(&mut connection, flight)?;
            if let Ok(read) = tokio::time::timeout_at(due.into(), connection.fill()).await {
                read?;
            }
        }
        let id = id_digits(&frames[at]).context("an event without an id")?;
        answers.waited_for.push((id, Instant::now()));
        flight.sent_ns[at].store(flight.now_ns(), Ordering::Relaxed);
        connection.send(&frames[at]).await?;
    }
    loop {
        answers.process(&mut connection, flight)?;
        if answers.waited_for.is_empty() {
            return Ok(answers.times);
        }
        let read = tokio::time::timeout(SETUP, connection.fill()).await;
        read.with_context(|| format!("{} events had no OK", answers.waited_for.len()))??;
    }
}

/// The OKs that a publisher has received, and the events that still wait for an OK.
struct PublisherAnswers {
    times: Latencies,
    waited_for: Vec<(IdDigits, Instant)>,
}

impl PublisherAnswers {
    /// Handles all messages that have already been read.
    fn process(
        &mut self,
        connection: &mut RelayConnection,
        flight: &EventsInFlight,
    ) -> anyhow::Result<()> {
        while let Some(message) = connection.next_read()? {
            let RelayMessage::Ok(text) = message else {
                flight.refuse(message);
                continue;
            };
            let id = ok_digits(text);
            if let Some(at) = self.waited_for.iter().position(|(sent, _)| Some(*sent) == id) {
                let (_, sent) = self.waited_for.swap_remove(at);
                self.times.add(sent.elapsed());
            }
            let answer = fields(text);
            if answer.get(2).is_none_or(|accepted| accepted != "true") {
                let reason = answer.last().map_or("", String::as_str);
                flight.refusals.lock().add("OK false", reason);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_known_by_its_number_wherever_it_stands() {
        let keys = people::keys(0).unwrap();
        let frames = events(12, std::slice::from_ref(&keys), 1_750_000_000, false);
        let mut place = 0;
        for (at, frame) in frames.iter().enumerate() {
            assert_eq!(number(frame, &mut place), Some(at));
            assert_eq!(number(&[b"[\"EVENT\"", &frame[..]].concat(), &mut place), Some(at));
        }
        assert_eq!(number(b"[\"EVENT\",\"s\",{}]", &mut place), None);
    }
}
