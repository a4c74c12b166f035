//! From the open port to the last connection's end.
//!
//! Going down: no new connections; sessions finish what is under way and close; then the threads
//! behind them, in the order of the data, so that every event that was taken is durable and
//! answered. All of it within a time; what is not done by then is dropped, and has got no OK.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::Body;
use hark_archive::Query;
use hark_archive::live::Live;
use hark_archive::retention::{Keeper, Policy, RetentionError, Swept};
use hark_archive::writer::Writer;
use hark_networks::nostr::admit::OwnUrls;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::admin::control::{Control, ControlError, Giving, Taking};
use crate::admin::handover::{Handover, Peers, Role, Tell};
use crate::admin::http::Handles;
use crate::connections::{Connections, turn_away};
use crate::metrics::Metrics;
use crate::nostr::intake::{Intake, Parts};
use crate::nostr::outboxes::Outboxes;
use crate::nostr::readers::Readers;
use crate::nostr::slow::SlowLog;
use crate::nostr::web::{self, Place, Slot, Web};
use crate::nostr::{Relay, auth};
use crate::patience::Patient;
use crate::rate::Rates;
use crate::settings::{Reload, Settings, Shared};
use crate::vital::vital;
use crate::waku;
use crate::{Clients, Config, MetricsDoor, Shelf, admin, socket};

/// Connections that are told at a time why they are turned away. More are closed without a word.
const TURNED_AWAY_MAX: usize = 64;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can not be had.
    #[error("cannot listen on {addr}: {cause}; choose another with --listen")]
    Listen {
        /// Which.
        addr: SocketAddr,
        /// What the system says.
        cause: std::io::Error,
    },
    /// `control.sock` can not be made.
    #[error("cannot open {path}: {cause}")]
    Control {
        /// Where.
        path: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The address for Waku's REST interface can not be had.
    #[error("cannot listen on {addr}: {cause}; choose another with `rest` in [waku]")]
    Rest {
        /// Which.
        addr: SocketAddr,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The Waku node's network can not be started.
    #[cfg(feature = "libp2p")]
    #[error(transparent)]
    Waku(#[from] waku::p2p::NetworkError),
    /// A thread can not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The system gives no random bytes.
    #[error("cannot make a secret for AUTH challenges: {0}")]
    Random(getrandom::Error),
    /// The limits contradict each other.
    #[error("limits: {0}")]
    Limits(String),
    /// The server that runs did not let this one take over.
    #[error("cannot take over: {0}")]
    TakeOver(ControlError),
    /// The server that took over is gone.
    #[error("the server that took over is gone: {0}")]
    Lost(String),
}

/// A server with its sockets open and its threads running.
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    relay: Arc<Relay>,
    control: Option<Control>,
    role: watch::Sender<Role>,
    metrics: (MetricsDoor, Option<TcpListener>),
    retention: Policy,
    keeper: Keeper,
    waku: Option<waku::Node>,
    readers: Vec<JoinHandle<()>>,
    verifiers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Opens the sockets and starts the threads. Nothing is served before [`Server::run`].
    pub async fn bind(config: Config, shelf: Shelf) -> Result<Self, ServeError> {
        Self::start(config, shelf, None).await
    }

    /// The same in the place of a server that runs, with its sockets where the addresses are the
    /// same. That one goes on as it was where this fails.
    pub async fn take_over(
        config: Config,
        shelf: Shelf,
        taking: Taking,
    ) -> Result<Self, ServeError> {
        Self::start(config, shelf, Some(taking)).await
    }

    async fn start(
        config: Config,
        shelf: Shelf,
        mut taking: Option<Taking>,
    ) -> Result<Self, ServeError> {
        if taking.is_some() && (config.control.is_none() || shelf.handover.is_none()) {
            let reason = "this server has no archive or no control.sock to take over".into();
            return Err(ServeError::TakeOver(ControlError::Refused(reason)));
        }
        let settings = Settings { limits: config.limits, policy: config.policy };
        let settings = settings.in_force(config.unlimited).map_err(ServeError::Limits)?;
        admin::process::warn_if_few_files(settings.limits.connections_max);
        let patience = Duration::from_millis(settings.limits.takeover_wait_ms);
        let settings: Shared = Arc::new(ArcSwap::from_pointee(settings));
        let rates = Rates::new(Arc::clone(&settings));
        let failed = |cause| ServeError::Listen { addr: config.listen, cause };
        let listener = listen(config.listen, taking.as_mut()).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let metrics_listener = match config.metrics.listen {
            None => None,
            Some(addr) => {
                let failed = |cause| ServeError::Listen { addr, cause };
                Some(listen(addr, taking.as_mut()).await.map_err(failed)?)
            }
        };
        let peers = Arc::new(Peers::default());
        let metrics = Arc::new(Metrics::default());
        // One that cannot say now where it is begins at 0: its first subscriptions then take a little
        // longer to forget how far their answers went.
        let nothing = Query { limit: 0, ..Query::default() };
        let seq = shelf.store.search(&nothing).map_or(0, |search| search.seq());
        let live = Arc::new(Live::since(seq));
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = |wanted: usize| if wanted == 0 { cores } else { wanted };
        let writer = Arc::new(Writer::start(
            Arc::clone(&shelf.store),
            shelf.writer,
            Box::new(Tell { live: Arc::clone(&live), peers: Arc::clone(&peers) }),
        ));
        let own_urls = OwnUrls::new(config.relay.urls().chain([url(addr)]));
        let knows_url = config.relay.url.is_some();
        if !knows_url && !addr.ip().is_loopback() {
            tracing::warn!(
                "no [info] url is set: requests to vanish that name this relay are not understood, \
                 and AUTH trusts the name in the client's request"
            );
        }
        let auth = auth::Terms::new(own_urls.clone(), knows_url, config.private_kinds)
            .map_err(ServeError::Random)?;
        let parts = Parts {
            store: Arc::clone(&shelf.store),
            writer: Arc::clone(&writer),
            live: Arc::clone(&live),
            peers: Arc::clone(&peers),
            clock: shelf.clock.clone(),
            settings: Arc::clone(&settings),
            rates: rates.clone(),
            own_urls,
            metrics: Arc::clone(&metrics),
        };
        let (intake, verifiers) =
            Intake::start(threads(config.threads.verify), parts).map_err(ServeError::Thread)?;
        let (readers, reader_threads) =
            Readers::start(threads(config.threads.read)).map_err(ServeError::Thread)?;
        let outboxes = Outboxes::new(Arc::clone(&metrics), Arc::clone(&live), Arc::clone(&readers));
        let relay = Arc::new(Relay {
            outboxes,
            questions: Arc::default(),
            inbound: Arc::default(),
            slow: SlowLog::new(config.slow_question, &shelf.store),
            store: shelf.store,
            clock: shelf.clock,
            live,
            readers,
            auth: Arc::new(auth),
            intake,
            writer,
            peers,
            settings,
            rates,
            metrics,
            info: config.relay,
            connections: Connections::default(),
            proxies: config.proxies,
            deflate: socket::Deflate::new(config.deflate_from_bytes),
            unlimited: config.unlimited,
        });
        let role = watch::Sender::new(Role::Serving);
        let mut control = None;
        if let Some(path) = config.control {
            let failed = |cause| ServeError::Control { path: path.display().to_string(), cause };
            let giving = shelf.handover.clone().map(|archive| -> std::io::Result<_> {
                let listeners = std::iter::once(&listener).chain(&metrics_listener);
                let listeners = listeners.map(|each| each.as_fd().try_clone_to_owned());
                let listeners = Mutex::new(listeners.collect::<Result<_, _>>()?);
                Ok(Arc::new(Giving { archive, listeners, role: role.clone() }))
            });
            let giving = giving.transpose().map_err(failed)?;
            let relay = Arc::clone(&relay);
            let started = Control::start(&path, relay, shelf.compact, giving).map_err(failed)?;
            let control = control.insert(started);
            if let (Some(taking), Some(archive)) = (taking, shelf.handover) {
                take(taking, archive, control, patience).await?;
            } else {
                control.publish().map_err(failed)?;
            }
        }
        let woken = Arc::downgrade(&relay.writer);
        relay.store.on_news(Box::new(move || {
            if let Some(writer) = woken.upgrade() {
                writer.tell_news();
            }
        }));
        // Not earlier: it writes.
        let keeper = Keeper::start(
            config.retention.clone(),
            Arc::clone(&relay.store),
            Arc::clone(&relay.writer),
            relay.clock.clone(),
            report_swept,
        )
        .map_err(ServeError::Thread)?;
        if config.unlimited {
            tracing::warn!("running --unlimited: rate limits are off");
        }
        Ok(Self {
            listener,
            addr,
            relay,
            control,
            role,
            metrics: (config.metrics, metrics_listener),
            retention: config.retention,
            keeper,
            waku: None,
            readers: reader_threads,
            verifiers,
        })
    }

    /// Serves a Waku node as well.
    #[must_use]
    pub fn with_waku(self, node: waku::Node) -> Self {
        Self { waku: Some(node), ..self }
    }

    /// The address that its metrics have to themselves, if they do.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.1.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The same as a URL, for the first line of output.
    pub fn url(&self) -> String {
        url(self.addr)
    }

    /// What has been done so far.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.relay.metrics)
    }

    /// What changes its settings while it runs.
    pub fn reload(&self) -> Reload {
        let shared = Arc::clone(&self.relay.settings);
        Reload { shared, unlimited: self.relay.unlimited }
    }

    /// Whose connections it takes, for doors that are opened beside it.
    pub fn clients(&self) -> Clients {
        Clients::new(Arc::clone(&self.relay.settings), self.relay.proxies.clone())
    }

    /// Serves until `shutdown`, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let (leave, leaving) = watch::channel(false);
        let (alive, mut all_gone) = mpsc::channel(1);
        let (door, metrics_listener) = self.metrics;
        let waku_serving = self.waku.map(|node| {
            let shared = node.shared();
            (shared, tokio::spawn(vital("the Waku node", node.run(leaving.clone()))))
        });
        let (waku, waku_serving) = waku_serving.unzip();
        let relay = Arc::clone(&self.relay);
        let handles = Handles { relay, waku, leaving, allow: door.allow.into() };
        tokio::spawn(admin::report::run(Arc::clone(&self.relay), handles.leaving.clone()));
        let web = Web::new(handles.clone(), metrics_listener.is_none(), self.retention);
        let metrics_serving = metrics_listener.map(|listener| {
            tokio::spawn(vital("the metrics' door", admin::http::serve(listener, handles)))
        });
        let mut role = self.role.subscribe();
        tokio::pin!(shutdown);
        let turning_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
        let given = loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break false,
                Ok(()) = async { role.wait_for(Role::is_given).await.map(drop) } => break true,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => match Slot::take(&self.relay, peer.ip()) {
                    Ok(slot) => {
                        let (slot, peer) = (Arc::new(slot), peer.ip());
                        let place = Place { _alive: alive.clone(), slot, peer };
                        tokio::spawn(serve(stream, web.clone(), place));
                    }
                    Err(why) => {
                        self.relay.metrics.turned_away.of(why).add(1);
                        if let Ok(permit) = Arc::clone(&turning_away).try_acquire_owned() {
                            tokio::spawn(async move {
                                turn_away(stream, why).await;
                                drop(permit);
                            });
                        }
                    }
                },
                // Out of files, most likely: those that end make room.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept; waiting");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        let Self { listener, relay, control, keeper, readers, verifiers, .. } = self;
        drop(listener);
        drop(alive);
        drop(web);
        let (mut keeper, mut lost) = (Some(keeper), None);
        if given {
            // The other process does that now. Its thread may have to wait for a write.
            tokio::task::spawn_blocking({
                let keeper = keeper.take();
                move || drop(keeper)
            });
            metrics_serving.inspect(tokio::task::JoinHandle::abort);
            let over = Duration::from_secs(relay.settings().limits.takeover_drain_s);
            let mut followers = control.as_ref().map(Control::followers);
            tokio::select! {
                () = &mut shutdown => {}
                () = tokio::time::sleep(over) => {
                    tracing::info!("takeover_drain_s is over; connections that are left end now");
                }
                reason = async {
                    role.wait_for(|role| matches!(role, Role::Lost(_))).await.map(|role| role.clone())
                } => lost = reason.ok(),
                () = async {
                    all_gone.recv().await;
                    if let Some(followers) = &mut followers {
                        // An error means that there are none any more.
                        let _ = followers.wait_for(|count| *count == 0).await;
                    }
                } => tracing::info!("the last connection has ended"),
            }
        }
        tracing::info!("going down: finishing what is under way");
        let drain = Duration::from_millis(relay.settings().limits.drain_timeout_ms);
        leave.send_replace(true);
        let all_gone = async {
            all_gone.recv().await;
            if let Some(serving) = waku_serving {
                // It does not panic: see `vital`.
                let _ = serving.await;
            }
        };
        if tokio::time::timeout(drain, all_gone).await.is_err() {
            tracing::warn!("some connections did not end in time; they are dropped");
        }
        let stop = move || {
            drop(control);
            drop(keeper);
            relay.intake.close();
            relay.readers.close();
            relay.outboxes.close();
            for thread in verifiers.into_iter().chain(readers) {
                // It does not panic: see `vital`.
                let _ = thread.join();
            }
            relay.writer.close();
        };
        // A thread of our own and not one of the runtime's, which would wait for it without end.
        let (stopped, all_stopped) = oneshot::channel();
        let stop = move || {
            stop();
            // Nobody hears it if the time was over.
            let _ = stopped.send(());
        };
        std::thread::Builder::new()
            .name("hark-stop".into())
            .spawn(stop)
            .map_err(ServeError::Thread)?;
        if tokio::time::timeout(drain, all_stopped).await.is_err() {
            tracing::warn!("some work did not end in time; it is dropped, and had got no OK");
        }
        match lost {
            Some(Role::Lost(reason)) => Err(ServeError::Lost(reason)),
            _ => Ok(()),
        }
    }
}

/// Becomes the process that writes, in the place of the one that does.
async fn take(
    taking: Taking,
    archive: Arc<dyn Handover>,
    control: &mut Control,
    patience: Duration,
) -> Result<(), ServeError> {
    // It waits, for the other process and for the disk, and is not to hold up who waits for a signal.
    let finishing = tokio::task::spawn_blocking({
        let archive = Arc::clone(&archive);
        move || taking.finish(&*archive, patience)
    });
    let finished = finishing.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic).into()));
    let (before, begin) = finished.map_err(ServeError::TakeOver)?;
    // From here on this process is the one that writes, and that there is one counts for more than all
    // that can fail below.
    archive.followed(Some(begin));
    if let Err(error) = archive.taken() {
        tracing::warn!(%error, "LOCK does not name this process");
    }
    if let Err(error) = control.publish() {
        tracing::error!(%error, "control.sock is not there: commands do not find this server");
    }
    if let Err(error) = control.serve_follower(before, archive, begin) {
        tracing::error!(%error, "the server before this one can not follow, and closes its connections");
    }
    Ok(())
}

/// Logs what retention has done.
pub(crate) fn report_swept(swept: Result<Swept, RetentionError>) {
    match swept {
        Ok(swept) => tracing::info!(
            expired = swept.expired,
            aged = swept.aged,
            crowded = swept.crowded,
            "records let go"
        ),
        Err(error) => tracing::error!(%error, "retention failed; trying again next round"),
    }
}

/// The socket that was handed over for this address, or a new one.
async fn listen(addr: SocketAddr, taking: Option<&mut Taking>) -> std::io::Result<TcpListener> {
    match taking.and_then(|taking| taking.listener(addr)) {
        Some(handed) => {
            handed.set_nonblocking(true)?;
            TcpListener::from_std(handed)
        }
        None => TcpListener::bind(addr).await,
    }
}

fn url(addr: SocketAddr) -> String {
    format!("ws://{addr}")
}

/// One connection's HTTP part. It ends with the upgrade; the session holds its place from there.
async fn serve(stream: TcpStream, web: Web, place: Place) {
    // Answers are written whole, so there is nothing to gather. Without it they are only later.
    let _ = stream.set_nodelay(true);
    let mut leaving = web.leaving.clone();
    let (head_timeout, take_max) = {
        let limits = &web.relay.settings().limits;
        (limits.handshake_timeout_ms, limits.idle_timeout_s)
    };
    let head_timeout = Duration::from_millis(head_timeout);
    let stream = Patient::new(stream, Duration::from_secs(take_max));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answer = web::answer(web.clone(), place.clone(), request.map(Body::new));
        async { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        _ = &mut connection => return,
        _ = leaving.wait_for(|leaving| *leaving) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
