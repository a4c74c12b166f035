//! The life cycle of a server: it opens the networks that it serves, runs their doors, and shuts
//! down.
//!
//! At shutdown, the server first stops accepting connections. The doors then finish the requests
//! under way and close. Last, the threads behind the doors end, in the order of the data flow. So
//! every accepted record is durable and acknowledged. Work not done within the time limit is
//! dropped without an answer.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::admin::control::ControlError;
use crate::admin::handover::TakeoverSource;
use crate::admin::http::OperatorsDoor;
use crate::admin::reload::ReloadDesk;
use crate::admin::served::ControlSocket;
use crate::admin::takeover::Takeover;
use crate::admin::takeover_parties::{Role, TakeoverLock, TakeoverState};
use crate::answers::Answers;
use crate::blocking;
use crate::clients::Clients;
use crate::door::{DoorAddress, Host, OpenNetwork, ServableNetwork};
use crate::error::ServeError;
use crate::growth::GrowthRecorder;
use crate::moderation::Moderation;
use crate::reload::{ReloadHandle, ReloadRequest, RetentionThreads};
use crate::settings::{Settings, SettingsHandle, SharedSettings};
use crate::shelf::MovableShelf;
use crate::stop::{Phase, StopSignal};
use crate::tls::TlsEndpoint;
use crate::vital::vital;
use crate::{ServerConfig, admin};

/// Interval between two calls of [`Door::check_load`](crate::door::Door::check_load).
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Interval between two checks whether the size of the archive is to be noted.
const GROWTH_LOOK_EVERY: Duration = Duration::from_mins(1);

/// Message to the operator of a server without a control socket.
const NO_CONTROL: &str = "No command reaches this server: `hark import`, `delete`, `compact`, \
    `reload`, `stats` and a takeover need that socket. File systems such as exFAT have no sockets; \
    move the data directory to another file system";

/// A server with its sockets open and its threads running.
pub struct Server {
    networks: Arc<[OpenNetwork]>,
    settings: SharedSettings,
    unlimited: bool,
    control: Option<ControlSocket>,
    role: watch::Sender<Role>,
    operators: OperatorsDoor,
    growth: Option<Arc<GrowthRecorder>>,
    moderation: Moderation,
    keepers: RetentionThreads,
    desk: Arc<ReloadDesk>,
    reload_requests: Option<mpsc::Receiver<ReloadRequest>>,
    tls: Option<Arc<TlsEndpoint>>,
    phase: watch::Sender<Phase>,
}

impl Server {
    /// Opens the sockets and starts the threads. Nothing is served before [`Server::run`].
    pub async fn bind(
        config: ServerConfig,
        networks: Vec<Box<dyn ServableNetwork>>,
    ) -> Result<Self, ServeError> {
        Self::start(config, networks, None).await
    }

    /// Starts like [`Server::bind`], but takes over from a running server. Uses the running
    /// server's sockets for addresses that both servers have. If the takeover fails, the running
    /// server continues as before.
    pub async fn take_over(
        config: ServerConfig,
        networks: Vec<Box<dyn ServableNetwork>>,
        taking: Takeover,
    ) -> Result<Self, ServeError> {
        Self::start(config, networks, Some(taking)).await
    }

    async fn start(
        config: ServerConfig,
        networks: Vec<Box<dyn ServableNetwork>>,
        mut taking: Option<Takeover>,
    ) -> Result<Self, ServeError> {
        let settings = Settings {
            limits: config.limits,
            addresses: config.addresses,
            rate_groups: Arc::new(config.rate_groups),
            slow_question: config.slow_question,
            refusals_from: config.refusals_from,
            addresses_shown: config.addresses_shown,
            mirror_stuck_after: config.mirror_stuck_after,
        };
        let settings = settings.in_force(config.unlimited).map_err(ServeError::Limits)?;
        admin::process::warn_if_few_files(settings.limits.connections_max);
        if config.unlimited {
            tracing::warn!("running --unlimited: rate limits are off");
        }
        let patience = Duration::from_millis(settings.limits.takeover_wait_ms);
        let settings: SharedSettings = Arc::new(ArcSwap::from_pointee(settings));
        let tls = match &config.tls {
            Some(options) => {
                Some(TlsEndpoint::open(options, &settings).await.map_err(ServeError::Tls)?)
            }
            None => None,
        };
        let moderation = Moderation::default();
        let mut host = Host {
            clients: Clients::new(Arc::clone(&settings), config.proxies, moderation.clone()),
            answers: Answers::new(Arc::clone(&settings)),
            settings: Arc::clone(&settings),
            unlimited: config.unlimited,
            tls: tls.clone().filter(|_| config.tls.as_ref().is_some_and(|options| options.relay)),
            rest_tls: tls.clone().filter(|_| config.tls.is_some_and(|options| options.rest)),
            #[cfg(feature = "libp2p")]
            peer_tls: tls.clone(),
            taking: taking.as_mut(),
            moderation: moderation.clone(),
        };
        let roster = Arc::clone(host.clients.roster());
        moderation.set_roster(&roster);
        let operators = OperatorsDoor::open(config.metrics, config.version, &mut host)?;
        // control.sock lies in the data directory.
        let data = config.control.as_deref().and_then(Path::parent);
        let growth = data.map(|data| Arc::new(GrowthRecorder::open(data)));
        let mut opened = Vec::with_capacity(networks.len());
        for network in networks {
            opened.push(network.open(&mut host).await?);
        }
        let networks: Arc<[OpenNetwork]> = opened.into();
        let role = watch::Sender::new(Role::Serving);
        let (desk, reload_requests) = ReloadDesk::new();
        let mut control = None;
        if let Some(path) = config.control {
            let failed = |cause| ServeError::Control { path: path.display().to_string(), cause };
            let shelves: Option<Vec<_>> =
                networks.iter().map(|network| network.shelf.movable()).collect();
            let movable = config.lock.zip(shelves);
            let giving = movable.clone().map(|(lock, shelves)| -> std::io::Result<_> {
                // A process that takes over requests the sockets in this order.
                let mut listeners = Vec::new();
                if let Some(listener) = operators.listener() {
                    listeners.extend(listener.sockets()?);
                }
                for network in &*networks {
                    listeners.extend(network.door.listeners()?);
                }
                let listeners = Mutex::new(listeners);
                Ok(Arc::new(TakeoverSource { lock, shelves, listeners, role: role.clone() }))
            });
            let giving = giving.transpose().map_err(failed)?;
            let started = ControlSocket::start(
                &path,
                &networks,
                &settings,
                &desk,
                (&roster, &moderation),
                giving,
            );
            match (taking, movable) {
                (Some(taking), Some((lock, shelves))) => {
                    let control = control.insert(started.map_err(failed)?);
                    become_writer(taking, &networks, lock, shelves, control, patience).await?;
                }
                (Some(_), None) => return Err(no_takeover()),
                (None, _) => {
                    let published = started.and_then(|mut control| {
                        control.publish()?;
                        Ok(control)
                    });
                    // Clients are served even without a control socket.
                    control = published
                        .map_err(|cause| tracing::error!("{}. {NO_CONTROL}", failed(cause)))
                        .ok();
                }
            }
        } else if taking.is_some() {
            return Err(no_takeover());
        }
        // Retention starts only now, because it writes, and this process may write only from here
        // on.
        let keepers = networks.iter().map(|network| network.shelf.start_retention());
        let keepers: Vec<_> = keepers.collect::<Result<_, _>>().map_err(ServeError::Thread)?;
        let phase = watch::Sender::new(Phase::Open);
        let unlimited = config.unlimited;
        Ok(Self {
            networks,
            settings,
            unlimited,
            control,
            role,
            operators,
            growth,
            moderation,
            keepers: Arc::new(Mutex::new(keepers)),
            desk,
            reload_requests: Some(reload_requests),
            tls,
            phase,
        })
    }

    /// The separate address of the metrics. `None` if the metrics have no separate address.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.operators.addr()
    }

    /// The bans and allows of the archive.
    pub fn moderation(&self) -> &Moderation {
        &self.moderation
    }

    /// The addresses at which clients reach the doors, in the order of the networks.
    pub fn addresses(&self) -> Vec<DoorAddress> {
        self.networks.iter().flat_map(|network| network.door.addresses()).collect()
    }

    /// A handle that shows whether another process has taken over.
    pub fn takeover_state(&self) -> TakeoverState {
        TakeoverState(self.role.subscribe())
    }

    /// A handle that changes the server's settings while it runs.
    pub fn reload(&self) -> SettingsHandle {
        SettingsHandle { shared: Arc::clone(&self.settings), unlimited: self.unlimited }
    }

    /// A handle that changes everything that can change while the server runs. The handle also
    /// reports to operators and receives their reload requests. Only the first handle receives
    /// requests.
    pub fn reload_handle(&mut self) -> ReloadHandle {
        ReloadHandle {
            settings: self.reload(),
            networks: Arc::clone(&self.networks),
            keepers: Arc::clone(&self.keepers),
            desk: Arc::clone(&self.desk),
            tls: self.tls.clone(),
            requests: self.reload_requests.take(),
        }
    }

    /// Serves until `shutdown` completes, then finishes the work in progress.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self {
            networks,
            settings,
            control,
            role,
            operators,
            growth,
            keepers,
            desk,
            tls,
            phase,
            ..
        } = self;
        let stop = StopSignal(phase.subscribe());
        let answers = operators.operators(
            &networks,
            &settings,
            &desk,
            tls.clone(),
            growth.clone(),
            stop.clone(),
        );
        let mut doors = JoinSet::new();
        for network in &*networks {
            let door = Arc::clone(&network.door).serve(answers.clone(), stop.clone());
            doors.spawn(vital("a door", door));
        }
        let mut asides = JoinSet::new();
        asides.spawn(vital("the metrics' door", operators.serve(answers)));
        if let Some(tls) = tls {
            asides.spawn(vital("the watch of the certificate", tls.watch(stop.clone())));
        }
        if let Some(growth) = growth {
            let (networks, stop) = (Arc::clone(&networks), stop.clone());
            asides.spawn(vital("the record of the growth", note_growth(networks, growth, stop)));
        }
        asides.spawn(vital("the report", watch_health(Arc::clone(&networks), stop)));
        let mut role = role.subscribe();
        tokio::pin!(shutdown);
        let given = tokio::select! {
            () = &mut shutdown => false,
            Ok(()) = async { role.wait_for(Role::is_superseded).await.map(drop) } => true,
        };
        let mut lost = None;
        if given {
            phase.send_replace(Phase::Given);
            // The other process does retention now. Dropping the retention threads may wait for a
            // write.
            blocking::run({
                let keepers = std::mem::take(&mut *keepers.lock());
                move || drop(keepers)
            });
            let over = Duration::from_secs(settings.load().limits.takeover_drain_s);
            let mut followers = control.as_ref().map(ControlSocket::followers);
            tokio::select! {
                () = &mut shutdown => {}
                () = tokio::time::sleep(over) => {
                    tracing::info!("takeover_drain_s has passed; open connections are closed");
                }
                reason = async {
                    role.wait_for(|role| matches!(role, Role::Lost(_))).await.map(|role| role.clone())
                } => lost = reason.ok(),
                () = async {
                    while doors.join_next().await.is_some() {}
                    if let Some(followers) = &mut followers {
                        // `wait_for` fails if the sender is gone. Then no follower is left either.
                        let _ = followers.wait_for(|count| *count == 0).await;
                    }
                } => tracing::info!("the last connection has ended"),
            }
        }
        tracing::info!("shutting down: finishing the work in progress");
        let drain = Duration::from_millis(settings.load().limits.drain_timeout_ms);
        phase.send_replace(Phase::Down { is_replaced: given });
        let all_gone = async { while doors.join_next().await.is_some() {} };
        if tokio::time::timeout(drain, all_gone).await.is_err() {
            tracing::warn!("some connections did not end in time; they are dropped");
        }
        let stop = move || {
            drop(control);
            drop(std::mem::take(&mut *keepers.lock()));
            for network in &*networks {
                network.door.close();
                network.shelf.writer().close();
            }
        };
        // The doors close on a separate thread, because the runtime, when it ends, waits for its
        // own threads without a time limit.
        let (stopped, all_stopped) = oneshot::channel();
        let stop = move || {
            stop();
            // Fails if the time limit has passed: the receiver is gone.
            let _ = stopped.send(());
        };
        std::thread::Builder::new()
            .name("hark-stop".into())
            .spawn(stop)
            .map_err(ServeError::Thread)?;
        if tokio::time::timeout(drain, all_stopped).await.is_err() {
            tracing::warn!("some work did not end in time; it is dropped without an answer");
        }
        match lost {
            Some(Role::Lost(reason)) => Err(ServeError::Lost(reason)),
            _ => Ok(()),
        }
    }
}

fn no_takeover() -> ServeError {
    let reason = "this server has no archive or no control.sock to take over".into();
    ServeError::TakeOver(ControlError::Refused(reason))
}

/// Checks doors and shelves at intervals. Logs bursts of events, and each time a shelf's trouble
/// begins or ends.
async fn watch_health(networks: Arc<[OpenNetwork]>, mut stop: StopSignal) {
    let mut troubled = vec![false; networks.len()];
    loop {
        tokio::select! {
            () = stop.serving() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        for (network, troubled) in networks.iter().zip(&mut troubled) {
            network.door.check_load();
            let (shelf, records) = (network.shelf.name(), network.shelf.records());
            match network.shelf.trouble() {
                Some(reason) if !*troubled => {
                    tracing::error!(shelf, reason, "no {records} are kept now");
                    *troubled = true;
                }
                None if *troubled => {
                    tracing::info!(shelf, "{records} are kept again");
                    *troubled = false;
                }
                _ => {}
            }
        }
    }
}

/// Notes the sizes of the shelves every hour.
async fn note_growth(
    networks: Arc<[OpenNetwork]>,
    growth: Arc<GrowthRecorder>,
    mut stop: StopSignal,
) {
    loop {
        let (networks, growth) = (Arc::clone(&networks), Arc::clone(&growth));
        // The sizes of a database are the answer to a query.
        let noted = blocking::run(move || {
            // Without a size, the database cannot be reached. Zeros would be noted as a deletion of
            // the whole archive.
            growth.note(networks.iter().filter_map(|network| {
                let stats = network.shelf.store().stats();
                let is_known = stats.records > 0 || stats.bytes > 0;
                is_known.then(|| (network.shelf.name().to_owned(), stats.records, stats.bytes))
            }));
        });
        let noted = noted.await;
        if let Err(error) = noted {
            tracing::warn!(%error, "the size of the archive was not noted");
        }
        tokio::select! {
            () = stop.serving() => return,
            () = tokio::time::sleep(GROWTH_LOOK_EVERY) => {}
        }
    }
}

/// Makes this process the writer of the archive, in place of the previous process.
async fn become_writer(
    mut taking: Takeover,
    networks: &[OpenNetwork],
    lock: Arc<dyn TakeoverLock>,
    shelves: Vec<MovableShelf>,
    control: &mut ControlSocket,
    patience: Duration,
) -> Result<(), ServeError> {
    let (states, served_before) = (taking.states(), taking.shelves());
    // This runs on a blocking thread, because it waits for the other process and for the disk, and
    // must not delay the signal handler.
    let finishing = blocking::run({
        let (lock, shelves) = (Arc::clone(&lock), shelves.clone());
        move || taking.finish(&*lock, &shelves, patience)
    });
    let finished = finishing.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic).into()));
    let before = finished.map_err(ServeError::TakeOver)?;
    // From here on this process is the writer. An archive without a writer is worse than any
    // failure below, so these failures are only logged.
    let begins: Vec<_> = shelves.iter().map(|shelf| shelf.store.end()).collect();
    let followed: Vec<_> = shelves.into_iter().zip(begins).collect();
    let is_followed = |moved: &MovableShelf| {
        // An earlier version does not have every shelf.
        served_before.iter().any(|name| name == moved.shelf.name())
    };
    for (shelf, begin) in &followed {
        if is_followed(shelf) {
            shelf.store.followed(Some(*begin));
        }
        shelf.store.pause_maintenance(false);
    }
    if let Err(error) = lock.sign() {
        tracing::warn!(%error, "this process could not write its id to LOCK");
    }
    for (shelf, state) in states {
        if let Some(network) = networks.iter().find(|network| network.shelf.name() == shelf) {
            network.door.restore(&state);
        }
    }
    if let Err(error) = control.publish() {
        tracing::error!(%error, "control.sock is missing: commands cannot reach this server");
    }
    let followed = followed.into_iter().filter(|(shelf, _)| is_followed(shelf)).collect();
    if let Err(error) = control.serve_follower(before, followed) {
        tracing::error!(%error, "the old server cannot follow, and closes its connections");
    }
    Ok(())
}
