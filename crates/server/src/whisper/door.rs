//! The mail server's door, which opens together with its shelf and serves until the server shuts
//! down.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::config::MailConfig;
use super::mail_server::{INTAKE, MailServer};
use super::metrics::{EnvelopeFate, HandshakeFate, MailMetrics, RequestFate};
use super::news::NewsReader;
#[cfg(feature = "devp2p")]
use super::peers;
use super::topics::TopicIndex;
use super::{prometheus, refresh, rest};
use crate::ServeError;
use crate::admin::http::Operators;
use crate::door::{
    self, Door, DoorAddress, Host, OpenFuture, OpenNetwork, ServableNetwork, StatusRow,
};
use crate::listener::Listener;
use crate::metrics::MetricsPage;
use crate::rate::RateBuckets;
use crate::runtime::DoorRuntime;
use crate::service::Service;
use crate::shelf::{self, Subscribers};
use crate::stop::StopSignal;
use crate::vital::vital;
use crate::words::number;

/// A mail server, ready to be served.
pub struct MailService {
    /// The configuration of the mail server.
    pub config: MailConfig,
    /// The options of the mail server's store.
    pub shelf: shelf::ShelfOptions,
}

/// The door of a mail server.
struct MailDoor {
    mail: Arc<MailServer>,
    runtime: DoorRuntime,
    rest: Option<Arc<Listener>>,
    #[cfg(feature = "devp2p")]
    peers: Option<Arc<peers::PeersDoor>>,
}

impl ServableNetwork for MailService {
    fn open<'a>(self: Box<Self>, host: &'a mut Host<'_>) -> OpenFuture<'a> {
        Box::pin(async move {
            let door = self.open_in(host).await?;
            Ok(OpenNetwork { shelf: Arc::clone(&door.mail.service.shelf), door: Arc::new(door) })
        })
    }
}

impl MailService {
    async fn open_in(self, host: &mut Host<'_>) -> Result<MailDoor, ServeError> {
        let Self { config, shelf } = self;
        let rest = if config.rest.is_empty() {
            None
        } else {
            let listener = host.listen_on(&config.rest, "`rest` in [whisper]").await?;
            Some(Arc::new(listener.with_tls(host.rest_tls.clone())))
        };
        #[cfg(feature = "devp2p")]
        let peers = match config.peers.clone() {
            Some(peers) => Some(Arc::new(peers::PeersDoor::open(peers, host)?)),
            None => None,
        };
        let runtime = DoorRuntime::start("hark-whisper")?;
        let topics = Arc::new(TopicIndex::default());
        let subscribers: Arc<dyn Subscribers> = Arc::clone(&topics) as _;
        let service = Service::open(host, shelf, subscribers, INTAKE, config.store_at);
        // From here on, new envelopes add their topics, so no topic is missed. The stored topics
        // are read on a thread that may block, because the store may be a database.
        let (filled, store) = (Arc::clone(&topics), Arc::clone(service.shelf.store()));
        let filling = crate::blocking::run(move || filled.fill(&*store));
        let ended = |error| ServeError::Thread(io::Error::other(error));
        if let Err(error) = filling.await.map_err(ended)? {
            tracing::warn!(
                %error,
                "the topics of stored envelopes could not be read; they are read again soon, and \
                 until then questions by bloom filter test each envelope"
            );
        }
        let mail = Arc::new(MailServer {
            service,
            topics,
            news: NewsReader::default(),
            metrics: MailMetrics::default(),
            topic_buckets: RateBuckets::default(),
            unlimited: host.unlimited,
            clients: host.clients.clone(),
            config,
        });
        Ok(MailDoor {
            mail,
            runtime,
            rest,
            #[cfg(feature = "devp2p")]
            peers,
        })
    }
}

impl Door for MailDoor {
    fn addresses(&self) -> Vec<DoorAddress> {
        let rest = self.rest.iter().flat_map(|rest| rest.urls("http"));
        let rest = rest.map(|at| DoorAddress { what: "whisper rest on", at });
        #[cfg(feature = "devp2p")]
        let rest = rest.chain(
            self.peers.iter().map(|it| DoorAddress { what: "whisper peer on", at: it.enode() }),
        );
        rest.collect()
    }

    /// Returns the listening sockets of REST and of peers. Peers' connections cannot be handed
    /// over, because only this process has their keys.
    fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        let listeners = self.rest.iter().map(|rest| &**rest);
        #[cfg(feature = "devp2p")]
        let listeners = listeners.chain(self.peers.iter().map(|peers| peers.listener()));
        let sockets: io::Result<Vec<_>> = listeners.map(Listener::sockets).collect();
        Ok(sockets?.into_iter().flatten().collect())
    }

    fn metrics(&self, page: &mut MetricsPage) {
        prometheus::write(page, &self.mail);
    }

    fn stats(&self) -> (Map<String, Value>, Vec<StatusRow>) {
        let metrics = &self.mail.metrics;
        let (envelopes, requests) = (&metrics.envelopes, &metrics.requests);
        let archived = [EnvelopeFate::Stored, EnvelopeFate::Duplicate];
        let answered = |fate| fate == RequestFate::Answered;
        let row = |what, done, not| (what, number(done), format!("{} refused", number(not)));
        let rows = vec![
            row(
                "envelopes taken",
                envelopes.sum(|fate| archived.contains(&fate)),
                envelopes.sum(|fate| !archived.contains(&fate)),
            ),
            row("requests answered", requests.sum(answered), requests.sum(|it| !answered(it))),
            (
                "peers",
                number(metrics.peers.get()),
                format!(
                    "{} connected since the start, {} handshakes failed",
                    number(metrics.handshakes.of(HandshakeFate::Connected).get()),
                    number(metrics.handshakes.sum(|fate| fate != HandshakeFate::Connected)),
                ),
            ),
            ("topics", number(self.mail.topics.len() as u64), String::new()),
        ];
        let fields = [
            ("envelopes", envelopes.nested()),
            ("requests", requests.nested()),
            ("peers", json!(metrics.peers.get())),
            ("handshakes", metrics.handshakes.named()),
            ("peers_left", metrics.left.named()),
            ("topics", json!(self.mail.topics.len())),
        ];
        (fields.into_iter().map(|(name, value)| (name.into(), value)).collect(), rows)
    }

    fn serve(self: Arc<Self>, _: Operators, stop: StopSignal) -> door::DoorFuture {
        Box::pin(async move {
            let serving = serve(
                self.rest.clone(),
                #[cfg(feature = "devp2p")]
                self.peers.clone(),
                Arc::clone(&self.mail),
                stop,
            );
            self.runtime.run(vital("the Whisper mail server", serving)).await;
        })
    }

    fn close(&self) {
        self.mail.service.close();
    }
}

async fn serve(
    rest: Option<Arc<Listener>>,
    #[cfg(feature = "devp2p")] peers: Option<Arc<peers::PeersDoor>>,
    mail: Arc<MailServer>,
    stop: StopSignal,
) {
    let topics = refresh::refresh(Arc::clone(&mail), stop.clone());
    let doors = [
        Some(tokio::spawn(vital("Whisper's topics", topics))),
        rest.map(|listener| {
            let door = rest::serve(listener, stop.clone(), Arc::clone(&mail));
            tokio::spawn(vital("Whisper's REST door", door))
        }),
        #[cfg(feature = "devp2p")]
        peers.map(|peers| {
            let door = async move { peers.serve(mail, stop).await };
            tokio::spawn(vital("Whisper's peers", door))
        }),
    ];
    for door in doors.into_iter().flatten() {
        // A task that panics ends the process: see `vital`.
        let _ = door.await;
    }
}
