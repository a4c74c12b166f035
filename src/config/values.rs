//! The checked settings and their defaults.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hark_archive::retention::RetentionPolicy;
use hark_archive::writer::WriterOptions;
use hark_networks::Network as _;
use hark_networks::nostr::admit::host_name;
use hark_plugin::PluginOptions;
use hark_server::limits::Limits;
use hark_server::nostr::policy::{EventPolicy, nothing_allowed, nothing_answered};
use hark_server::nostr::{
    DEFLATE_FROM_BYTES, Managers, NameRules, OwnEvents, RelayInfo, ThreadCounts, TrustOptions,
};
use hark_server::tls::TlsOptions;
use hark_server::{
    AddressLists, ListedClients, ListenAddress, MetricsDoor, Proxies, RateGroup, RateGroups,
};

use super::files::{FileState, FileTexts};
use super::log::LogSettings;
use super::plugin::PluginSettings;
use super::policy::PolicyLists;
use super::rate_groups::TypedRateGroups;
use super::retention::{EraseBound, IntervalSeconds};
use super::search::SearchSettings;
use super::tls::TlsSettings;
use super::trust::TrustSettings;
use super::value::ValueOrigin;
use super::waku::WakuSettings;
use super::whisper::WhisperSettings;
use crate::stores::StoreAddress;

/// Checked settings.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) listen: Vec<ListenAddress>,
    pub(crate) metrics: MetricsDoor,
    pub(crate) proxies: Proxies,
    pub(crate) tls: TlsSettings,
    pub(crate) deflate_from_bytes: usize,
    pub(crate) threads: ThreadCounts,
    pub(crate) data: PathBuf,
    pub(crate) store: StoreAddress,
    pub(crate) batch: WriterOptions,
    pub(crate) seal_records: u32,
    pub(crate) log_bytes_max: u64,
    pub(crate) head_bytes_max: u64,
    pub(crate) scrub_days: u64,
    pub(crate) postgres: PostgresSettings,
    pub(crate) limits: Limits,
    pub(super) lists: PolicyLists,
    /// The address lists of `lists`, parsed. `policy` has the other lists.
    pub(crate) addresses: AddressLists,
    /// The clients without rate limits, parsed from `lists`.
    pub(super) spared: ListedClients,
    /// The groups with rates of their own, as typed.
    pub(super) rate_groups: TypedRateGroups,
    /// These groups with the entries of their files.
    pub(super) groups: Vec<RateGroup>,
    pub(crate) policy: EventPolicy,
    /// The rule about trusted keys, as typed.
    pub(super) trust_settings: TrustSettings,
    /// This rule with the entries of its files.
    pub(crate) trust: TrustOptions,
    pub(crate) plugin: PluginSettings,
    /// The rules about verified names, without the lists and the managers. `policy` has all rules.
    pub(super) names: NameRules,
    /// The keys that may manage the relay. The admins are parsed from `lists`.
    pub(crate) managers: Managers,
    /// The configuration file; `None` if no file was named.
    pub(crate) file: Option<PathBuf>,
    /// All files that were read, with their states just before the read.
    pub(crate) files: Vec<FileState>,
    /// The texts of these files.
    pub(super) texts: FileTexts,
    /// The origin of each typed setting, by section and key.
    pub(super) origins: BTreeMap<(&'static str, &'static str), ValueOrigin>,
    pub(crate) private_kinds: Vec<u32>,
    pub(crate) search: SearchSettings,
    pub(crate) info: RelayInfo,
    /// The file with the relay's own key.
    pub(crate) own_key: Option<String>,
    /// The events that the relay signs with this key.
    pub(crate) own_events: OwnEvents,
    pub(super) retention: RetentionPolicy,
    pub(super) retention_every: IntervalSeconds,
    pub(crate) erase_within: EraseBound,
    pub(crate) mirror: MirrorSettings,
    pub(crate) waku: WakuSettings,
    pub(crate) whisper: WhisperSettings,
    pub(crate) log: LogSettings,
}

/// The settings of an archive in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresSettings {
    pub(crate) read_url: Option<StoreAddress>,
    pub(crate) connections_max: usize,
    pub(crate) statement_timeout: Duration,
    pub(crate) part_days: u64,
    pub(crate) shards: u32,
    pub(crate) migrate: bool,
}

impl Default for PostgresSettings {
    fn default() -> Self {
        let options = hark_store_postgres::PostgresOptions::default();
        Self {
            read_url: options.read_url.map(StoreAddress::new),
            connections_max: options.pool_max,
            statement_timeout: options.statement_timeout,
            part_days: options.part_s / 86_400,
            shards: options.shards,
            migrate: options.migrate,
        }
    }
}

/// A second store that receives every write that the first store accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MirrorSettings {
    /// The address of the second store; `None` for no mirror.
    pub(crate) store: Option<StoreAddress>,
    pub(crate) stuck_after_s: u64,
    pub(crate) queue_bytes_max: usize,
}

impl MirrorSettings {
    /// Returns the time without progress after which the mirror counts as stuck; `None` for never.
    pub(crate) fn stuck_after(&self) -> Option<Duration> {
        (self.stuck_after_s > 0).then(|| Duration::from_secs(self.stuck_after_s))
    }
}

impl Default for Config {
    fn default() -> Self {
        let store = hark_store_embedded::EmbeddedOptions::default();
        let spared_kinds = hark_networks::nostr::Nostr.tombstone_kinds().to_vec();
        let retention = RetentionPolicy { spared_kinds, ..RetentionPolicy::default() };
        Self {
            listen: vec![ListenAddress::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 7777)))],
            metrics: MetricsDoor::default(),
            proxies: Proxies::default(),
            tls: TlsSettings::default(),
            deflate_from_bytes: DEFLATE_FROM_BYTES,
            threads: ThreadCounts::default(),
            data: "data".into(),
            store: StoreAddress::new("embedded".into()),
            batch: WriterOptions::default(),
            seal_records: store.seal_records,
            log_bytes_max: store.log_bytes_max,
            head_bytes_max: store.head_bytes_max,
            scrub_days: 7,
            postgres: PostgresSettings::default(),
            limits: Limits::default(),
            lists: PolicyLists::default(),
            addresses: AddressLists::default(),
            spared: ListedClients::default(),
            rate_groups: TypedRateGroups::default(),
            groups: Vec::new(),
            policy: EventPolicy::default(),
            trust_settings: TrustSettings::default(),
            trust: TrustOptions::default(),
            plugin: PluginSettings::default(),
            names: NameRules::default(),
            managers: Managers::default(),
            file: None,
            files: Vec::new(),
            texts: FileTexts::new(),
            origins: BTreeMap::new(),
            private_kinds: hark_server::nostr::PRIVATE_KINDS.to_vec(),
            search: SearchSettings::default(),
            info: RelayInfo::default(),
            own_key: None,
            own_events: OwnEvents::default(),
            retention_every: IntervalSeconds(retention.every.as_secs()),
            erase_within: EraseBound(Some(7 * 86_400)),
            retention,
            mirror: MirrorSettings {
                store: None,
                stuck_after_s: 60,
                queue_bytes_max: hark_archive::mirror::MirrorOptions::default().queue_bytes_max,
            },
            waku: WakuSettings::default(),
            whisper: WhisperSettings::default(),
            log: LogSettings::default(),
        }
    }
}

impl Config {
    /// Returns the origin of the certificate; `None` without TLS. A relative path of a file is in the
    /// directory of the configuration file. `data` is the archive's directory.
    pub(crate) fn tls_options(&self, data: &Path) -> Option<TlsOptions> {
        self.tls.options(self.folder(), data)
    }

    /// Returns the clients and kinds with rates of their own.
    pub(crate) fn rate_groups(&self) -> RateGroups {
        RateGroups::new(self.spared.clone(), self.groups.clone())
    }

    /// Returns the options of the plugin for published events.
    pub(crate) fn plugin_options(&self) -> PluginOptions {
        self.plugin.options(self.folder())
    }

    /// Returns the file with the relay's own key; `None` without a key.
    pub(crate) fn own_key_file(&self) -> Option<PathBuf> {
        Some(self.folder().join(self.own_key.as_ref()?))
    }

    /// Returns the directory of the configuration file.
    fn folder(&self) -> &Path {
        self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""))
    }

    /// Returns the host of `[info] url`; `None` if the URL is not set.
    pub(crate) fn url_host(&self) -> Option<String> {
        let host = host_name(self.info.url.as_deref()?);
        Some(host.trim_matches(['[', ']']).to_owned())
    }

    /// Returns one line for each probable mistake: an allow list without entries, which allows
    /// nothing; rules that leave nothing to read; a plugin that cannot be run; a certificate without
    /// effect.
    pub(crate) fn advice(&self) -> Vec<String> {
        let addresses = self.addresses.warn_if_none_allowed().map(str::to_owned);
        let lists = self.policy.empty_lists().map(nothing_allowed);
        let unanswered = nothing_answered(&self.policy.questions, self.limits.auth_keys_max);
        let trust = self.trust.advice(self.policy.allow_keys.is_some());
        let plugin = self.plugin_options().fault();
        let tls = self.unused_certificate();
        addresses
            .into_iter()
            .chain(lists)
            .chain(unanswered)
            .chain(trust)
            .chain(plugin)
            .chain(tls)
            .collect()
    }

    /// Returns a line if the server has a certificate that no door presents.
    fn unused_certificate(&self) -> Option<String> {
        let has_peers = self.waku.serve && self.waku.secure_listeners().next().is_some();
        let is_unused = self.tls.is_enabled() && !self.tls.is_used(has_peers);
        is_unused.then(|| {
            "[tls] has a certificate that no door presents: set `relay` or `rest` in [tls], or let the \
             Waku node listen on /wss"
                .into()
        })
    }

    /// Returns `policy` with the values that are common to all shelves. These are the interval, the
    /// batch size, the clock tolerance, the deletion of imported records, and the free bytes of the
    /// disk.
    pub fn retention(&self, policy: &RetentionPolicy) -> RetentionPolicy {
        RetentionPolicy {
            every: Duration::from_secs(self.retention_every.0),
            batch_max: self.retention.batch_max,
            clock_ahead_max_s: self.retention.clock_ahead_max_s,
            delete_brought: self.retention.delete_brought,
            free_bytes_min: self.retention.free_bytes_min,
            ..policy.clone()
        }
    }
}
