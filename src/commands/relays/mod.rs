//! Code shared by the commands that connect to other relays: the rules for received events, the
//! writing of these events, and common flags.

mod engine;
mod plan;
pub(crate) mod router;
mod router_metrics;
pub(crate) mod stream;
pub(crate) mod sync;
mod waiting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use hark_archive::clock::Clock;
use hark_archive::{Key, Record, Store};
use hark_codec::crypto::KeyPair;
use hark_codec::hex;
use hark_codec::nostr::{EventArena, npub};
use hark_networks::EventLimits;
use hark_networks::ReadOptions;
use hark_networks::nostr::admit::{self, OwnUrls};
use hark_networks::nostr::requests::is_heard;
use hark_peers::{
    ClientOptions, EventIntake, EventRules, EventWriter, IntakeOptions, LocalEnd, RequestRule,
    RuleRefusal, StoredListener, WriteOutcome,
};

use hark_server::moderation::Moderation;
use hark_server::nostr::policy::EventPolicy;
use hark_server::nostr::{
    ManagerKeys, OpenStore, RuleMode, SharedIdentity, SharedManagers, Trust, TrustGate, TrustSource,
};
use parking_lot::{Mutex, RwLock};

use crate::config::{Config, LogFormat, setup};
use crate::location::ArchiveLocation;
use crate::log::{LogFlags, ServerLog};
use crate::when;
use crate::writer::WriterHandle;
use crate::wrong_use::WrongUse;

/// Exit code of a command that ran to its end, but could not transfer all events. The command's
/// report lists these events.
pub(crate) const IN_PART: u8 = 3;

/// How long events wait until the follow lists are read.
const TRUST_MAX: Duration = Duration::from_mins(1);

/// The flags for connections to relays.
#[derive(Clone, Debug, Args)]
pub(crate) struct RelayArgs {
    /// A file with the key to authenticate with (NIP-42): nsec1… or 64 hex digits
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Also send private events: protected events (NIP-70) and the kinds in `privacy.kinds`
    #[arg(long)]
    pub(crate) private: bool,
    /// Seconds to wait for a relay's answer to a request
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
}

impl RelayArgs {
    /// Returns the connection options. The maximum message length allows for the largest event that
    /// this archive accepts.
    pub(crate) fn client(&self, config: &Config) -> anyhow::Result<ClientOptions> {
        let key = self.key_file.as_deref().map(key).transpose()?;
        Ok(ClientOptions { key, ..client(config, Duration::from_secs(self.timeout)) })
    }
}

/// The flags of the log.
#[derive(Clone, Debug, Args)]
pub(crate) struct LogArgs {
    /// The level of the log (error, warn, info, debug or trace), or a filter [default: log.level,
    /// info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// The format of the log [default: log.format, text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

impl LogArgs {
    /// Starts the log.
    pub(crate) fn start(&self, location: &ArchiveLocation) -> anyhow::Result<()> {
        let flags = LogFlags { level: self.log_level.clone(), format: self.log_format };
        ServerLog::start(flags, &location.config.log).map_err(WrongUse)?;
        Ok(())
    }
}

/// Returns the connection options, without a key for authentication.
pub(crate) fn client(config: &Config, patience: Duration) -> ClientOptions {
    let defaults = ClientOptions::default();
    let message_bytes_max =
        defaults.message_bytes_max.max(config.limits.events.event_bytes_max.saturating_add(4096));
    ClientOptions { patience, message_bytes_max, ..defaults }
}

/// Reads a secret key from a file.
pub(crate) fn key(path: &Path) -> anyhow::Result<KeyPair> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the key in {} could not be read", path.display()))?;
    let text = text.trim();
    let bytes = hex::decode_32(text.to_ascii_lowercase().as_bytes())
        .or_else(|| npub::decode_secret(text))
        .and_then(KeyPair::from_secret);
    bytes.ok_or_else(|| {
        let path = path.display();
        WrongUse(format!("{path} holds no secret key: write it as nsec1… or as 64 hex digits"))
            .into()
    })
}

/// Returns the location of Nostr's shelf. Fails if this program does not serve Nostr.
pub(crate) fn events(location: &ArchiveLocation) -> anyhow::Result<ArchiveLocation> {
    let nostr = setup("nostr");
    let nostr =
        nostr.ok_or_else(|| WrongUse("this program does not store Nostr's events".into()))?;
    Ok(location.of(nostr.network))
}

/// The rules for events from relays. An event is accepted if a client could publish the event here;
/// a request of an author whom the policy blocks is carried out if it deletes something. Protected
/// events are accepted only from their authors, unless a stream accepts them from other relays.
#[derive(Clone)]
pub(super) struct RelayRules(Arc<RwLock<RulesInForce>>);

struct RulesInForce {
    limits: EventLimits,
    policy: EventPolicy,
    managers: SharedManagers,
    own_urls: OwnUrls,
    /// The bans and allows of the archive. The allows extend the policy.
    bans: Option<Moderation>,
    trust: Arc<Trust>,
    gate: TrustGate,
}

impl RulesInForce {
    fn new(config: &Config, bans: Option<Moderation>, trust: Arc<Trust>) -> Self {
        let (limits, policy) = (config.limits.events.clone(), config.policy.clone());
        let (managers, own_urls) = (SharedManagers::default(), OwnUrls::new(config.info.urls()));
        managers.store(Arc::new(config.managers.clone()));
        let gate = gate(&trust, bans.as_ref(), &managers);
        Self { limits, policy, managers, own_urls, bans, trust, gate }
    }

    /// Whether the follow list of a key does not count.
    fn are_closed_to(&self, key: &Key) -> bool {
        let is_banned = |bans: &Moderation| bans.bans_key(key);
        self.policy.deny_keys.contains(key) || self.bans.as_ref().is_some_and(is_banned)
    }
}

/// Returns the gate for events of keys that are not trusted.
fn gate(trust: &Arc<Trust>, bans: Option<&Moderation>, managers: &SharedManagers) -> TrustGate {
    let managers = ManagerKeys::new(Arc::clone(managers));
    let bans = bans.cloned().unwrap_or_default();
    TrustGate::new(Arc::clone(trust), bans, managers, SharedIdentity::default())
}

impl Drop for RulesInForce {
    fn drop(&mut self) {
        self.trust.close();
    }
}

impl RelayRules {
    /// Starts to apply the rules of `config`. `open` opens the archive with the follow lists.
    fn start(config: &Config, bans: Option<Moderation>, open: OpenStore) -> anyhow::Result<Self> {
        let trust = Trust::new(config.trust.clone());
        let rules = RulesInForce::new(config, bans, Arc::clone(&trust));
        let rules = Arc::new(RwLock::new(rules));
        // The thread ends with the rules.
        let of_thread = Arc::downgrade(&rules);
        let source = TrustSource {
            open,
            clock: Clock::System,
            hidden: None,
            is_barred: Box::new(move |key| {
                of_thread.upgrade().is_some_and(|rules| rules.read().are_closed_to(key))
            }),
        };
        trust.start(source).context("the thread that reads follow lists could not be started")?;
        trust.begin();
        Ok(Self(rules))
    }

    /// Replaces the rules with the rules of `config`.
    fn set(&self, config: &Config) {
        let mut rules = self.0.write();
        let (limits, policy) = (config.limits.events.clone(), config.policy.clone());
        (rules.limits, rules.policy) = (limits, policy);
        rules.own_urls = OwnUrls::new(config.info.urls());
        rules.managers.store(Arc::new(config.managers.clone()));
        rules.trust.set(config.trust.clone());
    }

    /// Replaces the bans and allows of the archive.
    fn set_bans(&self, bans: Option<Moderation>) {
        let mut rules = self.0.write();
        rules.gate = gate(&rules.trust, bans.as_ref(), &rules.managers);
        rules.bans = bans;
        rules.trust.note_bans();
    }

    /// Notes a record that was stored, which may be a follow list.
    fn note(&self, record: &Record<'_>) {
        let trust = Arc::clone(&self.0.read().trust);
        trust.note(record);
    }

    /// Waits until the follow lists are read, if they decide about events. Events that are refused
    /// for now would not be offered again.
    fn wait_for_trust(&self) {
        let trust = Arc::clone(&self.0.read().trust);
        if trust.mode() == RuleMode::Require && !trust.wait_until_read(TRUST_MAX) {
            tracing::debug!("the follow lists are not read yet");
        }
    }

    fn of_events(&self) -> EventRules {
        let rules = self.clone();
        Arc::new(move |event, bytes, protected| {
            let author = [*event.pubkey()];
            let proven = if protected { &author[..] } else { &[] };
            let mut arena = EventArena::new();
            if event.is_protected() && !protected {
                let reason = ("protected", "only its author may publish it".into());
                return Some(RuleRefusal { reason, is_of_request: false });
            }
            rules.wait_for_trust();
            let rules = rules.0.read();
            let RulesInForce { limits, policy, own_urls, bans, gate, .. } = &*rules;
            if let Some(refusal) =
                admit::refusal(event, bytes, limits, when::now_s(), proven, &mut arena)
            {
                let reason = ("policy", refusal.to_string());
                return Some(RuleRefusal { reason, is_of_request: false });
            }
            let refusal = match bans {
                Some(bans) => bans.policy_refusal(policy, event),
                None => policy.refusal(event),
            };
            let refusal = refusal.or_else(|| gate.refusal(policy, event));
            refusal.map(|refusal| RuleRefusal {
                reason: ("policy", refusal.to_string()),
                is_of_request: own_urls.are_named_by_deletion(event),
            })
        })
    }
}

/// An archive opened for reading and writing.
pub(crate) struct OpenArchive {
    pub(crate) local: LocalEnd,
    pub(crate) intake: EventIntake,
}

/// Opens the archive, and starts the threads that check and write events.
pub(crate) fn open(
    location: &ArchiveLocation,
    stored: Option<StoredListener>,
) -> anyhow::Result<OpenArchive> {
    let writer = location.write()?;
    let store = location.read_beside(&writer)?;
    let bans = location.bans_beside(&writer)?;
    let hidden = bans.as_ref().map(Moderation::hidden);
    let local = LocalEnd { network: location.network, store: Arc::clone(&store), hidden };
    let intake = intake(location, writer, (store, bans), stored)?;
    Ok(OpenArchive { local, intake })
}

/// Starts the threads that check events and pass them to `writer`. Before a signature is checked,
/// the event's id is looked up in `store`. A remote store is not asked for each event: it looks ids
/// up in batches while records are stored.
pub(crate) fn intake(
    location: &ArchiveLocation,
    writer: WriterHandle,
    (store, bans): (Arc<dyn Store>, Option<Moderation>),
    stored: Option<StoredListener>,
) -> anyhow::Result<EventIntake> {
    let of_rules = Arc::clone(&store);
    let open: OpenStore = Box::new(move || Ok(Arc::clone(&of_rules)));
    let rules = RelayRules::start(&location.config, bans, open)?;
    let mut options = intake_options(location, &rules, Some(Arc::clone(&store)));
    let is_near = !location.facts().is_remote;
    (options.known, options.stored) = (is_near.then_some(store), stored);
    let intake = EventIntake::start(options, Box::new(ArchiveWriter(writer)));
    intake.context("the threads that check events could not be started")
}

/// How long a snapshot of a server's files shows which events a request would delete.
const SNAPSHOT_MAX: Duration = Duration::from_secs(1);

/// Returns the rule for requests of authors who may not publish. The events that a request would
/// delete are looked up in `store`, or else in a snapshot of the files of a running server.
fn request_rule(location: &ArchiveLocation, store: Option<Arc<dyn Store>>) -> RequestRule {
    let location = location.of(location.network);
    let is_live = store.is_some() || !location.facts().is_in_directory;
    let opened = Mutex::new(store.map(|store| (Instant::now(), store)));
    Arc::new(move |record| {
        let mut opened = opened.lock();
        let is_fresh = |at: &Instant| is_live || at.elapsed() < SNAPSHOT_MAX;
        let store = match opened.as_ref().filter(|(at, _)| is_fresh(at)) {
            Some((_, store)) => Arc::clone(store),
            None => match location.read() {
                Ok(store) => Arc::clone(&opened.insert((Instant::now(), store)).1),
                Err(error) => {
                    tracing::debug!(
                        "a request is refused, as the archive cannot be read: {error:#}"
                    );
                    return false;
                }
            },
        };
        drop(opened);
        is_heard(&*store, record).unwrap_or_else(|error| {
            tracing::debug!(%error, "a request is refused, as the archive cannot be read");
            false
        })
    })
}

/// Returns the options for checking events before they are written to an archive. `store` is the
/// store in which the events of requests are looked up; see [`request_rule`].
fn intake_options(
    location: &ArchiveLocation,
    rules: &RelayRules,
    store: Option<Arc<dyn Store>>,
) -> IntakeOptions {
    IntakeOptions {
        network: location.network,
        read: ReadOptions {
            // The rules bound the length of events.
            record_bytes_max: usize::MAX,
            trusted: false,
            now_s: when::now_s(),
            own_urls: location.config.info.urls().collect(),
        },
        known: None,
        rules: rules.of_events(),
        requests: request_rule(location, store),
        batch_records: location.facts().batch_records,
        feed: None,
        stored: None,
    }
}

/// A writer of events that does not retry.
struct ArchiveWriter(WriterHandle);

impl EventWriter for ArchiveWriter {
    fn put(&mut self, records: Vec<Box<[u8]>>) -> Result<Vec<WriteOutcome>, String> {
        let outcomes = self.0.put(records).map_err(|error| format!("{error:#}"))?;
        match outcomes.iter().find_map(|outcome| outcome.as_ref().err()) {
            Some(why) => Err(format!("the server could not store an event: {why}")),
            None => Ok(outcomes),
        }
    }
}
