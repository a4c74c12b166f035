//! `hark serve`: opens the archive, runs the server on it, and handles signals.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_archive::clock::Clock;
use hark_archive::mirror::{self, Mirrored};
use hark_archive::{Store, vital};
use hark_server::Server;
use hark_server::control::{Handover, Taking};
use hark_server::shelf::{self, Compact};
use hark_store_embedded::{Embedded, permissions};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::commands::reload::Watch;
use crate::commands::upkeep;
use crate::config::{Config, Log, LogFormat, Room, Served, StoreIs, rooms};
use crate::handover::{Held, HeldShelf};
use crate::interrupt::{INTERRUPTED, Signals};
use crate::notify;
use crate::place::{MirrorLock, Place};
use crate::print;

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

With --takeover the new server gets the sockets and the archive of the one that runs, which then
serves the connections it has to their end (at most limits.takeover_drain_s) and exits. If the new
one does not come up, the old one goes on as if nothing had been. For the embedded archive.")]
pub(crate) struct ServeArgs {
    /// Address and port to listen on [default: 127.0.0.1:7777]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Take over from the server that runs on this archive, without dropping a connection
    #[arg(long)]
    pub(crate) takeover: bool,
    /// What is logged: error, warn, info, debug, trace, or a filter [default: log.level, info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// The format of the log [default: log.format, text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Turn rate limits off, for tests and benchmarks only
    #[arg(long)]
    pub(crate) unlimited: bool,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(args: &ServeArgs, place: &Place) -> anyhow::Result<ExitCode> {
    start_log(args, &place.config.log)?;
    let changed = place.config.changes(&Config::default());
    let changed: Vec<_> = changed.into_iter().map(|(change, _)| change).collect();
    tracing::info!(version = VERSION, settings = changed.join("; "), "starting");
    if args.unlimited {
        tracing::warn!(
            "--unlimited: RATE LIMITS ARE OFF. Any client can take all of this machine. For tests \
             and benchmarks only."
        );
    }
    let rooms: Vec<_> = rooms().iter().filter(|room| (room.is_served)(&place.config)).collect();
    // `held` is dropped last, so that the stores close before the system releases the lock.
    let (held, taking) = hold(args, place, &rooms)?;
    let (mut networks, mut mirrors) = (Vec::new(), Vec::new());
    let mirror_lock = MirrorLock::default();
    for room in rooms {
        let place = place.of(room.network);
        let mut opened = open(&place, held.as_ref(), taking.is_some())?;
        let shelf = &mut opened.shelf;
        if let Some(mirror) = mirrored(&place, Arc::clone(&shelf.store), &mirror_lock)? {
            shelf.store = Arc::clone(&mirror) as _;
            mirrors.push(mirror);
        }
        let at = StoreIs {
            data: &place.data,
            database_is_near: opened.database_is_near,
            listen: args.listen,
            unlimited: args.unlimited,
        };
        networks.push((room.serve)(&place.config, opened.shelf, &at));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the system does not let Hark start its threads")?;
    // Other threads wait for the server, so a panic in it must end the process.
    let serving = serve(args, place, networks, held.clone(), taking);
    let code = vital::run("the server", || runtime.block_on(serving))?;
    drop(runtime);
    drop(mirrors);
    drop(held);
    tracing::info!("closed");
    Ok(code)
}

/// Returns the lock of an archive in files, and the takeover from a running server, if one begins.
fn hold(
    args: &ServeArgs,
    place: &Place,
    rooms: &[&Room],
) -> anyhow::Result<(Option<Arc<Held>>, Option<Taking>)> {
    if place.database.is_some() {
        if args.takeover {
            bail!(
                "there is nothing to take over from: several servers can work on one database. Start \
                 this one beside the other, on another address, and stop that one"
            );
        }
        return Ok((None, None));
    }
    let names: Vec<_> = rooms.iter().map(|room| room.network.name()).collect();
    let (lock, taking) =
        if args.takeover { place.take_over(&names)? } else { (place.lock()?, None) };
    if let Some(warning) = permissions::warning(&place.data)? {
        tracing::warn!("{warning}");
    }
    Ok((Some(Arc::new(Held::new(lock))), taking))
}

/// A shelf that is open for writing.
struct Opened {
    shelf: shelf::Options,
    /// Whether the shelf's database is on this machine. `None` if the shelf is in files.
    database_is_near: Option<bool>,
}

/// Opens the shelf of `place`: in files, whose lock this process holds, or in a database.
fn open(place: &Place, held: Option<&Arc<Held>>, is_takeover: bool) -> anyhow::Result<Opened> {
    let (mut compact, mut handover) = (None, None);
    let mut database_is_near = None;
    let store: Arc<dyn Store> = if let Some(url) = &place.database {
        let store = place.postgres(url, place.config.postgres.migrate)?;
        let (shelf, database) = (place.network.name(), store.database());
        tracing::info!(shelf, database, "the archive is in a database");
        database_is_near = Some(store.is_near());
        Arc::new(store)
    } else {
        let store = if is_takeover { place.open_released() } else { place.open_store() };
        let store = Arc::new(store?);
        for note in store.notes() {
            tracing::warn!(shelf = place.network.name(), "{note}");
        }
        compact = Some(compaction(&store));
        handover = held.map(|held| {
            let (store, held) = (Arc::clone(&store), Arc::clone(held));
            let records_max = place.config.limits.takeover_records_max;
            Arc::new(HeldShelf { store, held, records_max }) as Arc<dyn Handover>
        });
        store
    };
    let shelf = shelf::Options {
        network: place.network,
        store,
        writer: place.config.batch,
        clock: Clock::System,
        retention: place.shelf_config().retention,
        compact,
        handover,
    };
    Ok(Opened { shelf, database_is_near })
}

async fn serve(
    args: &ServeArgs,
    place: &Place,
    networks: Vec<Served>,
    held: Option<Arc<Held>>,
    taking: Option<Taking>,
) -> anyhow::Result<ExitCode> {
    let settings = &place.config;
    let config = hark_server::Config {
        proxies: settings.proxies.clone(),
        control: place.database.is_none().then(|| place.control_socket()),
        lock: held.map(|held| held as _),
        metrics: settings.metrics.clone(),
        limits: settings.limits.clone(),
        addresses: settings.addresses.clone(),
        unlimited: args.unlimited,
    };
    let (networks, reloads): (Vec<_>, Vec<_>) =
        networks.into_iter().map(|served| (served.network, served.reload)).unzip();
    let mut signals = Signals::new()?;
    let server = match taking {
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
    let watch = Watch::new(settings.clone(), server.reload(), reloads)?;
    tokio::spawn(hark_server::vital("what reads the configuration again", watch.run()));
    let addresses = server.addresses();
    let metrics = server.metrics_addr().map(tracing::field::display);
    let at: Vec<_> = addresses.iter().map(|reached| reached.at.as_str()).collect();
    tracing::info!(at = at.join(", "), metrics, data = %place.data.display(), "serving");
    for (at, reached) in addresses.iter().enumerate() {
        let printed = print::line(&reached.to_string());
        // After the first line, the reader of the output may close its end.
        if at == 0 {
            printed?;
        }
    }
    notify::ready(&at.join(", "));
    tokio::spawn(notify::signs_of_life());
    let stop = async {
        signals.next().await;
        tracing::info!("asked to end; a second signal ends at once");
        notify::stopping();
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(INTERRUPTED.into());
        });
    };
    server.run(stop).await.context(
        "the server ended by itself; what was acknowledged is safe. The log above says more",
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Mirrors `store` to a second store, if the configuration names one.
fn mirrored(
    place: &Place,
    store: Arc<dyn Store>,
    lock: &MirrorLock,
) -> anyhow::Result<Option<Arc<Mirrored>>> {
    let Some(address) = &place.config.mirror.store else { return Ok(None) };
    let second = place.mirror(address.secret(), lock)?;
    let queue_bytes_max = place.config.mirror.queue_bytes_max;
    let options = mirror::Options { queue_bytes_max, ..mirror::Options::default() };
    let shelf = place.network.name();
    let tell = Box::new(move |words: &str| tracing::info!(shelf, "{words}"));
    Ok(Some(Arc::new(Mirrored::start(store, second, options, tell))))
}

fn compaction(store: &Arc<Embedded>) -> Compact {
    let store = Arc::clone(store);
    Arc::new(move |words| {
        store
            .compact(&mut |progress| {
                words(&format!("{} {} of {}", progress.what, progress.done, progress.total));
            })
            .map(|done| upkeep::summary(&done))
            .map_err(|error| error.to_string())
    })
}

/// Starts the log on stderr, since stdout is for programs.
fn start_log(args: &ServeArgs, log: &Log) -> anyhow::Result<()> {
    let level = args.log_level.as_ref().unwrap_or(&log.level);
    let wanted: Targets = level
        .parse()
        .with_context(|| format!("--log-level {level} is neither a level nor a filter"))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry();
    match args.log_format.unwrap_or(log.format) {
        LogFormat::Json => {
            registry.with(lines.json().flatten_event(true).with_filter(wanted)).init();
        }
        LogFormat::Text => {
            use std::io::IsTerminal as _;
            let colours = std::io::stderr().is_terminal();
            registry.with(lines.with_ansi(colours).with_filter(wanted)).init();
        }
    }
    Ok(())
}
