//! `hark router`: runs the streams that a file defines. The file is read again when it changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use hark_peers::{PeerError, RelayAddress, RelayStream, StreamEnds, StreamStatus};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{AbortHandle, JoinSet, LocalSet};

use super::engine::StreamArchive;
use super::plan::{PlannedStream, RouterPlan, StreamTerms};
use super::router_metrics::{self, SharedStatuses};
use super::stream::runtime;
use super::{LogArgs, RelayRules};
use crate::config::{Config, FileState, FileWatch};
use crate::location::ArchiveLocation;
use crate::program::failure_code;
use crate::stores::address_forms;
use crate::{interrupt, notify, print};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark router router.toml
  hark router router.toml --check
  hark router router.toml --check --json

A file of streams:
  metrics = \"127.0.0.1:9464\"            # address of /metrics; default: none

  [streams.friends]
  dir = \"both\"                          # down, up or both; default: down
  urls = [\"wss://a.example\", \"wss://b.example\"]
  filter = { kinds = [0, 1], authors = [\"npub1…\"] }
  catch_up = \"all\"                      # how far back to compare: 12h, 7d, all, or 0
  events_per_s_max = 500                # accepted from a relay; default: no bound
  timeout_s = 30
  key_file = \"relay.key\"                # answers AUTH
  private = false                       # whether private events are sent
  plugin_down = \"./policy.py\"           # decides which events are received (a plugin of strfry)
  plugin_up = \"./policy.py\"             # decides which events are sent

Each stream works like `hark stream`. The file is read again when it changes: removed streams end,
new and changed streams begin, and all other streams continue. Changes of the key files, and of
[limits], [policy] and [privacy] in the configuration, take effect in the same way. If the file has
faults, nothing changes, and the log gives the reason. Start the archive's server before the router.
While the server restarts, the router waits.

With --json, the object of --check has the `file`, its `streams` and its `faults`. The exit code is the same.

Exit codes: 0 stopped, 1 failed, 2 wrong flags or file.")]
pub(crate) struct RouterArgs {
    /// The file of streams
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only check the file, and list its streams
    #[arg(long)]
    pub(crate) check: bool,
    /// Print the result of --check as one JSON object
    #[arg(long, requires = "check")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Interval between checks for changed files and for the end of the run.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The sections of the configuration whose changes take effect at once.
const APPLIED: [&str; 3] = ["limits.", "policy.", "privacy."];

pub(crate) fn run(args: &RouterArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let location = super::events(location)?;
    let mut files = Vec::new();
    let plan = RouterPlan::read(&args.file, &mut files).and_then(|plan| {
        let streams = plan.planned(&args.file, &location)?;
        Ok((plan, streams))
    });
    if args.check {
        return check(args, &location, plan.map(|(_, streams)| streams));
    }
    let (plan, streams) = plan?;
    args.log.start(&location)?;
    let stop = interrupt::flag()?;
    let Some(archive) = StreamArchive::open(&location, &stop)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = runtime()?;
    let failed = {
        let local = LocalSet::new();
        let router = Router {
            args,
            location,
            ends: archive.ends.clone(),
            rules: archive.rules.clone(),
            running: JoinSet::new(),
            streams: BTreeMap::new(),
            statuses: Arc::default(),
        };
        local.block_on(&runtime, router.run((plan, files), streams, &stop))
    };
    runtime.shutdown_background();
    let written = archive.finish();
    if let Some(error) = failed? {
        return Err(error.into());
    }
    written?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Prints the streams of the file. With --json, also prints the fault of an unusable file.
fn check(
    args: &RouterArgs,
    location: &ArchiveLocation,
    streams: anyhow::Result<Vec<PlannedStream>>,
) -> anyhow::Result<ExitCode> {
    let file = args.file.display().to_string();
    let described = |PlannedStream { options, .. }: &PlannedStream| {
        let direction = format!("{:?}", options.direction).to_lowercase();
        (direction, location.network.filters().text(&options.query))
    };
    if !args.json {
        for stream in streams? {
            let (direction, filter) = described(&stream);
            let (name, url) = stream.key;
            print::line(&format!("{name}: {direction} {url} {filter}"))?;
        }
        print::line(&format!("{file} can be used"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut listed, mut faults, mut code) = (Vec::new(), Vec::new(), ExitCode::SUCCESS);
    match streams {
        Ok(streams) => {
            for stream in streams {
                let (direction, filter) = described(&stream);
                let (name, url, filter) = (
                    stream.key.0,
                    stream.key.1.to_string(),
                    serde_json::from_str::<Value>(&filter)?,
                );
                listed
                    .push(json!({ "name": name, "dir": direction, "url": url, "filter": filter }));
            }
        }
        Err(error) => {
            faults.push(format!("{error:#}"));
            code = failure_code(&error);
        }
    }
    print::line(&json!({ "file": file, "streams": listed, "faults": faults }).to_string())?;
    Ok(code)
}

/// The router with its running streams.
struct Router<'a> {
    args: &'a RouterArgs,
    /// The location, with the configuration in force.
    location: ArchiveLocation,
    ends: StreamEnds,
    rules: RelayRules,
    running: JoinSet<PeerError>,
    streams: BTreeMap<(String, RelayAddress), (StreamTerms, AbortHandle)>,
    statuses: SharedStatuses,
}

impl Router<'_> {
    /// Runs until `stop` is set or the archive fails. Returns an error if the archive fails.
    async fn run(
        mut self,
        (mut plan, mut files): (RouterPlan, Vec<FileState>),
        streams: Vec<PlannedStream>,
        stop: &AtomicBool,
    ) -> anyhow::Result<Option<PeerError>> {
        if let Some(address) = plan.metrics {
            let listener = TcpListener::bind(address).await;
            let listener =
                listener.with_context(|| format!("metrics cannot be served on {address}"))?;
            tracing::info!(%address, "metrics are served");
            tokio::spawn(router_metrics::serve(listener, Arc::clone(&self.statuses)));
        }
        self.apply(streams);
        notify::working(&format!("{} streams", self.streams.len()));
        let mut hangup = signal(SignalKind::hangup())
            .context("the system does not let Hark listen for signals")?;
        files.extend(self.location.config.files.iter().cloned());
        let mut files = FileWatch::new(files);
        let failed = loop {
            tokio::select! {
                _ = hangup.recv() => files.ask(Instant::now()),
                Some(ended) = self.running.join_next() => match ended {
                    Ok(error) => break Some(error),
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => break Some(PeerError::Ended(format!("a stream failed: {error}"))),
                },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if stop.load(Ordering::Relaxed) {
                break None;
            }
            if !files.is_due(Instant::now()) {
                continue;
            }
            let mut read = Vec::new();
            match self.read_again(&plan, &files, &mut read) {
                Ok(None) => continue,
                Ok(Some(new)) => plan = new,
                Err(error) => {
                    tracing::error!("the new files are not used; nothing was changed: {error:#}");
                }
            }
            files.was_read(read);
        };
        notify::stopping();
        self.running.shutdown().await;
        Ok(failed)
    }

    /// Reads the configuration and the file again, and puts both in force, unless a process may
    /// still be writing the files. Adds the files that were read to `files`.
    fn read_again(
        &mut self,
        before: &RouterPlan,
        watch: &FileWatch,
        files: &mut Vec<FileState>,
    ) -> anyhow::Result<Option<RouterPlan>> {
        let config = Config::load(self.location.config.file.as_deref(), &address_forms()).map_err(
            |faults| {
                files.extend([FileState::new(self.args.file.clone())]);
                files.extend(faults.files.iter().cloned());
                anyhow::anyhow!(faults.list())
            },
        )?;
        if watch.must_wait(&config, &self.location.config, Instant::now()) {
            return Ok(None);
        }
        files.extend(config.files.iter().cloned());
        if let Some(reason) = config.lost(&self.location.config) {
            files.push(FileState::new(self.args.file.clone()));
            anyhow::bail!(reason);
        }
        let mut location = self.location.of(self.location.network);
        location.config = config;
        let plan = RouterPlan::read(&self.args.file, files)?;
        let streams = plan.planned(&self.args.file, &location)?;
        if plan.metrics != before.metrics {
            tracing::warn!("the address of the metrics changes with a restart only");
        }
        for (change, _) in location.config.changes(&self.location.config) {
            if APPLIED.iter().any(|section| change.starts_with(section)) {
                tracing::info!("now {change}");
            }
        }
        self.rules.set(&location.config);
        self.location = location;
        self.apply(streams);
        Ok(Some(RouterPlan { metrics: before.metrics, ..plan }))
    }

    /// Ends streams that are no longer wanted, and starts new and changed streams.
    fn apply(&mut self, wanted: Vec<PlannedStream>) {
        let (mut ended, mut begun) = (0, 0);
        self.streams.retain(|key, (terms, handle)| {
            let stays = wanted.iter().any(|stream| stream.key == *key && stream.terms == *terms);
            if !stays {
                handle.abort();
                self.statuses.lock().remove(key);
                ended += 1;
            }
            stays
        });
        for PlannedStream { key, terms, options } in wanted {
            if self.streams.contains_key(&key) {
                continue;
            }
            let status = Arc::<StreamStatus>::default();
            self.statuses.lock().insert(key.clone(), Arc::clone(&status));
            let stream =
                RelayStream { address: key.1.clone(), options, ends: self.ends.clone(), status };
            let handle = self.running.spawn_local(stream.run());
            self.streams.insert(key, (terms, handle));
            begun += 1;
        }
        tracing::info!(streams = self.streams.len(), begun, ended, "the file is in force");
    }
}
