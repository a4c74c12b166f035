//! Opens the relay: its socket, its shelf, and the threads that check events and run searches.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use hark_archive::live::LiveIndex;
use hark_archive::{Query, Record};
use hark_plugin::PluginPool;
use tokio::runtime::Handle;

use super::event_checks::IntakeContext;
use super::intake::Intake;
use super::listen::RelayDoor;
use super::manage::Management;
use super::metrics::RelayMetrics;
use super::names::{NameChecker, NameChecks};
use super::outboxes::Outboxes;
use super::own::{ListTurns, MemberInvites, Membership, OwnKey, OwnPublisher, claim_key};
use super::policy::SharedPolicy;
use super::readers::Readers;
use super::threads::RelayThreads;
use super::trust::{Trust, TrustGate, TrustSource};
use super::{Relay, RelayService, auth, outbox, reading, vanish};
use crate::ServeError;
use crate::door::{Host, OpenFuture, OpenNetwork, ServableNetwork};
use crate::moderation::Moderation;
use crate::rate::{RateLimiter, TrustedKeys};
use crate::service::SlowLog;
use crate::settings::{Settings, SharedSettings};
use crate::shelf::{Shelf, Subscribers};
use crate::vital::vital;
use crate::websocket::DeflateOptions;

/// Notifies subscriptions through the live index, and wakes their sessions on the runtime.
struct LiveNotifier {
    live: Arc<LiveIndex>,
    runtime: Handle,
    moderation: Moderation,
    names: Arc<NameChecks>,
    trust: Arc<Trust>,
}

impl Subscribers for LiveNotifier {
    fn publish(&self, seq: Option<u64>, record: &Record<'_>) {
        // A new ban takes effect only after this notification, which ignores the ban.
        let before = self.moderation.check();
        self.live.publish(seq, record);
        if seq.is_some() {
            self.names.note_stored(record);
        }
        drop(before);
        self.trust.note(record);
    }

    fn together(&self, publish: &mut dyn FnMut()) {
        let _sessions = self.runtime.enter();
        outbox::together(publish);
    }
}

/// Reads the relay's own key from its file. Creates a missing file.
fn load_key(path: &Path) -> Result<Arc<OwnKey>, ServeError> {
    let mut new = [0; 32];
    getrandom::fill(&mut new).map_err(ServeError::Random)?;
    let key = OwnKey::load(path, new).map_err(|error| ServeError::Door(error.into()))?;
    Ok(Arc::new(key))
}

/// Lets the groups of trusted clients follow the trusted keys.
fn trust_clients(settings: &SharedSettings, trust: &Arc<Trust>) {
    settings.rcu(|settings| {
        let trusted: Arc<dyn TrustedKeys> = Arc::clone(trust) as _;
        let rate_groups = Arc::new(settings.rate_groups.trusting(trusted));
        Settings { rate_groups, ..Settings::clone(settings) }
    });
}

/// Starts the thread that keeps the trusted keys up to date.
fn start_trust(
    trust: &Arc<Trust>,
    shelf: &Shelf,
    moderation: &Moderation,
    policy: &SharedPolicy,
) -> std::io::Result<JoinHandle<()>> {
    let (bans, denied, store) = (moderation.clone(), policy.clone(), Arc::clone(shelf.store()));
    let source = TrustSource {
        open: Box::new(move || Ok(Arc::clone(&store))),
        clock: shelf.clock().clone(),
        hidden: Some(moderation.hidden()),
        is_barred: Box::new(move |key| denied.load().deny_keys.contains(key) || bans.bans_key(key)),
    };
    let (bans, noted) = (moderation.clone(), Arc::downgrade(trust));
    tokio::spawn(vital("the bans of trusted keys", async move {
        loop {
            let changed = bans.changed();
            let Some(trust) = noted.upgrade() else { return };
            trust.note_bans();
            drop(trust);
            changed.await;
        }
    }));
    trust.start(source)
}

impl ServableNetwork for RelayService {
    fn open<'a>(self: Box<Self>, host: &'a mut Host<'_>) -> OpenFuture<'a> {
        Box::pin(self.open_in(host))
    }
}

impl RelayService {
    async fn open_in(self, host: &mut Host<'_>) -> Result<OpenNetwork, ServeError> {
        let Self { config, shelf } = self;
        let listener = host.listen_on(&config.listen, "--listen").await?;
        let listener = listener.with_tls(host.tls.clone());
        let metrics = Arc::new(RelayMetrics::default());
        // If the store cannot report its sequence number now, the live index begins at 0. The only
        // effect is that the first subscriptions keep the positions of their stored answers for
        // longer.
        let nothing = Query { limit: 0, ..Query::default() };
        let seq = shelf.store.search(&nothing).map_or(0, |search| search.seq());
        let live = Arc::new(LiveIndex::since(seq));
        let names = Arc::new(NameChecks::new(config.policy.clone(), host.moderation.clone()));
        let notifier = LiveNotifier {
            live: Arc::clone(&live),
            runtime: Handle::current(),
            moderation: host.moderation.clone(),
            names: Arc::clone(&names),
            trust: Arc::clone(&config.trust),
        };
        let shelf = Shelf::open(shelf, Arc::new(notifier));
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = |wanted: usize| if wanted == 0 { cores } else { wanted };
        let identity = config.identity;
        identity.listens_on(&listener.ip_addrs());
        if !identity.current().knows_url() {
            tracing::warn!("{}", auth::NO_URL);
        }
        let own_key = config.own_key.as_deref().map(load_key).transpose()?;
        if let Some(key) = &own_key {
            let claim = claim_key(Arc::clone(key), identity.clone(), host.moderation.clone());
            tokio::spawn(vital("the relay's own key", claim));
        }
        vanish::start(&identity, &shelf);
        let auth = auth::AuthState::new(identity.clone()).map_err(ServeError::Random)?;
        let (settings, rates) =
            (Arc::clone(&host.settings), RateLimiter::new(Arc::clone(&host.settings)));
        // Events that wait for the plugin hold permits of the intake. A quarter of the permits is
        // left for other events.
        let bytes_max = settings.load().limits.intake_bytes_max / 4 * 3;
        let (plugin, running) = PluginPool::new(config.plugin, bytes_max);
        tokio::spawn(vital("the plugin", running));
        let plugin = Arc::new(plugin);
        trust_clients(&settings, &config.trust);
        let now_s = shelf.clock().now_s();
        let management =
            Management::new(config.managers, host.moderation.clone(), identity.clone(), now_s);
        let parts = IntakeContext {
            shelf: Arc::clone(&shelf),
            settings: Arc::clone(&settings),
            policy: config.policy.clone(),
            moderation: host.moderation.clone(),
            identity: identity.clone(),
            metrics: Arc::clone(&metrics),
            plugin: Arc::clone(&plugin),
            membership: Arc::new(Membership::new(
                identity.clone(),
                host.moderation.clone(),
                config.policy.clone(),
            )),
            names: Arc::clone(&names),
            trust: TrustGate::new(
                Arc::clone(&config.trust),
                host.moderation.clone(),
                management.keys(),
                identity.clone(),
            ),
        };
        let checker = NameChecker {
            checks: Arc::clone(&names),
            client: config.name_client,
            shelf: Arc::downgrade(&shelf),
        };
        tokio::spawn(vital("the checks of names", checker.run()));
        let (intake, mut joined) =
            Intake::start(threads(config.threads.verify), parts).map_err(ServeError::Thread)?;
        let (readers, reader_threads) =
            Readers::start(threads(config.threads.read), config.store_at)
                .map_err(ServeError::Thread)?;
        joined.extend(reader_threads);
        let trust = start_trust(&config.trust, &shelf, &host.moderation, &config.policy);
        joined.push(trust.map_err(ServeError::Thread)?);
        let outboxes = Outboxes::new(Arc::clone(&metrics), Arc::clone(&live), Arc::clone(&readers));
        let invites = own_key.as_ref().map(|key| MemberInvites {
            key: Arc::clone(key),
            options: Arc::clone(&config.own_events),
            identity: identity.clone(),
            moderation: host.moderation.clone(),
            policy: config.policy.clone(),
        });
        let relay = Arc::new(Relay {
            management,
            invites,
            outboxes,
            texts: config.texts,
            questions: Arc::default(),
            comparisons: Arc::default(),
            inbound: Arc::default(),
            slow: SlowLog::new(Arc::clone(&host.settings), shelf.store(), shelf.network()),
            shelf: Arc::clone(&shelf),
            live,
            readers,
            auth: Arc::new(auth),
            audience: Arc::default(),
            intake,
            settings,
            policy: config.policy,
            hidden: host.moderation.hidden(),
            moderation: host.moderation.clone(),
            trust: config.trust,
            plugin,
            names,
            rates,
            metrics,
            identity,
            connections: Arc::clone(listener.connections()),
            deflate: DeflateOptions::new(config.deflate_from_bytes),
            unlimited: host.unlimited,
        });
        reading::follow_rules(&relay);
        if let Some(key) = own_key {
            let publisher = OwnPublisher {
                key,
                options: config.own_events,
                identity: relay.identity.clone(),
                moderation: relay.moderation.clone(),
                relay: Arc::downgrade(&relay),
                turns: ListTurns::default(),
            };
            tokio::spawn(vital("the relay's own events", publisher.run()));
        }
        let door = RelayDoor::new(relay, listener, RelayThreads::new(joined));
        Ok(OpenNetwork { shelf, door: Arc::new(door) })
    }
}
