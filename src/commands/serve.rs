//! `hark serve`: opens the archive, runs the server on it, and handles signals.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_archive::clock::Clock;
use hark_archive::mirror::{self, MirroredStore};
use hark_archive::retention::RetentionPolicy;
use hark_archive::{Store, vital};
use hark_server::Server;
use hark_server::control::{ControlClient, Handover, Takeover};
use hark_server::shelf::{self, CompactFn};
use hark_store_embedded::disk::{RealDisk, make_dir};
use hark_store_embedded::{EmbeddedStore, permissions};

use crate::WrongUse;
use crate::commands::maintenance;
use crate::config::{
    Config, LogFormat, LogSettings, NetworkService, NetworkSetup, StoreFacts, listen_address,
    setups,
};
use crate::handover::{ArchiveLock, LockedShelf};
use crate::interrupt::{INTERRUPTED, Signals};
use crate::location::{ArchiveLocation, MirrorLock};
use crate::log::{LogFlags, ServerLog};
use crate::notify;
use crate::print;
use crate::successor;
use crate::waiting;
use crate::watch::ConfigWatch;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark serve
  hark serve --data /var/lib/hark --listen 0.0.0.0:7777
  HARK_INFO_NAME='My relay' hark serve --config hark.toml
  hark serve --log-format json 2>> hark.log
  hark serve --store postgres://hark@localhost/hark

The first line on stdout, `listening on ws://...`, comes once connections are accepted. Logs go to
stderr. SIGTERM or Ctrl-C lets the answers under way finish and closes the archive; a second one
ends at once, which costs nothing that was acknowledged.

SIGUSR2 starts the program again, from the path at which it was started and with the same flags, to
take over from this process: so a service is upgraded once the new program is in place.

With --takeover the new server gets the sockets and the archive of the one that runs, which then
serves the connections it has to their end (at most limits.takeover_drain_s) and exits. If the new
one does not come up, the old one goes on as if nothing had been. For the embedded archive.")]
pub(crate) struct ServeArgs {
    /// Address and port to listen on [default: 127.0.0.1:7777]
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen_address)]
    pub(crate) listen: Option<SocketAddr>,
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

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(args: &ServeArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let log = ServerLog::start(args.log_flags(), &location.config.log).map_err(WrongUse)?;
    let changed = location.config.changes(&Config::default());
    let changed: Vec<_> = changed.into_iter().map(|(change, _)| change).collect();
    tracing::info!(version = VERSION, settings = changed.join("; "), "starting");
    if args.unlimited {
        tracing::warn!(
            "--unlimited: RATE LIMITS ARE OFF. Any client can take all of this machine. For tests \
             and benchmarks only."
        );
    }
    let setups: Vec<_> =
        setups().iter().filter(|setup| (setup.is_served)(&location.config)).collect();
    if location.database.is_none() {
        location.must_be_meant_to_serve()?;
    }
    // `held` is dropped last, so that the stores close before the system releases the lock.
    let (held, taking) = hold(args, location, &setups)?;
    let (mut networks, mut mirrors) = (Vec::new(), Vec::new());
    let mirror_lock = MirrorLock::default();
    for setup in setups {
        let location = location.of(setup.network);
        let addresses = [args.listen.unwrap_or(location.config.listen)];
        let addresses: Vec<_> =
            addresses.into_iter().chain(location.config.metrics.listen).collect();
        let mut opened =
            waiting::for_database(&addresses, || open(&location, held.as_ref(), taking.is_some()))?;
        let shelf = &mut opened.shelf;
        if let Some(mirror) = mirrored(&location, Arc::clone(&shelf.store), &mirror_lock)? {
            shelf.store = Arc::clone(&mirror) as _;
            mirrors.push(mirror);
        }
        let at = StoreFacts {
            data: &location.data,
            database_is_near: opened.database_is_near,
            listen: args.listen,
            unlimited: args.unlimited,
        };
        networks.push((setup.serve)(&location.config, opened.shelf, &at));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the system does not let Hark start its threads")?;
    // Other threads wait for the server, so a panic in it must end the process.
    let serving = serve(args, location, networks, held.clone(), taking, log);
    let code = vital::run("the server", || runtime.block_on(serving))?;
    drop(runtime);
    drop(mirrors);
    drop(held);
    tracing::info!("closed");
    Ok(code)
}

/// Returns the lock of an archive in files, and the takeover from a running server if a takeover
/// was requested.
fn hold(
    args: &ServeArgs,
    location: &ArchiveLocation,
    setups: &[&NetworkSetup],
) -> anyhow::Result<(Option<Arc<ArchiveLock>>, Option<Takeover>)> {
    if location.database.is_some() {
        if args.takeover {
            bail!(
                "there is nothing to take over from: several servers can work on one database. Start \
                 this one beside the other, on another address, and stop that one"
            );
        }
        return Ok((None, None));
    }
    let names: Vec<_> = setups.iter().map(|setup| setup.network.name()).collect();
    let (lock, taking) =
        if args.takeover { location.take_over(&names)? } else { (location.lock()?, None) };
    if let Some(warning) = permissions::warning(&location.data)? {
        tracing::warn!("{warning}");
    }
    Ok((Some(Arc::new(ArchiveLock::new(lock))), taking))
}

/// A shelf opened for writing.
struct Opened {
    shelf: shelf::ShelfOptions,
    /// Whether the shelf's database is on this machine. `None` if the shelf is in files.
    database_is_near: Option<bool>,
}

/// Opens the shelf of `location` in files, with the lock held by this process, or in a database.
fn open(
    location: &ArchiveLocation,
    held: Option<&Arc<ArchiveLock>>,
    is_takeover: bool,
) -> anyhow::Result<Opened> {
    let (mut compact, mut handover) = (None, None);
    let mut database_is_near = None;
    let store: Arc<dyn Store> = if let Some(url) = &location.database {
        let store = location.postgres(url, location.config.postgres.migrate)?;
        let (shelf, database) = (location.network.name(), store.database());
        if store.is_cluster() && location.texts().is_some() {
            bail!(
                "full-text search works on archives in files and on one PostgreSQL server, and the \
                 database is a Citus cluster; set enabled = false in [search]"
            );
        }
        tracing::info!(shelf, database, "the archive is in a database");
        let is_bounded = location.shelf_config().retention.bytes_max.is_some();
        let has_texts = location.texts().is_some();
        // If the index has other texts, this server will index its own texts.
        if has_texts && is_bounded && store.word_progress()?.is_none_or(|at| at.indexed < at.newest)
        {
            tracing::warn!(
                shelf,
                "words are being indexed, and count towards bytes_max of retention: if the archive is \
                 near that bound, its oldest records are deleted; raise it to keep them"
            );
        }
        database_is_near = Some(store.is_near());
        Arc::new(store)
    } else {
        let store = if is_takeover { location.open_released() } else { location.open_store() };
        let store = Arc::new(store.or_else(|error| location.open_refusing(error))?);
        if let Some(reason) = store.refusal() {
            tracing::error!(shelf = location.network.name(), reason, "nothing is stored");
            return Ok(Opened { shelf: refusing(location, store), database_is_near });
        }
        for note in store.notes() {
            tracing::warn!(shelf = location.network.name(), "{note}");
        }
        compact = Some(compaction(&store));
        handover = held.map(|held| {
            let (store, held) = (Arc::clone(&store), Arc::clone(held));
            let records_max = location.config.limits.takeover_records_max;
            Arc::new(LockedShelf { store, held, records_max }) as Arc<dyn Handover>
        });
        store
    };
    let shelf = shelf::ShelfOptions {
        network: location.network,
        store,
        writer: location.config.batch,
        clock: Clock::System,
        retention: location.shelf_config().retention,
        compact,
        handover,
    };
    Ok(Opened { shelf, database_is_near })
}

/// Returns the options of a shelf opened for reading only.
fn refusing(location: &ArchiveLocation, store: Arc<EmbeddedStore>) -> shelf::ShelfOptions {
    shelf::ShelfOptions {
        network: location.network,
        store,
        writer: location.config.batch,
        clock: Clock::System,
        // A read-only shelf cannot delete records.
        retention: RetentionPolicy::default(),
        compact: None,
        handover: None,
    }
}

async fn serve(
    args: &ServeArgs,
    location: &ArchiveLocation,
    networks: Vec<NetworkService>,
    held: Option<Arc<ArchiveLock>>,
    taking: Option<Takeover>,
    log: ServerLog,
) -> anyhow::Result<ExitCode> {
    let settings = &location.config;
    let config = hark_server::ServerConfig {
        proxies: settings.proxies.clone(),
        control: control_socket(location),
        lock: held.map(|held| held as _),
        metrics: settings.metrics.clone(),
        limits: settings.limits.clone(),
        addresses: settings.addresses.clone(),
        spared: settings.spared.clone(),
        slow_question: settings.log.slow_question(),
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
                // The process ends without waiting, as the takeover may be waiting for the disk.
                std::process::exit(INTERRUPTED.into());
            }
        },
        None => Server::bind(config, networks).await.context(
            "the server could not start, and nothing was served. If another program listens on its \
             address, stop it or choose another port; ports below 1024 need the right to use them",
        ),
    }?;
    // The watch ends with the runtime. It starts before the server reports that it is ready, since
    // SIGHUP may be sent from then on.
    let watch = ConfigWatch::new(settings.clone(), server.reload_handle(), reloads, log)?;
    tokio::spawn(hark_server::vital("what reads the configuration again", watch.run()));
    // From here on SIGUSR2 does not end the process.
    let successor_signal = successor::signal()?;
    let addresses = server.addresses();
    let metrics = server.metrics_addr().map(tracing::field::display);
    let at: Vec<_> = addresses.iter().map(|reached| reached.at.as_str()).collect();
    tracing::info!(at = at.join(", "), metrics, data = %location.data.display(), "serving");
    let printed = addresses.iter().try_for_each(|reached| print::line(&reached.to_string()));
    if let Err(error) = printed {
        tracing::warn!(%error, "the addresses stand in this log alone");
    }
    notify::ready(&at.join(", "), has_taken_over);
    tokio::spawn(successor::start_on_signal(successor_signal));
    tokio::spawn(notify::signs_of_life());
    let stop = async {
        signals.next().await;
        tracing::info!("asked to end; a second signal ends at once");
        notify::stopping();
        tokio::spawn(async move {
            signals.next().await;
            tracing::warn!(
                "asked a second time to end, so this ends at once; what was acknowledged is safe"
            );
            std::process::exit(INTERRUPTED.into());
        });
    };
    server.run(stop).await.context(
        "the server ended by itself; what was acknowledged is safe. The log above says more",
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of this server's control socket. Returns `None` for a server on a database if
/// another server already has the socket, since servers of a database may share a data directory.
/// An archive in files has only one server, because of its lock.
fn control_socket(location: &ArchiveLocation) -> Option<PathBuf> {
    let path = location.control_socket();
    if location.database.is_none() {
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

fn compaction(store: &Arc<EmbeddedStore>) -> CompactFn {
    let store = Arc::clone(store);
    Arc::new(move |words| {
        store
            .compact(&mut |progress| {
                words(&format!("{} {} of {}", progress.what, progress.done, progress.total));
            })
            .map(|done| maintenance::summary(&done))
            .map_err(|error| error.to_string())
    })
}
