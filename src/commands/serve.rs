//! `hark serve`: opens the archive, runs the server on it, and handles signals.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use hark_archive::clock::Clock;
use hark_archive::mirror::{self, MirroredStore};
use hark_archive::retention::RetentionPolicy;
use hark_archive::{Store, vital};
use hark_networks::Network as _;
use hark_server::control::{ControlClient, Takeover, TakeoverLock};
use hark_server::moderation::{Moderation, ModerationNetwork};
use hark_server::{ListenAddress, ServeError, Server, shelf};
use hark_store_embedded::disk::{RealDisk, make_dir};

use crate::config::{Config, DoorFacts, LogFormat, LogSettings, NetworkService, setups};
use crate::interrupt::{INTERRUPTED, Signals};
use crate::location::{ArchiveLocation, MirrorLock};
use crate::log::{LogFlags, ServerLog};
use crate::notify;
use crate::print;
use crate::program::VERSION;
use crate::stores::ServedShelf;
use crate::successor;
use crate::waiting;
use crate::watch::ConfigWatch;
use crate::wrong_use::WrongUse;

/// Interval between two attempts to open the shelf of the bans after a start without this shelf.
const LOOK_FOR_BANS: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark serve
  hark serve --data /var/lib/hark --listen 0.0.0.0:7777
  HARK_INFO_NAME='My relay' hark serve --config hark.toml
  hark serve --log-format json 2>> hark.log
  hark serve --store postgres://hark@localhost/hark

The first line on stdout, `listening on ws://...`, is printed once connections are accepted. The log
goes to stderr. After SIGTERM or Ctrl-C, the server finishes the answers in progress and closes the
archive. After a second signal the server ends at once; no acknowledged event is lost.

On SIGUSR2, the server starts the program at its own path with the same flags, and the new process
takes over from the server. To upgrade a service, put the new program in place and send SIGUSR2.

With --takeover, the new server gets the sockets and the archive of the running server. The running
server then serves its open connections until they end (at most limits.takeover_drain_s), and exits.
If the new server fails to start, the old server continues as before. --takeover works only for an
archive in files.")]
pub(crate) struct ServeArgs {
    /// Address and port to listen on, several separated by commas [default: 127.0.0.1:7777]
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',')]
    pub(crate) listen: Vec<ListenAddress>,
    /// Take over from the running server of this archive, without dropping a connection
    #[arg(long)]
    pub(crate) takeover: bool,
    /// The level of the log (error, warn, info, debug or trace), or a filter [default: log.level,
    /// info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// The format of the log [default: log.format, text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Turn rate limits off, for tests and benchmarks only
    #[arg(long)]
    pub(crate) unlimited: bool,
}

impl ServeArgs {
    fn log_flags(&self) -> LogFlags {
        LogFlags { level: self.log_level.clone(), format: self.log_format }
    }

    /// Starts the log for the faults of an unusable configuration, if a flag selects JSON. A
    /// program that reads the JSON log accepts no other lines.
    pub(crate) fn log_faults(&self) {
        if self.log_format == Some(LogFormat::Json) {
            // If the level is invalid as well, the faults are printed instead.
            let _ = ServerLog::start(self.log_flags(), &LogSettings::default());
        }
    }
}

pub(crate) fn run(args: &ServeArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let log = ServerLog::start(args.log_flags(), &location.config.log).map_err(WrongUse)?;
    let changed = location.config.changes(&Config::default());
    let changed: Vec<_> = changed.into_iter().map(|(change, _)| change).collect();
    tracing::info!(version = VERSION, settings = changed.join("; "), "starting");
    if args.unlimited {
        tracing::warn!(
            "--unlimited: RATE LIMITS ARE OFF. Any client can use up this machine. For tests and \
             benchmarks only."
        );
    }
    let setups: Vec<_> =
        setups().iter().filter(|setup| (setup.is_served)(&location.config)).collect();
    if location.facts().is_in_directory {
        location.must_be_meant_to_serve()?;
    } else {
        for unused in location.config.unused_without_files() {
            tracing::warn!("{unused}");
        }
    }
    let names: Vec<_> = setups.iter().map(|setup| setup.network.name()).collect();
    // `served` is dropped last, so that the stores close before the system releases the lock.
    let mut served = Arc::clone(&location.store).serve(args.takeover.then_some(&names[..]))?;
    let (mut networks, mut mirrors, mut lacks_bans) = (Vec::new(), Vec::new(), None);
    let mirror_lock = MirrorLock::default();
    for setup in setups {
        let location = location.of(setup.network);
        let metrics = location.config.metrics.listen.map(ListenAddress::Ip);
        let relay = if args.listen.is_empty() { &location.config.listen } else { &args.listen };
        let addresses: Vec<_> = relay.iter().cloned().chain(metrics).collect();
        let is_away = |error: &anyhow::Error| location.store.is_away(error);
        let opened =
            waiting::for_database(&addresses, is_away, || (served.open)(&location.place()));
        let is_of_bans = setup.network.name() == ModerationNetwork.name();
        let opened = match opened {
            // A database that this server may only read has no bans until another server makes
            // their tables. A full disk has no room for the shelf.
            Err(error) if is_of_bans && location.store.lacks(&location.place(), &error) => {
                tracing::warn!("this server keeps no bans: {error:#}");
                lacks_bans = Some(location);
                continue;
            }
            opened => opened?,
        };
        let at = DoorFacts {
            data: &location.data,
            store: location.facts().name,
            store_at: opened.at,
            listen: &args.listen,
            unlimited: args.unlimited,
        };
        let mut shelf = shelf_options(&location, opened);
        if let Some(mirror) = mirrored(&location, Arc::clone(&shelf.store), &mirror_lock)? {
            shelf.store = Arc::clone(&mirror) as _;
            mirrors.push(mirror);
        }
        networks.push((setup.serve)(&location.config, shelf, &at));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the system does not let Hark start its threads")?;
    let taking = (served.lock.clone(), served.taking.take());
    let serving = serve(args, location, networks, taking, lacks_bans, log);
    // The box hides the type of the future, so the compiler generates the server's code once, and
    // not in each function of the runtime that polls a future.
    let serving: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(serving);
    // Other threads wait for the server, so a panic of the server must end the process.
    let code = vital::run("the server", || runtime.block_on(serving))?;
    drop(runtime);
    drop(mirrors);
    drop(served);
    tracing::info!("closed");
    Ok(code)
}

/// Returns the options of an opened shelf. A shelf that refuses all writes gets no retention, since
/// it cannot delete records.
fn shelf_options(location: &ArchiveLocation, opened: ServedShelf) -> shelf::ShelfOptions {
    let retention = if opened.refuses_writes {
        RetentionPolicy::default()
    } else {
        location.shelf_config().retention
    };
    shelf::ShelfOptions {
        network: location.network,
        store: opened.store,
        writer: location.config.batch,
        clock: Clock::System,
        retention,
        compact: opened.compact,
        handover: opened.handover,
    }
}

async fn serve(
    args: &ServeArgs,
    location: &ArchiveLocation,
    networks: Vec<NetworkService>,
    (lock, taking): (Option<Arc<dyn TakeoverLock>>, Option<Takeover>),
    lacks_bans: Option<ArchiveLocation>,
    log: ServerLog,
) -> anyhow::Result<ExitCode> {
    let settings = &location.config;
    let config = hark_server::ServerConfig {
        version: Some(VERSION),
        proxies: settings.proxies.clone(),
        control: control_socket(location),
        lock,
        metrics: settings.metrics.clone(),
        tls: settings.tls_options(&location.data),
        limits: settings.limits.clone(),
        addresses: settings.addresses.clone(),
        rate_groups: settings.rate_groups(),
        slow_question: settings.log.slow_question(),
        refusals_from: settings.log.refusals_from,
        addresses_shown: settings.log.addresses,
        mirror_stuck_after: settings.mirror.stuck_after(),
        unlimited: args.unlimited,
    };
    let (networks, reloads): (Vec<_>, Vec<_>) =
        networks.into_iter().map(|served| (served.network, served.reload)).unzip();
    let mut signals = Signals::new()?;
    let has_taken_over = taking.is_some();
    let mut server = match taking {
        Some(taking) => tokio::select! {
            server = Server::take_over(config, networks, taking) => {
                server.context("the running server was not taken over, and continues")
            }
            () = signals.next() => {
                tracing::info!("asked to end before it has taken over");
                // The process ends at once, since the takeover may be waiting for the disk.
                std::process::exit(INTERRUPTED.into());
            }
        },
        None => Server::bind(config, networks).await.map_err(|error| {
            let advice = match error {
                ServeError::Listen { .. } => {
                    ". If another program listens on its address, stop it or choose another port; \
                     ports below 1024 need the right to use them"
                }
                _ => "",
            };
            let told = format!("the server could not start, and nothing was served{advice}");
            anyhow::Error::new(error).context(told)
        }),
    }?;
    // The watch ends with the runtime. The watch starts before the server reports that it is ready,
    // since SIGHUP may be sent from then on.
    let takeover = server.takeover_state();
    let handles = (server.reload_handle(), takeover.clone());
    let watch = ConfigWatch::new(settings.clone(), handles, reloads, log)?;
    tokio::spawn(hark_server::vital("the reload of the configuration", watch.run()));
    // From here on SIGUSR2 does not end the process.
    let successor_signal = successor::signal()?;
    if let Some(location) = lacks_bans {
        let moderation = server.moderation().clone();
        moderation.note_lack();
        // An archive in files gets the shelf at the next start: a later server could not take over
        // a shelf that is opened only now.
        if !location.facts().is_in_directory {
            let late = open_late(location, moderation);
            tokio::spawn(hark_server::vital("the wait for the shelf of the bans", late));
        }
    }
    let addresses = server.addresses();
    let metrics = server.metrics_addr().map(tracing::field::display);
    let at: Vec<_> = addresses.iter().map(|reached| reached.at.as_str()).collect();
    tracing::info!(at = at.join(", "), metrics, data = %location.data.display(), "serving");
    let printed = addresses.iter().try_for_each(|reached| print::row(&reached.to_string()));
    if let Err(error) = printed {
        tracing::warn!(%error, "only this log shows the addresses");
    }
    notify::ready(&at.join(", "), has_taken_over);
    tokio::spawn(successor::start_on_signal(successor_signal));
    tokio::spawn(notify::signs_of_life(takeover.clone()));
    let stop = async {
        signals.next().await;
        tracing::info!("asked to end; a second signal ends at once");
        // After a takeover, the service is the new process, and does not stop.
        if !takeover.is_superseded() {
            notify::stopping();
        }
        tokio::spawn(async move {
            signals.next().await;
            tracing::warn!(
                "asked a second time to end, so the server ends at once; all acknowledged records \
                 are safe"
            );
            std::process::exit(INTERRUPTED.into());
        });
    };
    server.run(stop).await.context(
        "the server ended by itself; acknowledged events are safe. The log above has the reason",
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the shelf of the bans once the database has its tables.
async fn open_late(location: ArchiveLocation, moderation: Moderation) {
    let location = Arc::new(location);
    loop {
        tokio::time::sleep(LOOK_FOR_BANS).await;
        let (location, moderation) = (Arc::clone(&location), moderation.clone());
        let opening = tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
            let store = location.store.open(&location.place())?;
            let options = shelf::ShelfOptions {
                network: location.network,
                store,
                writer: location.config.batch,
                clock: Clock::System,
                retention: location.shelf_config().retention,
                compact: None,
                handover: None,
            };
            Ok(moderation.open_late(options)?)
        });
        match opening.await {
            Ok(Ok(())) => {
                return tracing::info!("the archive has bans by now, and they are in force");
            }
            Ok(Err(error)) => tracing::debug!("this server still keeps no bans: {error:#}"),
            Err(error) => tracing::warn!(%error, "the shelf of the bans could not be opened"),
        }
    }
}

/// Returns the path of this server's control socket. Returns `None` for a server on a database if
/// another server already has the socket, since servers of a database may share a data directory.
/// An archive in files has only one server, because of its lock.
fn control_socket(location: &ArchiveLocation) -> Option<PathBuf> {
    let path = location.control_socket();
    if location.facts().is_in_directory {
        return Some(path);
    }
    if let Err(error) = make_dir(&RealDisk, &location.data) {
        let data = location.data.display();
        tracing::warn!(
            %error,
            "the data directory {data} cannot be made, so `hark stats` and `hark reload` do not reach \
             this server; name a writable one with --data"
        );
        return None;
    }
    if ControlClient::connect(&path, location.network.name()).is_ok() {
        let path = path.display();
        tracing::warn!(
            "another server answers on {path}: `hark stats` and `hark reload` reach that one. Give \
             each server a data directory of its own (--data)"
        );
        return None;
    }
    Some(path)
}

/// Mirrors `store` to the second store of the configuration; `None` without a second store.
fn mirrored(
    location: &ArchiveLocation,
    store: Arc<dyn Store>,
    lock: &MirrorLock,
) -> anyhow::Result<Option<Arc<MirroredStore>>> {
    let Some(address) = &location.config.mirror.store else { return Ok(None) };
    let second = location.mirror(address.secret(), lock)?;
    let queue_bytes_max = location.config.mirror.queue_bytes_max;
    let options = mirror::MirrorOptions { queue_bytes_max, ..mirror::MirrorOptions::default() };
    let shelf = location.network.name();
    let report = Box::new(move |words: &str| tracing::info!(shelf, "{words}"));
    Ok(Some(Arc::new(MirroredStore::start(store, second, options, report))))
}
