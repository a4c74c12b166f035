//! `hark bench ingest`: publishes events, each connection with a window of unacknowledged events.
//! The bench measures the number of accepted events, the latency and the cost.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hark_codec::crypto::{Signature, SignatureVerifier};
use hark_codec::nostr::{Event, EventArena};
use hark_codec::record::{Id, Key};
use parking_lot::Mutex;

use crate::args::IngestArgs;
use crate::latency::Latencies;
use crate::lines::EventFile;
use crate::process::thread_cpu;
use crate::report::{BenchReport, Column};
use crate::target::{BenchTarget, Refusals};
use crate::websocket::{RelayConnection, RelayMessage, fields, put_text};

/// Number of signatures verified to measure the rate of verification.
const CHECKED: usize = 20_000;
/// How long an OK may take before the run fails.
const PATIENCE: Duration = Duration::from_mins(1);
/// Number of leading hex digits of an id by which an OK is matched to its event. These digits are
/// unique in any window.
const DIGITS: usize = 16;

/// The first digits of an id.
pub(crate) type IdDigits = [u8; DIGITS];

const COLUMNS: [Column; 16] = [
    Column::plain("sent", "events sent", ""),
    Column::plain("accepted", "accepted", ""),
    Column::plain("known", "known already", ""),
    Column::plain("refused", "refused", ""),
    Column::compared("accepted_per_s", "accepted/s", ""),
    Column::plain("sent_mb_per_s", "sent", "MB/s"),
    Column::compared("p50_ms", "time to OK, p50", "ms"),
    Column::compared("p95_ms", "time to OK, p95", "ms"),
    Column::compared("p99_ms", "time to OK, p99", "ms"),
    Column::compared("cpu_us", "server CPU an event", "us"),
    Column::plain("driver_us", "driver CPU an event", "us"),
    Column::plain("check_us", "a signature check", "us"),
    Column::plain("checks_per_s", "checks/s, all cores", ""),
    Column::plain("limit_share_percent", "accepted/s of that", "%"),
    Column::plain("rss_mb", "server memory", "MB"),
    Column::plain("anonymous_mb", "... of its own", "MB"),
];

/// The source of events. All connections take their next event from this source.
struct EventSource {
    path: PathBuf,
    lines: EventFile,
    left: u64,
    given: u64,
    /// The due time of the first event. With a `rate`, `rate` events are due each second.
    began: Instant,
    rate: Option<f64>,
    until: Option<Instant>,
}

/// The next event that a connection may send, if any.
enum NextSend {
    /// An event was appended: the first hex digits of its id, and its due time.
    Event(IdDigits, Instant),
    /// The next event is due at this time.
    At(Instant),
    End,
}

impl EventSource {
    fn open(args: &IngestArgs) -> anyhow::Result<Self> {
        let began = Instant::now();
        Ok(Self {
            path: args.file.clone(),
            lines: EventFile::open(&args.file)?,
            left: args.events.unwrap_or(u64::MAX),
            given: 0,
            began,
            rate: args.rate,
            until: args.seconds.map(|seconds| began + Duration::from_secs_f64(seconds)),
        })
    }

    /// Appends the next event's frame if the event is due.
    fn next(&mut self, out: &mut Vec<u8>) -> anyhow::Result<NextSend> {
        let now = Instant::now();
        if self.left == 0 || self.until.is_some_and(|until| now >= until) {
            return Ok(NextSend::End);
        }
        let due = match self.rate {
            Some(rate) => self.began + Duration::from_secs_f64(self.given as f64 / rate),
            None => now,
        };
        if due > now {
            return Ok(NextSend::At(due));
        }
        let Some(text) = self.lines.line()? else {
            self.left = 0;
            return Ok(NextSend::End);
        };
        self.left -= 1;
        self.given += 1;
        let id = id_digits(text)
            .with_context(|| format!("{}, event {}: no id", self.path.display(), self.given))?;
        put_text(out, &[b"[\"EVENT\",", text, b"]"]);
        Ok(NextSend::Event(id, due))
    }
}

/// Returns the first hex digits of an event's id. Quotes within strings are escaped, so the text
/// `"id":"` occurs nowhere else.
pub(crate) fn id_digits(event: &[u8]) -> Option<IdDigits> {
    const NAME: &[u8] = b"\"id\":\"";
    let at = event.windows(NAME.len()).position(|part| part == NAME)? + NAME.len();
    event.get(at..at + DIGITS)?.try_into().ok()
}

/// Returns the first hex digits of the id in `["OK","<id>",true,""]`.
pub(crate) fn ok_digits(ok: &[u8]) -> Option<IdDigits> {
    ok.get(7..7 + DIGITS)?.try_into().ok()
}

/// Totals of the events sent and their outcomes.
#[derive(Default)]
struct IngestTotals {
    sent: u64,
    sent_bytes: u64,
    accepted: u64,
    known: u64,
    refused: u64,
    times: Latencies,
    refusals: Refusals,
}

pub(crate) fn run(args: &IngestArgs) -> anyhow::Result<ExitCode> {
    if args.output.runs > 1 && !args.duplicates {
        bail!(
            "--runs: events can be accepted once; only --duplicates can be measured several times"
        );
    }
    let target = args.target.target()?;
    let limit = SignatureRate::measure(args)?;
    args.output.measure(async || measure(args, &target, &limit).await)
}

async fn measure(
    args: &IngestArgs,
    target: &BenchTarget,
    limit: &SignatureRate,
) -> anyhow::Result<BenchReport> {
    let mut report = BenchReport::new("ingest", &COLUMNS);
    target.describe(&mut report).await;
    report.setting("file", args.file.display().to_string());
    report.setting("connections", args.connections);
    report.setting("window", args.window);
    report.setting("rate_per_s", args.rate);
    report.setting("duplicates", args.duplicates);
    let connections = target.connect_all(args.connections).await?;
    let source = Arc::new(Mutex::new(EventSource::open(args)?));
    let start = target.start()?;
    let mut tasks = Vec::new();
    for connection in connections {
        tasks.push(tokio::spawn(publish(connection, Arc::clone(&source), args.window)));
    }
    let mut sum = IngestTotals::default();
    for task in tasks {
        sum.add(task.await??);
    }
    let spent = target.stop(&start)?;
    judge(args, &sum, &mut report);
    let (events, seconds) = (sum.sent as f64, spent.elapsed.as_secs_f64());
    let each_us = |cpu: Duration| cpu.as_secs_f64() * 1e6 / events.max(1.0);
    // The relay does not accept duplicates, but answers each duplicate with an OK.
    let done = if args.duplicates { sum.known } else { sum.accepted } as f64 / seconds;
    let memory = target.memory();
    report.row(
        "all",
        &[
            Some(events),
            Some(sum.accepted as f64),
            Some(sum.known as f64),
            Some(sum.refused as f64),
            Some(done),
            Some(sum.sent_bytes as f64 / 1e6 / seconds),
            sum.times.at_ms(0.5),
            sum.times.at_ms(0.95),
            sum.times.at_ms(0.99),
            spent.server.map(each_us),
            spent.driver.map(each_us),
            Some(limit.check_us),
            Some(limit.checks_per_s),
            // The relay does not verify the signatures of duplicates.
            Some(done / limit.checks_per_s * 100.0).filter(|_| !args.duplicates),
            memory.map(|memory| memory.rss as f64 * 1.024 / 1e3),
            memory.map(|memory| memory.anonymous as f64 * 1.024 / 1e3),
        ],
    );
    report.curve(sum.times.curve("time to OK"));
    Ok(report)
}

/// Adds a fault to the report for each reason to doubt the figures.
fn judge(args: &IngestArgs, sum: &IngestTotals, report: &mut BenchReport) {
    sum.refusals.add_to(report, "events");
    if sum.sent == 0 {
        report.fault("nothing was sent");
    } else if args.duplicates && sum.accepted > 0 {
        report.fault(format!(
            "--duplicates, but {} events were new to the relay: send them once before",
            sum.accepted
        ));
    } else if !args.duplicates && sum.known * 100 > sum.sent {
        report.fault(format!(
            "{} of {} events were known to the relay already: give it an empty archive",
            sum.known, sum.sent
        ));
    }
    if let Some(rate) = args.rate {
        report.note(format!(
            "Sent at {rate} a second; the rate of accepted events is not the limit of the relay."
        ));
    }
}

impl IngestTotals {
    fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.accepted += other.accepted;
        self.known += other.known;
        self.refused += other.refused;
        self.times.merge(&other.times);
        self.refusals.merge(other.refusals);
    }

    /// Counts an answer. If the answer is an OK, returns the first digits of its id.
    fn answer(&mut self, message: RelayMessage<'_>) -> Option<IdDigits> {
        let RelayMessage::Ok(text) = message else {
            self.refusals.add_message(message);
            return None;
        };
        let id = ok_digits(text)?;
        let rest = text.get(7 + 64..)?;
        if rest.starts_with(b"\",true,\"\"") {
            self.accepted += 1;
            return Some(id);
        }
        let fields = fields(text);
        let (accepted, reason) =
            (fields.get(2).is_some_and(|accepted| accepted == "true"), fields.last());
        let reason = reason.map_or("", String::as_str);
        if ["duplicate:", "replaced:"].iter().any(|known| reason.starts_with(known)) {
            self.known += 1;
        } else if accepted {
            self.accepted += 1;
        } else {
            self.refused += 1;
            self.refusals.add("OK false", reason);
        }
        Some(id)
    }
}

async fn publish(
    mut connection: RelayConnection,
    source: Arc<Mutex<EventSource>>,
    window: usize,
) -> anyhow::Result<IngestTotals> {
    let mut totals = IngestTotals::default();
    let mut unanswered: Vec<(IdDigits, Instant)> = Vec::with_capacity(window);
    let (mut frames, mut ended) = (Vec::new(), false);
    loop {
        let mut later = None;
        while unanswered.len() < window && !ended {
            // The lock is never held across an await, as all connections share one thread.
            let next = source.lock().next(&mut frames)?;
            match next {
                NextSend::Event(id, due) => {
                    totals.sent += 1;
                    unanswered.push((id, due));
                }
                NextSend::At(due) => {
                    later = Some(due);
                    break;
                }
                NextSend::End => ended = true,
            }
        }
        if !frames.is_empty() {
            totals.sent_bytes += frames.len() as u64;
            connection.send(&frames).await?;
            frames.clear();
        }
        if unanswered.is_empty() && ended {
            return Ok(totals);
        }
        // Answers that have been read are handled before the connection waits for more.
        let mut answered = false;
        while let Some(message) = connection.next_read()? {
            answered = true;
            if let Some(id) = totals.answer(message)
                && let Some(at) = unanswered.iter().position(|(sent, _)| *sent == id)
            {
                let (_, due) = unanswered.swap_remove(at);
                totals.times.add(due.elapsed());
            }
        }
        if answered {
            continue;
        }
        let wake = later.unwrap_or_else(|| Instant::now() + PATIENCE);
        match tokio::time::timeout_at(wake.into(), connection.fill()).await {
            Ok(read) => read?,
            Err(_) if later.is_some() => {}
            Err(_) => bail!(
                "{} events have had no OK for {} s; the relay said: {:?}",
                unanswered.len(),
                PATIENCE.as_secs(),
                totals.refusals
            ),
        }
    }
}

/// The measured rate of signature verification.
struct SignatureRate {
    /// CPU time of one check, in µs.
    check_us: f64,
    /// Checks per second on all cores together.
    checks_per_s: f64,
}

impl SignatureRate {
    fn measure(args: &IngestArgs) -> anyhow::Result<Self> {
        let most = CHECKED.min(usize::try_from(args.events.unwrap_or(u64::MAX)).unwrap_or(CHECKED));
        let signed = signatures(&args.file, most)?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let busy: Duration = std::thread::scope(|scope| {
            let share = signed.len().div_ceil(cores).max(1);
            let threads: Vec<_> =
                signed.chunks(share).map(|part| scope.spawn(|| check(part))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
        });
        // The CPU time of one check while all cores check signatures. Unlike elapsed time, CPU time
        // excludes other work of the machine.
        let check_us = busy.as_secs_f64() * 1e6 / signed.len() as f64;
        Ok(Self { check_us, checks_per_s: cores as f64 * 1e6 / check_us })
    }
}

type SignedId = (Id, Key, Signature);

fn signatures(path: &Path, most: usize) -> anyhow::Result<Vec<SignedId>> {
    let (mut lines, mut arena, mut signed) =
        (EventFile::open(path)?, EventArena::new(), Vec::new());
    while signed.len() < most
        && let Some(line) = lines.line()?
    {
        let event = Event::parse(line, &mut arena)
            .with_context(|| format!("{}, event {}", path.display(), signed.len() + 1))?;
        signed.push((*event.id(), *event.pubkey(), *event.signature()));
    }
    if signed.is_empty() {
        bail!("{} holds no events", path.display());
    }
    Ok(signed)
}

/// Checks these signatures one after the other and returns the CPU time used.
fn check(signed: &[SignedId]) -> Duration {
    // The verifier caches the most recent keys, as a server does.
    let mut verifier = SignatureVerifier::new(1 << 12);
    let before = thread_cpu();
    for (id, key, signature) in signed {
        // The file may contain a forged event, whose check takes the same time.
        let _ = std::hint::black_box(verifier.verify(id, key, signature));
    }
    thread_cpu().saturating_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_sorted_by_what_they_say() {
        let mut totals = IngestTotals::default();
        let id = "ab".repeat(32);
        for rest in [
            "true,\"\"",
            "true,\"duplicate: have it\"",
            "false,\"duplicate: too\"",
            "false,\"blocked: \\\"x\\\"\"",
            "true,\"mute: nobody hears it\"",
        ] {
            let text = format!("[\"OK\",\"{id}\",{rest}]");
            assert_eq!(
                totals.answer(RelayMessage::Ok(text.as_bytes())),
                Some(*b"abababababababab")
            );
        }
        assert_eq!(totals.answer(RelayMessage::Notice(b"[\"NOTICE\",\"slow down\"]")), None);
        assert_eq!(totals.answer(RelayMessage::Other), None);
        assert_eq!((totals.accepted, totals.known, totals.refused), (2, 2, 1));
        let mut report = BenchReport::new("ingest", &[]);
        totals.refusals.add_to(&mut report, "events");
        assert_eq!(
            report.faults(),
            [
                "events: refused 1 times with NOTICE: slow down",
                "events: refused 1 times with OK false: blocked: \"x\""
            ]
        );
    }

    #[test]
    fn an_id_is_found_wherever_it_stands() {
        let id = "0123456789abcdef".repeat(4);
        let event = format!(r#"{{"content":"\"id\":\"no\"","id":"{id}","tags":[["id","no"]]}}"#);
        assert_eq!(id_digits(event.as_bytes()), Some(*b"0123456789abcdef"));
        assert_eq!(id_digits(b"{}"), None);
    }
}
