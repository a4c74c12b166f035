//! A server's life: it opens the networks that it serves, runs their doors, and goes down.
//!
//! Going down: no new connections; the doors finish what is under way and close; then the threads
//! behind them, in the order of the data, so that every record that was taken is durable and
//! answered. All of it within a time; what is not done by then is dropped, and has got no answer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use hark_archive::retention::Keeper;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::admin::control::{Control, ControlError, Giving, Taking};
use crate::admin::handover::{Role, WriteLock};
use crate::admin::http::OperatorsDoor;
use crate::clients::Clients;
use crate::door::{Host, Opened, Reached, Serve};
use crate::listener::Listener;
use crate::settings::{Reload, Settings, Shared};
use crate::shelf::Movable;
use crate::stop::{Phase, Stop};
use crate::vital::vital;
use crate::{Config, admin};

/// Between two looks at the doors for what the log says in one line.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can not be had.
    #[error("cannot listen on {addr}: {cause}; choose another with {setting}")]
    Listen {
        /// Which.
        addr: SocketAddr,
        /// Where it comes from.
        setting: &'static str,
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
    /// A network can not be served.
    #[error(transparent)]
    Door(Box<dyn std::error::Error + Send + Sync>),
    /// A thread can not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The system gives no random bytes.
    #[error("cannot make a secret: {0}")]
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
    networks: Arc<[Opened]>,
    settings: Shared,
    unlimited: bool,
    control: Option<Control>,
    role: watch::Sender<Role>,
    operators: OperatorsDoor,
    keepers: Vec<Keeper>,
    phase: watch::Sender<Phase>,
}

impl Server {
    /// Opens the sockets and starts the threads. Nothing is served before [`Server::run`].
    pub async fn bind(config: Config, networks: Vec<Box<dyn Serve>>) -> Result<Self, ServeError> {
        Self::start(config, networks, None).await
    }

    /// The same in the place of a server that runs, with its sockets where the addresses are the
    /// same. That one goes on as it was where this fails.
    pub async fn take_over(
        config: Config,
        networks: Vec<Box<dyn Serve>>,
        taking: Taking,
    ) -> Result<Self, ServeError> {
        Self::start(config, networks, Some(taking)).await
    }

    async fn start(
        config: Config,
        networks: Vec<Box<dyn Serve>>,
        mut taking: Option<Taking>,
    ) -> Result<Self, ServeError> {
        let settings = Settings { limits: config.limits, addresses: config.addresses };
        let settings = settings.in_force(config.unlimited).map_err(ServeError::Limits)?;
        admin::process::warn_if_few_files(settings.limits.connections_max);
        if config.unlimited {
            tracing::warn!("running --unlimited: rate limits are off");
        }
        let patience = Duration::from_millis(settings.limits.takeover_wait_ms);
        let settings: Shared = Arc::new(ArcSwap::from_pointee(settings));
        let mut host = Host {
            clients: Clients::new(Arc::clone(&settings), config.proxies),
            settings: Arc::clone(&settings),
            unlimited: config.unlimited,
            taking: taking.as_mut(),
        };
        let operators = OperatorsDoor::open(config.metrics, &mut host)?;
        let mut opened = Vec::with_capacity(networks.len());
        for network in networks {
            opened.push(network.open(&mut host).await?);
        }
        let networks: Arc<[Opened]> = opened.into();
        let role = watch::Sender::new(Role::Serving);
        let mut control = None;
        if let Some(path) = config.control {
            let failed = |cause| ServeError::Control { path: path.display().to_string(), cause };
            let shelves: Option<Vec<_>> =
                networks.iter().map(|network| network.shelf.movable()).collect();
            let movable = config.lock.zip(shelves);
            let giving = movable.clone().map(|(lock, shelves)| -> std::io::Result<_> {
                // In the order in which another process asks for them.
                let mut listeners = Vec::new();
                if let Some(listener) = operators.listener() {
                    listeners.extend(listener.sockets()?);
                }
                for network in &*networks {
                    listeners.extend(network.door.listeners()?);
                }
                let listeners = Mutex::new(listeners);
                Ok(Arc::new(Giving { lock, shelves, listeners, role: role.clone() }))
            });
            let giving = giving.transpose().map_err(failed)?;
            let started = Control::start(&path, &networks, &settings, giving).map_err(failed)?;
            let control = control.insert(started);
            match (taking, movable) {
                (Some(taking), Some((lock, shelves))) => {
                    take(taking, &networks, lock, shelves, control, patience).await?;
                }
                (Some(_), None) => return Err(nothing_to_take()),
                (None, _) => control.publish().map_err(failed)?,
            }
        } else if taking.is_some() {
            return Err(nothing_to_take());
        }
        // Not earlier: they write.
        let keepers = networks.iter().map(|network| network.shelf.keep());
        let keepers = keepers.collect::<Result<_, _>>().map_err(ServeError::Thread)?;
        let phase = watch::Sender::new(Phase::Open);
        let unlimited = config.unlimited;
        Ok(Self { networks, settings, unlimited, control, role, operators, keepers, phase })
    }

    /// The address that its metrics have to themselves, if they do.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.operators.listener().map(Listener::addr)
    }

    /// Where clients reach its doors, in the order of the networks.
    pub fn addresses(&self) -> Vec<Reached> {
        self.networks.iter().flat_map(|network| network.door.addresses()).collect()
    }

    /// What changes its settings while it runs.
    pub fn reload(&self) -> Reload {
        Reload { shared: Arc::clone(&self.settings), unlimited: self.unlimited }
    }

    /// Serves until `shutdown`, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self { networks, settings, control, role, operators, keepers, phase, .. } = self;
        let stop = Stop(phase.subscribe());
        let answers = operators.operators(&networks, stop.clone());
        let mut doors = JoinSet::new();
        for network in &*networks {
            let door = Arc::clone(&network.door).serve(answers.clone(), stop.clone());
            doors.spawn(vital("a door", door));
        }
        let mut asides = JoinSet::new();
        asides.spawn(vital("the metrics' door", operators.serve(answers)));
        asides.spawn(vital("the report", look(Arc::clone(&networks), stop)));
        let mut role = role.subscribe();
        tokio::pin!(shutdown);
        let given = tokio::select! {
            () = &mut shutdown => false,
            Ok(()) = async { role.wait_for(Role::is_given).await.map(drop) } => true,
        };
        let (mut keepers, mut lost) = (Some(keepers), None);
        if given {
            phase.send_replace(Phase::Given);
            // The other process does that now. Their threads may have to wait for a write.
            tokio::task::spawn_blocking({
                let keepers = keepers.take();
                move || drop(keepers)
            });
            let over = Duration::from_secs(settings.load().limits.takeover_drain_s);
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
                    while doors.join_next().await.is_some() {}
                    if let Some(followers) = &mut followers {
                        // An error means that there are none any more.
                        let _ = followers.wait_for(|count| *count == 0).await;
                    }
                } => tracing::info!("the last connection has ended"),
            }
        }
        tracing::info!("going down: finishing what is under way");
        let drain = Duration::from_millis(settings.load().limits.drain_timeout_ms);
        phase.send_replace(Phase::Down);
        let all_gone = async { while doors.join_next().await.is_some() {} };
        if tokio::time::timeout(drain, all_gone).await.is_err() {
            tracing::warn!("some connections did not end in time; they are dropped");
        }
        let stop = move || {
            drop(control);
            drop(keepers);
            for network in &*networks {
                network.door.close();
                network.shelf.writer().close();
            }
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
            tracing::warn!("some work did not end in time; it is dropped, and had got no answer");
        }
        match lost {
            Some(Role::Lost(reason)) => Err(ServeError::Lost(reason)),
            _ => Ok(()),
        }
    }
}

fn nothing_to_take() -> ServeError {
    let reason = "this server has no archive or no control.sock to take over".into();
    ServeError::TakeOver(ControlError::Refused(reason))
}

/// Looks at the doors and at the shelves now and then, and logs what lasts or comes in bursts.
async fn look(networks: Arc<[Opened]>, mut stop: Stop) {
    let mut troubled = vec![false; networks.len()];
    loop {
        tokio::select! {
            () = stop.serving() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        for (network, troubled) in networks.iter().zip(&mut troubled) {
            network.door.look();
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

/// Becomes the process that writes, in the place of the one that does.
async fn take(
    mut taking: Taking,
    networks: &[Opened],
    lock: Arc<dyn WriteLock>,
    shelves: Vec<Movable>,
    control: &mut Control,
    patience: Duration,
) -> Result<(), ServeError> {
    let states = taking.states();
    // It waits, for the other process and for the disk, and is not to hold up who waits for a signal.
    let finishing = tokio::task::spawn_blocking({
        let (lock, shelves) = (Arc::clone(&lock), shelves.clone());
        move || taking.finish(&*lock, &shelves, patience)
    });
    let finished = finishing.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic).into()));
    let before = finished.map_err(ServeError::TakeOver)?;
    // From here on this process is the one that writes, and that there is one counts for more than all
    // that can fail below.
    let begins: Vec<_> = shelves.iter().map(|shelf| shelf.store.end()).collect();
    let followed: Vec<_> = shelves.into_iter().zip(begins).collect();
    for (shelf, begin) in &followed {
        shelf.store.followed(Some(*begin));
        shelf.store.rest(false);
    }
    if let Err(error) = lock.sign() {
        tracing::warn!(%error, "LOCK does not name this process");
    }
    for (shelf, state) in states {
        if let Some(network) = networks.iter().find(|network| network.shelf.name() == shelf) {
            network.door.restore(&state);
        }
    }
    if let Err(error) = control.publish() {
        tracing::error!(%error, "control.sock is not there: commands do not find this server");
    }
    if let Err(error) = control.serve_follower(before, followed) {
        tracing::error!(%error, "the server before this one can not follow, and closes its connections");
    }
    Ok(())
}
