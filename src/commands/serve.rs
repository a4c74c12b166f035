//! `hark serve`: the archive, the server on it, and signals between them.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hark_archive::clock::Clock;
use hark_archive::mirror::{self, Mirrored};
use hark_archive::{Store, vital};
use hark_server::control::Taking;
use hark_server::waku::{Node, StoreAt};
use hark_server::{Compact, Server, Shelf};
use hark_store_embedded::{Embedded, private};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::cli::ServeArgs;
use crate::commands::reload::Watch;
use crate::commands::upkeep;
use crate::config::{Config, Log, LogFormat};
use crate::handover::Held;
use crate::interrupt::{INTERRUPTED, Signals};
use crate::notify;
use crate::place::{Owned, Place};
use crate::print;

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
    // Last to go: the store closes before the system takes the lock back.
    let (held, shelf, taking) = open(args, place)?;
    let waku = open_waku(args, place)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the system does not let Hark start its threads")?;
    let (shelf, mirror) = mirrored(place, shelf)?;
    // Whatever ends here is waited for by threads that wait for it.
    let serving = serve(args, place, (shelf, waku), taking);
    let code = vital::run("the server", || runtime.block_on(serving))?;
    drop(runtime);
    drop(mirror);
    drop(held);
    tracing::info!("closed");
    Ok(code)
}

/// A Waku node that is to be served.
type Waku = (hark_server::waku::Config, Shelf);

/// What is to be served, and what holds it.
fn open(
    args: &ServeArgs,
    place: &Place,
) -> anyhow::Result<(Option<Arc<Held>>, Shelf, Option<Taking>)> {
    let (writer, clock) = (place.config.batch, Clock::System);
    if args.takeover && place.config.waku.serve {
        bail!(
            "a server with a Waku node can not be taken over yet, and goes on. Stop it first, or set \
             [waku] serve = false"
        )
    }
    if let Some(url) = &place.database {
        if args.takeover {
            bail!(
                "there is nothing to take over from: several servers can work on one database. Start \
                 this one beside the other, on another address, and stop that one"
            );
        }
        let store = Arc::new(place.postgres(url, place.config.postgres.migrate)?);
        tracing::info!(database = store.database(), "the archive is in a database");
        return Ok((None, Shelf { store, writer, clock, compact: None, handover: None }, None));
    }
    let (Owned { store, lock }, taking) =
        if args.takeover { place.take_over()? } else { (place.own()?, None) };
    for note in store.notes() {
        tracing::warn!("{note}");
    }
    if let Some(warning) = private::warning(&place.data)? {
        tracing::warn!("{warning}");
    }
    let records_max = place.config.limits.takeover_records_max;
    let held = Arc::new(Held::new(Arc::clone(&store), lock, records_max));
    let (compact, handover) = (Some(compact(&store)), Some(Arc::clone(&held) as _));
    Ok((Some(held), Shelf { store, writer, clock, compact, handover }, taking))
}

/// Waku's shelf and what to do with it, if there is to be a node. The archive's lock must be held.
fn open_waku(args: &ServeArgs, place: &Place) -> anyhow::Result<Option<Waku>> {
    let Some(mut config) = place.config.waku(&place.data) else { return Ok(None) };
    #[cfg(feature = "libp2p")]
    if let Some(p2p) = config.p2p.as_mut().filter(|_| args.unlimited) {
        p2p.connections_per_address_max = usize::MAX;
    }
    #[cfg(not(feature = "libp2p"))]
    let _ = args;
    let place = place.of(&hark_networks::waku::Waku);
    let store: Arc<dyn Store> = if let Some(url) = &place.database {
        let store = place.postgres(url, place.config.postgres.migrate)?;
        let connections = place.config.postgres.connections_max;
        config.store_at = if store.is_near() {
            StoreAt::Machine(connections)
        } else {
            StoreAt::Elsewhere(connections)
        };
        Arc::new(store)
    } else {
        let store = place.open_store()?;
        for note in store.notes() {
            tracing::warn!("{note}");
        }
        Arc::new(store)
    };
    let (writer, clock) = (place.config.batch, Clock::System);
    Ok(Some((config, Shelf { store, writer, clock, compact: None, handover: None })))
}

async fn serve(
    args: &ServeArgs,
    place: &Place,
    (shelf, waku): (Shelf, Option<Waku>),
    taking: Option<Taking>,
) -> anyhow::Result<ExitCode> {
    let listen = args.listen.unwrap_or(place.config.listen);
    let mut config = hark_server::Config::new(listen);
    config.proxies = place.config.proxies.clone();
    config.deflate_from_bytes = place.config.deflate_from_bytes;
    if place.database.is_none() {
        config.control = Some(place.control_socket());
    }
    config.metrics = place.config.metrics.clone();
    config.slow_question = place.config.log.slow_question_ms.map(Duration::from_millis);
    config.limits = place.config.limits.clone();
    config.private_kinds = place.config.private_kinds.clone();
    config.relay = place.config.info.clone();
    config.policy = place.config.policy.clone();
    config.retention = place.config.retention();
    config.threads = place.config.threads;
    if place.database.is_some() && config.threads.read == 0 {
        // One waits for the database with each connection.
        config.threads.read = place.config.postgres.connections_max;
    }
    config.unlimited = args.unlimited;
    let mut signals = Signals::new()?;
    let server = match taking {
        Some(taking) => tokio::select! {
            server = Server::take_over(config, shelf, taking) => {
                server.context("the server that runs was not taken over, and goes on")
            }
            () = signals.next() => {
                tracing::info!("asked to end before it has taken over");
                // Without waiting for anything: it may be the disk that holds it up.
                std::process::exit(INTERRUPTED.into());
            }
        },
        None => Server::bind(config, shelf).await.with_context(|| {
            format!(
                "the server could not start on {listen}, and nothing was served. If another \
                 program listens there, stop it or choose another port with --listen; ports below \
                 1024 need the right to use them"
            )
        }),
    }?;
    let mut waku_at = Vec::new();
    let server = match waku {
        None => server,
        Some((mut config, shelf)) => {
            config.clients = server.clients();
            let node = Node::bind(config, shelf).await.context("the Waku node could not start")?;
            waku_at.extend(node.rest_addr().map(|addr| format!("waku rest on http://{addr}")));
            waku_at.extend(node.addresses().iter().map(|addr| format!("waku peer on {addr}")));
            server.with_waku(node)
        }
    };
    // Ends with the runtime. Before anybody is told that the server is there, who may send it SIGHUP.
    let watch = Watch::new(place.config.clone(), server.reload())?;
    tokio::spawn(hark_server::vital("what reads the configuration again", watch.run()));
    let at = server.url();
    let metrics = server.metrics_addr().map(tracing::field::display);
    tracing::info!(at, metrics, data = %place.data.display(), "serving");
    print::line(&format!("listening on {}", server.url()))?;
    for line in waku_at {
        // Who waits for the first line may have gone.
        let _ = print::line(&line);
    }
    notify::ready(&server.url());
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

/// Lets a second store have what the shelf's accepts, if the configuration names one.
fn mirrored(place: &Place, mut shelf: Shelf) -> anyhow::Result<(Shelf, Option<Arc<Mirrored>>)> {
    let Some(address) = &place.config.mirror.store else { return Ok((shelf, None)) };
    let second = place.mirror(address.secret())?;
    let queue_bytes_max = place.config.mirror.queue_bytes_max;
    let options = mirror::Options { queue_bytes_max, ..mirror::Options::default() };
    let tell = Box::new(|words: &str| tracing::info!("{words}"));
    let mirrored = Arc::new(Mirrored::start(Arc::clone(&shelf.store), second, options, tell));
    shelf.store = Arc::clone(&mirrored) as _;
    Ok((shelf, Some(mirrored)))
}

fn compact(store: &Arc<Embedded>) -> Compact {
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

/// Logs to stderr, so that stdout is for programs.
fn start_log(args: &ServeArgs, log: &Log) -> anyhow::Result<()> {
    let level = args.log_level.as_ref().unwrap_or(&log.level);
    let wanted: Targets = level
        .parse()
        .with_context(|| format!("--log-level {level} is no level and no filter of them"))?;
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
