//! The node's door: its REST API, and its connections to peers. The door is opened with its shelf,
//! and serves until the server stops.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hark_archive::Record;
use hark_codec::waku::MessageRecord;
#[cfg(feature = "libp2p")]
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::config::NodeConfig;
use super::metrics::{AnswerStatus, MessageFate};
use super::node::{INTAKE, PEER_QUESTIONS_MAX, PEER_QUESTIONS_PER_ADDRESS_MAX, WakuNode};
use super::notifier::MessageNotifier;
use super::nullifiers::NullifierLog;
use super::poll::{self, PollQueues};
use super::{metrics, prometheus, report, rest};
#[cfg(feature = "libp2p")]
use super::{p2p, resume};
use crate::ServeError;
use crate::admin::http::Operators;
use crate::door::{
    self, Door, DoorAddress, Host, OpenFuture, OpenNetwork, ServableNetwork, StatusRow,
};
use crate::listener::Listener;
use crate::metrics::MetricsPage;
use crate::permits::Shares;
use crate::runtime::DoorRuntime;
use crate::service::Service;
use crate::shelf;
use crate::stop::StopSignal;
use crate::vital::vital;
use crate::words::number;

/// A Waku node, ready to be served.
pub struct NodeService {
    /// The node's configuration.
    pub config: NodeConfig,
    /// The options of the node's store.
    pub shelf: shelf::ShelfOptions,
}

/// The door of a node.
pub(super) struct WakuDoor {
    pub(super) waku: Arc<WakuNode>,
    runtime: DoorRuntime,
    rest: Option<Arc<Listener>>,
    /// The network task, until [`WakuDoor::run`] takes and runs the task.
    #[cfg(feature = "libp2p")]
    network: Mutex<Option<p2p::NetworkTask>>,
}

impl ServableNetwork for NodeService {
    fn open<'a>(self: Box<Self>, host: &'a mut Host<'_>) -> OpenFuture<'a> {
        Box::pin(async move {
            let door = self.open_in(host).await?;
            Ok(OpenNetwork { shelf: Arc::clone(&door.waku.service.shelf), door: Arc::new(door) })
        })
    }
}

impl NodeService {
    pub(super) async fn open_in(self, host: &mut Host<'_>) -> Result<WakuDoor, ServeError> {
        let Self { config, shelf } = self;
        let rest = if config.rest.is_empty() {
            None
        } else {
            let listener = host.listen_on(&config.rest, "`rest` in [waku]").await?;
            Some(Arc::new(listener.with_tls(host.rest_tls.clone())))
        };
        let runtime = DoorRuntime::start("hark-waku")?;
        #[cfg(feature = "libp2p")]
        let (network, handle) = match config.p2p.clone() {
            None => (None, None),
            Some(p2p) => {
                let (node, clients) = (config.clone(), host.clients.clone());
                let (tls, at_once) = (host.peer_tls.clone(), !host.is_taking_over());
                let bound = runtime.run(async move {
                    p2p::NetworkTask::bind(p2p, &node, clients, tls, at_once).await
                });
                // Not reached: the runtime outlives this call.
                let gone = || io::Error::other("the Waku node's threads ended");
                let bound = bound.await.ok_or_else(|| ServeError::Thread(gone()))?;
                let (network, handle) = bound.map_err(|error| ServeError::Door(error.into()))?;
                (Some(network), Some(handle))
            }
        };
        if !config.forward {
            tracing::info!(
                cluster = config.cluster,
                "this Waku node keeps messages and passes none on ([waku] forward)"
            );
        }
        let poll = Arc::new(PollQueues::default());
        let topics = config.served().map(|shard| poll::PollTopic::Pubsub(shard.to_string()));
        // Cannot fail: a configuration has no more shards than the allowed number of topics.
        let _ = poll.subscribe(topics);
        let (metrics, arriving) = (metrics::NodeMetrics::new(&config.shards), Arc::default());
        #[cfg(feature = "libp2p")]
        let filter = Arc::new(p2p::FilterSubscribers::new(
            (config.cluster, Arc::clone(&config.settings)),
            host.answers.clone(),
            Arc::clone(&metrics.filter),
        ));
        let notifier = Arc::new(MessageNotifier {
            arriving: Arc::clone(&arriving),
            poll: Arc::clone(&poll),
            #[cfg(feature = "libp2p")]
            filter: Arc::clone(&filter),
            settings: Arc::clone(&config.settings),
            clock: shelf.clock.clone(),
            not_announced: Arc::clone(&metrics.not_announced),
        });
        let service = Service::open(host, shelf, notifier, INTAKE, config.store_at);
        let waku = Arc::new(WakuNode {
            service,
            poll,
            arriving,
            #[cfg(feature = "libp2p")]
            filter,
            metrics,
            positions: Arc::default(),
            peer_questions: Shares::new(PEER_QUESTIONS_MAX, PEER_QUESTIONS_PER_ADDRESS_MAX),
            nullifiers: NullifierLog::default(),
            clients: host.clients.clone(),
            #[cfg(feature = "libp2p")]
            network: handle,
            config,
        });
        Ok(WakuDoor {
            waku,
            runtime,
            rest,
            #[cfg(feature = "libp2p")]
            network: Mutex::new(network),
        })
    }
}

impl WakuDoor {
    /// Serves until `stop`.
    pub(super) async fn run(&self, stop: StopSignal) {
        #[cfg(feature = "libp2p")]
        let network = self.network.lock().take();
        let serving = serve(
            self.rest.clone(),
            #[cfg(feature = "libp2p")]
            network,
            Arc::clone(&self.waku),
            stop,
        );
        self.runtime.run(vital("the Waku node", serving)).await;
    }
}

impl Door for WakuDoor {
    fn addresses(&self) -> Vec<DoorAddress> {
        let rest = self.rest.iter().flat_map(|rest| rest.urls("http"));
        let rest = rest.map(|at| DoorAddress { what: "waku rest on", at });
        let peers = self.waku.addresses();
        let peers = peers.into_iter().map(|at| DoorAddress { what: "waku peer on", at });
        rest.chain(peers).collect()
    }

    /// Returns the listening sockets of the REST API. Peers' connections cannot be handed over,
    /// because only this process has their keys. These connections are closed, and the peers
    /// connect again.
    fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        self.rest.as_ref().map_or_else(|| Ok(Vec::new()), |rest| rest.sockets())
    }

    fn state(&self) -> Vec<Vec<u8>> {
        self.waku.poll.state()
    }

    fn restore(&self, part: &[u8]) {
        if self.waku.poll.restore(part).is_none() {
            tracing::warn!("not all messages that clients had not polled yet were handed over");
        }
    }

    fn forward(&self, record: &Record<'_>) {
        let record = MessageRecord::new(*record);
        if let Ok(pubsub_topic) = std::str::from_utf8(record.pubsub_topic()) {
            self.waku.try_pass_on(pubsub_topic, record.message());
        }
    }

    fn metrics(&self, page: &mut MetricsPage) {
        prometheus::write(page, &self.waku);
    }

    fn stats(&self) -> (Map<String, Value>, Vec<StatusRow>) {
        let metrics = &self.waku.metrics;
        let (messages, questions) = (&metrics.messages, &metrics.queries);
        let refused = |fate| MessageFate::FAILED.contains(&fate);
        let answered = |status| status == AnswerStatus::Success;
        let row = |what, done, not| (what, number(done), format!("{} refused", number(not)));
        let rows = vec![
            row("messages accepted", messages.sum(|fate| !refused(fate)), messages.sum(refused)),
            row("questions answered", questions.sum(answered), questions.sum(|it| !answered(it))),
            ("peers", number(metrics.peers.get()), String::new()),
        ];
        let fields = [
            ("peers", json!(metrics.peers.get())),
            ("messages", messages.nested()),
            ("questions", questions.nested()),
        ];
        (fields.into_iter().map(|(name, value)| (name.into(), value)).collect(), rows)
    }

    fn report(&self) -> Option<Value> {
        Some(report::report(&self.waku))
    }

    fn serve(self: Arc<Self>, _: Operators, stop: StopSignal) -> door::DoorFuture {
        Box::pin(async move { self.run(stop).await })
    }

    fn close(&self) {
        self.waku.service.close();
    }
}

async fn serve(
    rest: Option<Arc<Listener>>,
    #[cfg(feature = "libp2p")] network: Option<p2p::NetworkTask>,
    waku: Arc<WakuNode>,
    stop: StopSignal,
) {
    #[cfg(feature = "libp2p")]
    let resume = resume::HistoryFetch::new(&waku);
    let doors = [
        rest.map(|listener| {
            let door = rest::serve(listener, stop.clone(), Arc::clone(&waku));
            tokio::spawn(vital("Waku's REST door", door))
        }),
        #[cfg(feature = "libp2p")]
        resume.map(|resume| {
            let resume = resume.run(Arc::clone(&waku), stop.clone());
            tokio::spawn(vital("the queries to other stores", resume))
        }),
        #[cfg(feature = "libp2p")]
        Some(tokio::spawn(vital("Waku's sync", p2p::sync::run(Arc::clone(&waku), stop.clone())))),
        #[cfg(feature = "libp2p")]
        Some(tokio::spawn(vital(
            "Waku's discovery",
            p2p::find_nodes(Arc::clone(&waku), stop.clone()),
        ))),
        #[cfg(feature = "libp2p")]
        network.map(|network| tokio::spawn(vital("Waku's network", network.run(waku, stop)))),
    ];
    for door in doors.into_iter().flatten() {
        // A task that panics ends the process: see `vital`.
        let _ = door.await;
    }
}
