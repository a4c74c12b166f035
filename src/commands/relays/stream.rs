//! `hark stream`: synchronises the archive with some relays until the command is stopped.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use hark_peers::{PeerError, RelayAddress, RelayStream, StreamEnds, StreamOptions, StreamStatus};
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

use super::engine::StreamArchive;
use super::sync::{DirectionArg, queries, reasons};
use super::{LogArgs, RelayArgs};
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::wrong_use::WrongUse;
use crate::{interrupt, when};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark stream wss://relay.example
  hark stream wss://a.example wss://b.example --filter '{\"kinds\":[0,1]}' --dir both
  hark stream ws://10.0.0.2:7777 --dir up --catch-up all

New events are sent at once. The archive and the relay are compared (NIP-77), as far back as
--catch-up, when a connection is made, after an event was missed, and every six hours. A relay that
cannot compare is read page by page: the first time as far back as --catch-up, later as far back as
a day before the archive and the relay were last in step. After a lost connection, the command
connects again, after a growing wait. An event is never sent back to the relay from which it came.

The command runs until Ctrl-C or SIGTERM. It works beside the archive's server, and waits while the
server restarts. If no server runs at the start, the command locks the archive itself, and no server
can start. Checks and bounds are those of `hark sync`; `hark router` runs many streams that a file
defines.

Exit codes: 0 stopped, 1 failed, 2 wrong flags or filter.")]
pub(crate) struct StreamArgs {
    /// The relays: wss://host or ws://host:port
    #[arg(value_name = "URL", required = true)]
    pub(crate) relays: Vec<RelayAddress>,
    /// The events to stream [default: all]
    #[arg(long, value_name = "FILTER")]
    pub(crate) filter: Option<String>,
    /// The direction in which events are sent
    #[arg(long, value_enum, default_value_t = DirectionArg::Down)]
    pub(crate) dir: DirectionArg,
    /// How far back to compare: an age like 12h or 7d, `all`, or 0 for no comparison
    #[arg(long, value_name = "AGE", default_value = "all", value_parser = catch_up)]
    pub(crate) catch_up: CatchUp,
    #[command(flatten)]
    pub(crate) treated: RelayArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// Print a report as JSON at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// How far back the archive and the relay are compared, in seconds. `None` compares all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CatchUp(pub(crate) Option<u64>);

/// Parses the value of `--catch-up`. The error is a text for people.
pub(super) fn catch_up(text: &str) -> Result<CatchUp, String> {
    match text {
        "all" => Ok(CatchUp(None)),
        "0" => Ok(CatchUp(Some(0))),
        age => when::age(age)
            .map(|age_s| CatchUp(Some(age_s)))
            .ok_or_else(|| "give an age like 12h or 7d, `all`, or 0".into()),
    }
}

/// Interval between updates of the progress, and between checks for the end of the run.
const SHOW_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &StreamArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let location = super::events(location)?;
    let filters: Vec<String> = args.filter.iter().cloned().collect();
    let query = queries(&location, &filters)?.into_iter().next();
    let query = query.ok_or_else(|| WrongUse("nothing can match this filter".into()))?;
    let options = StreamOptions {
        direction: args.dir.into(),
        query,
        private_kinds: if args.treated.private {
            Vec::new()
        } else {
            location.config.private_kinds.clone()
        },
        send_protected: args.treated.private,
        catch_up_s: args.catch_up.0,
        events_per_s_max: None,
        plugin_down: None,
        plugin_up: None,
        client: args.treated.client(&location.config)?,
    };
    args.log.start(&location)?;
    let stop = interrupt::flag()?;
    let Some(archive) = StreamArchive::open(&location, &stop)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = runtime()?;
    let started = Instant::now();
    let mut relays = args.relays.clone();
    relays.sort_unstable();
    relays.dedup();
    let streams: Vec<_> =
        relays.into_iter().map(|address| (address, Arc::<StreamStatus>::default())).collect();
    let failed = {
        let local = LocalSet::new();
        let ends = archive.ends.clone();
        let work = watch(&options, ends, &streams, &stop);
        let failed = local.block_on(&runtime, work);
        drop(local);
        failed
    };
    runtime.shutdown_background();
    let written = archive.finish();
    report(args, &streams, started.elapsed())?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    written?;
    Ok(ExitCode::SUCCESS)
}

/// Creates the runtime of streams.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the system does not let Hark open connections")
}

/// Runs the streams until `stop` is set, or the archive fails.
async fn watch(
    options: &StreamOptions,
    ends: StreamEnds,
    streams: &[(RelayAddress, Arc<StreamStatus>)],
    stop: &AtomicBool,
) -> Option<PeerError> {
    let mut running = JoinSet::new();
    for (address, status) in streams {
        let stream = RelayStream {
            address: address.clone(),
            options: options.clone(),
            ends: ends.clone(),
            status: Arc::clone(status),
        };
        running.spawn_local(stream.run());
    }
    drop(ends);
    // Progress is shown only on a terminal. Elsewhere, progress lines would fill the log, which
    // reports the important changes anyway.
    let mut progress = std::io::stderr()
        .is_terminal()
        .then(|| CommandProgress::start("stream", 0, CountedUnit::Records));
    let failed = loop {
        tokio::select! {
            ended = running.join_next() => {
                break ended.map(|ended| {
                    ended.unwrap_or_else(|error| PeerError::Ended(format!("a stream failed: {error}")))
                });
            }
            () = tokio::time::sleep(SHOW_EVERY) => {
                if let Some(progress) = &mut progress {
                    progress.at(0, 0, &words(streams));
                }
            }
        }
        if stop.load(Ordering::Relaxed) {
            break None;
        }
    };
    running.shutdown().await;
    progress.into_iter().for_each(CommandProgress::finish);
    failed
}

fn words(streams: &[(RelayAddress, Arc<StreamStatus>)]) -> String {
    let (mut stored, mut taken) = (0, 0);
    for (_, status) in streams {
        let totals = status.meter.totals();
        (stored, taken) = (stored + totals.stored, taken + totals.taken);
    }
    let connected = streams.iter().filter(|(_, status)| status.is_connected()).count();
    let in_step = streams.iter().filter(|(_, status)| status.is_in_step()).count();
    format!(
        "{connected} of {} connected, {in_step} in step; {} stored, {} taken there",
        streams.len(),
        print::number(stored),
        print::number(taken)
    )
}

fn report(
    args: &StreamArgs,
    streams: &[(RelayAddress, Arc<StreamStatus>)],
    spent: Duration,
) -> anyhow::Result<()> {
    if args.json {
        let relays: Vec<Value> =
            streams.iter().map(|(address, status)| to_json(address, status)).collect();
        let report = json!({ "seconds": spent.as_secs_f64(), "relays": relays });
        return print::line(&report.to_string());
    }
    for (address, status) in streams {
        let totals = status.meter.totals();
        print::line(&format!(
            "{address}: {} stored, {} taken there, {} refused there; connected {}{}",
            print::number(totals.stored),
            print::number(totals.taken),
            print::number(totals.refused_there.total()),
            print::count(status.connections(), "time"),
            status.last_error().map(|error| format!(", last error: {error}")).unwrap_or_default()
        ))?;
    }
    Ok(())
}

fn to_json(address: &RelayAddress, status: &StreamStatus) -> Value {
    let totals = status.meter.totals();
    json!({
        "relay": address.as_str(),
        "connections": status.connections(),
        "last_error": status.last_error(),
        "received": totals.received,
        "stored": totals.stored,
        "not_stored": reasons(&totals.refused_here),
        "sent": totals.sent,
        "taken": totals.taken,
        "settled": totals.settled,
        "refused": reasons(&totals.refused_there),
        "withheld": totals.withheld,
    })
}
