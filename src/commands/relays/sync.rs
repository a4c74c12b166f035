//! `hark sync`: synchronises the archive with a relay once.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use hark_archive::Query;
use hark_archive::blocking::may_block;
use hark_peers::{
    Direction, IntakeQueue, LocalEnd, PeerClient, PeerError, ReasonCounts, RelayAddress, SyncMeter,
    SyncOptions, SyncTotals, sync,
};
use serde_json::{Value, json};

use super::{IN_PART, OpenArchive, RelayArgs};
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::question::{self, FilterFault};
use crate::{interrupt, when};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark sync wss://relay.example
  hark sync wss://relay.example --filter '{\"authors\":[\"npub1…\"]}' --dir both
  hark sync ws://10.0.0.2:7777 --dir up --private --key-file relay.key
  hark sync wss://relay.example --dry-run --json

The archive and the relay compare which events they have (NIP-77), and send only the missing events,
while the comparison continues. A relay that cannot compare is read page by page. Every id and
signature is checked, on all cores. Events that [policy] and [limits] refuse from clients are also
refused from relays. A server may run on the archive: it does the writes, and its subscribers get
the events. To continue a run that was interrupted or lost its connection, run the command again.

Exit codes: 0 the archive and the relay are in step (events that one of them has deleted, let expire
or replaced may differ), 1 failed, 2 wrong flags or filter, 3 done, but some events were refused or
not reached, which the report lists, 130 interrupted. Private events that are not exchanged are
counted, and do not change the exit code.")]
pub(crate) struct SyncArgs {
    /// The relay: wss://host or ws://host:port
    #[arg(value_name = "URL")]
    pub(crate) relay: RelayAddress,
    /// The events to synchronise; several filters are handled one after the other [default: all]
    #[arg(long, value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
    /// The direction in which events are sent
    #[arg(long, value_enum, default_value_t = DirectionArg::Down)]
    pub(crate) dir: DirectionArg,
    /// Only count the missing events
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Read the relay's events page by page instead of comparing
    #[arg(long)]
    pub(crate) pages: bool,
    #[command(flatten)]
    pub(crate) relays: RelayArgs,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The direction of events, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectionArg {
    /// From the relay into the archive
    Down,
    /// From the archive to the relay
    Up,
    /// Both ways
    Both,
}

impl From<DirectionArg> for Direction {
    fn from(typed: DirectionArg) -> Self {
        match typed {
            DirectionArg::Down => Self::Down,
            DirectionArg::Up => Self::Up,
            DirectionArg::Both => Self::Both,
        }
    }
}

/// Interval between updates of the progress.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// How a run ended.
#[derive(Default)]
struct RunEnd {
    /// The reason why the relay was read page by page; `None` if the events were compared instead.
    paged: Option<String>,
    /// Private kinds. The relay may have returned only some of their events.
    private_kinds: Vec<u32>,
    error: Option<PeerError>,
    stopped: bool,
}

impl RunEnd {
    fn add_private_kinds(&mut self, kinds: Vec<u32>) {
        self.private_kinds.extend(kinds);
        self.private_kinds.sort_unstable();
        self.private_kinds.dedup();
    }
}

pub(crate) fn run(args: &SyncArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let location = Arc::new(super::events(location)?);
    let queries = queries(&location, &args.filter)?;
    let client = args.relays.client(&location.config)?;
    let stop = interrupt::flag()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the system does not let Hark open connections")?;
    let (meter, started) = (Arc::new(SyncMeter::default()), Instant::now());
    let mut shown = ShownProgress::start(args, &meter);
    // The archive is opened only after the connection to the relay succeeds.
    let connecting = Box::pin(PeerClient::connect(&args.relay, client));
    let connected = runtime.block_on(watched(connecting, &stop, &mut shown));
    let hidden = kinds_hidden_there(args, &location, &queries);
    let (mut end, mut traffic, mut intake) = (RunEnd::default(), None, None);
    match connected {
        None => end.stopped = true,
        Some(Err(error)) => end.error = Some(error),
        Some(Ok(client)) => {
            // The archive is opened on another thread, so that this thread can answer the relay's
            // pings.
            let opening = Arc::clone(&location);
            let opening = runtime.spawn_blocking(move || may_block(|| super::open(&opening, None)));
            let opened = runtime.block_on(opening).context("the archive could not be opened");
            let archive = match opened.flatten() {
                Ok(archive) => archive,
                Err(error) => {
                    shown.finish();
                    runtime.shutdown_background();
                    return Err(error);
                }
            };
            let OpenArchive { local, intake: opened } = archive;
            let options = queries.into_iter().map(|query| options(args, &location, query));
            let work = Box::pin(work(&client, options, &local, opened.queue(), &meter));
            let done = runtime.block_on(watched(work, &stop, &mut shown));
            end = done.unwrap_or(RunEnd { stopped: true, ..RunEnd::default() });
            end.add_private_kinds(hidden);
            traffic = Some(client.traffic());
            intake = Some(opened);
        }
    }
    // Tasks that still run, such as a name lookup, are abandoned.
    runtime.shutdown_background();
    if let Some(intake) = intake {
        // Received events are written in any case.
        end.error = intake.finish().err().or(end.error);
    }
    shown.finish();
    let (totals, spent) = (meter.totals(), started.elapsed());
    if args.json {
        let report = to_json(args, &totals, &end, traffic.unwrap_or_default(), spent);
        print::line(&report.to_string())?;
    } else if let Some(traffic) = traffic {
        print::line(&to_text(args, &totals, &end, traffic, spent))?;
    }
    let left = "what is counted as stored or taken is safe; run it again to continue";
    if end.stopped {
        print::note!("hark: stopped; {left}");
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    match end.error {
        Some(PeerError::Unreachable(why)) => anyhow::bail!("{why}; nothing was done"),
        Some(error) => anyhow::bail!("{}: {error}; {left}", args.relay),
        None => {}
    }
    Ok(if is_in_part(&totals) { ExitCode::from(IN_PART) } else { ExitCode::SUCCESS })
}

/// Reads the filters of a synchronisation.
pub(super) fn queries(
    location: &ArchiveLocation,
    filters: &[String],
) -> anyhow::Result<Vec<Query>> {
    let all = ["{}".to_owned()];
    let filters = if filters.is_empty() { &all } else { filters };
    let queries = question::read(location, filters, when::now_s())?;
    if queries.iter().any(|query| query.limit != usize::MAX) {
        return Err(FilterFault(
            "a filter must have no limit, because the archive and the relay may have different \
             newest events. Use since and until"
                .into(),
        )
        .into());
    }
    Ok(queries)
}

/// Returns the synchronisation options for one query.
fn options(args: &SyncArgs, location: &ArchiveLocation, query: Query) -> SyncOptions {
    let direction = if args.dry_run { Direction::Neither } else { args.dir.into() };
    let private_kinds =
        if args.relays.private { Vec::new() } else { location.config.private_kinds.clone() };
    let mut options = SyncOptions::new(direction, query, private_kinds);
    options.send_protected = args.relays.private;
    options.no_comparison = args.pages;
    options
}

/// Returns the private kinds of which this archive may not receive all events, because the relay
/// may hide some. Empty without `--private`, and if no events are copied into this archive.
fn kinds_hidden_there(args: &SyncArgs, location: &ArchiveLocation, queries: &[Query]) -> Vec<u32> {
    let direction = Direction::from(args.dir);
    if !args.relays.private || !direction.is_down() {
        return Vec::new();
    }
    let private = &location.config.private_kinds;
    let options = |query: &Query| SyncOptions::new(direction, query.clone(), private.clone());
    queries.iter().flat_map(|query| options(query).private_kinds_in_query()).collect()
}

/// Synchronises one query after the other.
async fn work(
    client: &PeerClient,
    queries: impl Iterator<Item = SyncOptions>,
    local: &LocalEnd,
    queue: IntakeQueue,
    meter: &Arc<SyncMeter>,
) -> RunEnd {
    let mut end = RunEnd::default();
    for options in queries {
        match sync(client, &options, local, queue.clone(), meter).await {
            Ok(report) => {
                end.paged = end.paged.or(report.paged);
                end.add_private_kinds(report.private_kinds);
            }
            Err(error) => {
                end.error = Some(error);
                break;
            }
        }
    }
    end
}

/// Runs work to its end, and shows its progress. Returns `None` if `stop` is set first.
async fn watched<T>(
    mut work: impl Future<Output = T> + Unpin,
    stop: &AtomicBool,
    shown: &mut ShownProgress,
) -> Option<T> {
    loop {
        tokio::select! {
            end = &mut work => return Some(end),
            () = tokio::time::sleep(SHOW_EVERY) => shown.show(),
        }
        if stop.load(Ordering::Relaxed) {
            return None;
        }
    }
}

/// The progress display.
struct ShownProgress {
    progress: CommandProgress,
    meter: Arc<SyncMeter>,
    started: Instant,
}

impl ShownProgress {
    fn start(args: &SyncArgs, meter: &Arc<SyncMeter>) -> Self {
        let progress = CommandProgress::start(args.relay.as_str(), 0, CountedUnit::Records);
        Self { progress, meter: Arc::clone(meter), started: Instant::now() }
    }

    fn show(&mut self) {
        let totals = self.meter.totals();
        let (done, all) = done(&totals);
        let rate = done as f64 / self.started.elapsed().as_secs_f64().max(0.001);
        let mut words = format!(
            "{} stored, {} taken there, {}/s",
            print::number(totals.stored),
            print::number(totals.taken),
            print::number(rate as u64)
        );
        if totals.slowed > 0 {
            let waits = print::count(totals.slowed, "wait");
            let _ = write!(words, ", {waits} as the relay bounds rates");
        }
        self.progress.at(done, all, &words);
    }

    fn finish(self) {
        self.progress.finish();
    }
}

/// Returns how many events have been processed, and how many events are known so far.
fn done(totals: &SyncTotals) -> (u64, u64) {
    let there = totals.taken + totals.settled + totals.withheld + totals.refused_there.total();
    let done =
        totals.stored + totals.refused_here.total() + totals.not_sent + totals.not_asked + there;
    (done, (totals.missing_here.max(totals.received) + totals.missing_there).max(done))
}

/// Whether the archive or the relay still lacks events that it should have.
fn is_in_part(totals: &SyncTotals) -> bool {
    let bad = ["malformed", "bad id", "bad signature", "too large", "policy"];
    totals.refused_there.total() + totals.unreached + totals.not_asked > 0
        || bad.iter().any(|reason| totals.refused_here.of(reason) > 0)
}

fn to_text(
    args: &SyncArgs,
    totals: &SyncTotals,
    end: &RunEnd,
    (sent, received): (u64, u64),
    spent: Duration,
) -> String {
    let how = match &end.paged {
        Some(why) => {
            format!("{}, as it was not compared with ({why})", print::count(totals.pages, "page"))
        }
        None => print::count(totals.rounds, "round"),
    };
    let head = format!(
        "{} in {:.1} s: {how}, {} sent, {} received",
        args.relay,
        spent.as_secs_f64(),
        print::bytes(sent),
        print::bytes(received)
    );
    let rate = |count: u64| {
        let rate = count as f64 / spent.as_secs_f64().max(0.001);
        format!("{} a second", print::number(rate as u64))
    };
    let mut rows = Vec::new();
    let mut row = |name, count: u64, rest: &str| {
        if count > 0 {
            rows.push((name, print::number(count), rest.to_owned()));
        }
    };
    row("only there", totals.missing_here, "");
    row("only here", totals.missing_there, "");
    row("received", totals.received, &rate(totals.received));
    row("stored", totals.stored, "");
    row("sent", totals.sent, &rate(totals.sent));
    row("taken there", totals.taken, "");
    row("settled there", totals.settled, "had it, a newer version or its deletion");
    row("withheld", totals.withheld, "protected or of a private kind; --private sends them");
    row(
        "not sent",
        totals.not_sent,
        "the relay has them but withholds them, such as private events",
    );
    row(
        "left out",
        totals.not_asked,
        "not requested: too many earlier listed events were not sent",
    );
    row("not asked for", totals.unasked, "the relay sent them unrequested");
    row("waits", totals.slowed, "waits for the relay's rate limit");
    row("seconds in part", totals.unreached, "of more events than the relay returns");
    let is_done = end.error.is_none() && !end.stopped;
    // The note about withheld events has no count, so the note comes last.
    let kept = describe_withheld(args, end).unwrap_or_default();
    if rows.is_empty() && is_done && totals.refused_here.total() == 0 {
        return format!("{head}; both are in step, and were before{kept}");
    }
    let mut text = head;
    if !rows.is_empty() {
        text = format!("{text}\n{}", print::table(&rows));
    }
    for (name, counts) in
        [("not stored here", &totals.refused_here), ("refused there", &totals.refused_there)]
    {
        let rows: Vec<_> = counts
            .iter()
            .map(|(reason, count, words)| (reason, print::number(count), words.to_owned()))
            .collect();
        if !rows.is_empty() {
            text = format!("{text}\n{name}:\n{}", print::table(&rows));
        }
    }
    text + &kept
}

/// Explains how to get the private events of the relay.
const SHOWN_TO_A_KEY: &str = "the relay shows a key's private events only to this key (--key-file)";

/// Describes the private events that a synchronisation may not have transferred.
fn describe_withheld(args: &SyncArgs, end: &RunEnd) -> Option<String> {
    if end.private_kinds.is_empty() || end.error.is_some() || end.stopped {
        return None;
    }
    let kinds: Vec<_> = end.private_kinds.iter().map(u32::to_string).collect();
    let mut words = format!("\nprivate kinds ({}) stay where they are: ", kinds.join(", "));
    words += match (args.dir, args.dry_run) {
        // This archive sends its own private events.
        _ if args.relays.private => SHOWN_TO_A_KEY,
        (DirectionArg::Up, false) => "--private sends those of this archive",
        (DirectionArg::Down, false) => SHOWN_TO_A_KEY,
        _ => {
            "--private sends those of this archive, and the relay shows a key's private events \
             only to this key (--key-file)"
        }
    };
    Some(words)
}

pub(super) fn reasons(counts: &ReasonCounts) -> Value {
    let reasons = counts.iter().map(|(reason, count, words)| {
        (reason.replace([' ', '-'], "_"), json!({ "events": count, "first": words }))
    });
    Value::Object(reasons.collect())
}

fn to_json(
    args: &SyncArgs,
    totals: &SyncTotals,
    end: &RunEnd,
    traffic: (u64, u64),
    spent: Duration,
) -> Value {
    json!({
        "relay": args.relay.as_str(),
        // The archive lacks the events that the relay lists but does not send.
        "complete": end.error.is_none() && !end.stopped && !is_in_part(totals) && totals.not_sent == 0,
        "private_kinds_left": end.private_kinds,
        "interrupted": end.stopped,
        "error": end.error.as_ref().map(ToString::to_string),
        "compared": end.paged.is_none(),
        "paged_because": end.paged,
        "rounds": totals.rounds,
        "pages": totals.pages,
        "sent_bytes": traffic.0,
        "received_bytes": traffic.1,
        "waits": totals.slowed,
        "seconds": spent.as_secs_f64(),
        "down": {
            "missing": totals.missing_here,
            "received": totals.received,
            "verified": totals.verified,
            "stored": totals.stored,
            "not_stored": reasons(&totals.refused_here),
            "not_sent": totals.not_sent,
            "left_out": totals.not_asked,
            "not_asked_for": totals.unasked,
            "seconds_in_part": totals.unreached,
        },
        "up": {
            "missing": totals.missing_there,
            "sent": totals.sent,
            "taken": totals.taken,
            "settled": totals.settled,
            "refused": reasons(&totals.refused_there),
            "withheld": totals.withheld,
        },
    })
}
