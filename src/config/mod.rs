//! The configuration. Values are read as typed (`typed`), then checked setting by setting
//! (`settings`) and stored in [`Config`], which the rest of the binary uses. The file overrides the
//! defaults, the environment overrides the file, and flags (in `commands`) override the
//! environment.

pub(crate) mod bounds;
mod checks;
mod keys;
pub(crate) mod log;
mod mail_keys;
mod networks;
mod nostr;
mod policy;
mod reread;
mod search;
pub(crate) mod settings;
mod sizes;
mod typed;
mod waku;
mod whisper;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hark_archive::retention::RetentionPolicy;
use hark_networks::Network as _;
use hark_server::limits::Limits;
use hark_server::nostr::{DEFLATE_FROM_BYTES, RelayInfo, ThreadCounts};
use hark_server::{AddressLists, MetricsDoor, Proxies, SparedClients};

pub(crate) use log::{LogFormat, LogSettings};
pub use networks::{
    DoorFacts, NETWORKS, NetworkService, NetworkSetup, ReloadCallback, ShelfConfig,
};
pub(crate) use networks::{serve_these, setup, setups, shelf_config};
pub(crate) use reread::{FileState, FileWatch, LOOK_EVERY};
pub(crate) use settings::listen_address;
use waku::WakuSettings;
use whisper::WhisperSettings;

use crate::stores::{AddressForm, StoreAddress};

/// Checked settings.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) metrics: MetricsDoor,
    pub(crate) proxies: Proxies,
    pub(crate) deflate_from_bytes: usize,
    pub(crate) threads: ThreadCounts,
    pub(crate) data: PathBuf,
    pub(crate) store: StoreAddress,
    pub(crate) batch: hark_archive::writer::WriterOptions,
    pub(crate) seal_records: u32,
    pub(crate) log_bytes_max: u64,
    pub(crate) head_bytes_max: u64,
    pub(crate) scrub_days: u64,
    pub(crate) postgres: PostgresSettings,
    pub(crate) limits: Limits,
    lists: policy::PolicyLists,
    /// The parsed addresses in `lists`. `policy` is the parsed rest.
    pub(crate) addresses: AddressLists,
    /// The clients without rate limits, also from `lists`.
    pub(crate) spared: SparedClients,
    pub(crate) policy: hark_server::nostr::policy::EventPolicy,
    /// The configuration file; `None` if no file was named.
    pub(crate) file: Option<PathBuf>,
    /// All files that were read, with their states just before the read.
    pub(crate) files: Vec<FileState>,
    /// The texts of these files.
    texts: reread::FileTexts,
    pub(crate) private_kinds: Vec<u32>,
    pub(crate) search: search::SearchSettings,
    pub(crate) info: RelayInfo,
    retention: RetentionPolicy,
    retention_every: IntervalSeconds,
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

/// Seconds within which deleted records are gone from the files. `None` sets no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EraseBound(pub(crate) Option<u64>);

/// Seconds between two rounds of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IntervalSeconds(u64);

impl Default for Config {
    fn default() -> Self {
        let store = hark_store_embedded::EmbeddedOptions::default();
        let spared_kinds = hark_networks::nostr::Nostr.tombstone_kinds().to_vec();
        let retention = RetentionPolicy { spared_kinds, ..RetentionPolicy::default() };
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7777)),
            metrics: MetricsDoor::default(),
            proxies: Proxies::default(),
            deflate_from_bytes: DEFLATE_FROM_BYTES,
            threads: ThreadCounts::default(),
            data: "data".into(),
            store: StoreAddress::new("embedded".into()),
            batch: hark_archive::writer::WriterOptions::default(),
            seal_records: store.seal_records,
            log_bytes_max: store.log_bytes_max,
            head_bytes_max: store.head_bytes_max,
            scrub_days: 7,
            postgres: PostgresSettings::default(),
            limits: Limits::default(),
            lists: policy::PolicyLists::default(),
            addresses: AddressLists::default(),
            spared: SparedClients::default(),
            policy: hark_server::nostr::policy::EventPolicy::default(),
            file: None,
            files: Vec::new(),
            texts: reread::FileTexts::new(),
            private_kinds: hark_server::nostr::PRIVATE_KINDS.to_vec(),
            search: search::SearchSettings::default(),
            info: RelayInfo::default(),
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

/// The faults of a configuration. Each fault is one line that names the file and line, or the
/// variable.
#[derive(Debug)]
pub(crate) struct Faults {
    lines: Vec<String>,
    /// The files that were read or named, with their states just before the read.
    pub(crate) files: Vec<FileState>,
}

impl Faults {
    /// The faults, each in a line.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The faults alone, as one text.
    pub(crate) fn list(&self) -> String {
        self.lines.join("\n  ")
    }
}

impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the configuration cannot be used, and nothing was done:\n  {}\n\
             `hark config` prints every setting with its default",
            self.list()
        )
    }
}

impl std::error::Error for Faults {}

impl Config {
    /// Loads the configuration from the defaults, an optional file, and the environment. `stores`
    /// are the forms of the addresses of all stores.
    pub(crate) fn load(file: Option<&Path>, stores: &[AddressForm]) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let (mut typed, mut texts) = (Vec::new(), reread::FileTexts::new());
        // The state is taken before the file is read, so that a change during the read is noticed.
        let mut files: Vec<FileState> =
            file.map(|file| FileState::new(file.into())).into_iter().collect();
        if let Some(path) = file {
            match std::fs::read_to_string(path) {
                Ok(text) => {
                    (typed, faults) = typed::from_toml(path, &text);
                    texts.insert(path.into(), text);
                }
                Err(error) => {
                    let lines = vec![format!(
                        "{} could not be read: {error}; `--config FILE` names another, and \
                         `--config ''` none",
                        path.display()
                    )];
                    return Err(Faults { lines, files });
                }
            }
        }
        let variables = std::env::vars_os()
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)));
        let (variables, new) = typed::from_environment(variables);
        typed.extend(variables);
        faults.extend(new);
        let mut config = Self::default();
        for typed in &typed {
            let value = sizes::in_bytes(typed.setting.key, &typed.value);
            if typed.is_left_blank() {
                let key = typed.setting.key;
                faults.push(format!("{}: `{key}` is empty; write [] for none", typed.origin));
            } else if let Err(fault) = (typed.setting.set)(&mut config, &value) {
                let key = typed.setting.key;
                let or =
                    if sizes::is_size(key) { "; a size may be \"50GB\" or \"64MiB\"" } else { "" };
                faults.push(format!("{}: `{key}` {fault}{or}", typed.origin));
            }
        }
        let info = &mut config.info;
        for key in [&mut info.pubkey, &mut info.self_key].into_iter().flatten() {
            if let Ok(read) = keys::public_key(key) {
                *key = keys::shown(&read);
            }
        }
        let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
        files.extend(config.lists.files(folder).into_iter().map(FileState::new));
        config.files.clone_from(&files);
        // An invalid value was replaced by the default, so its setting causes no second fault.
        faults
            .extend(checks::faults(&config, stores).into_iter().map(|fault| placed(fault, &typed)));
        config.file = file.map(Path::to_path_buf);
        match config.lists.read(folder, &mut texts) {
            Ok(read) => (config.addresses, config.policy, config.spared) = read,
            Err(new) => faults.extend(new.into_iter().map(|fault| placed(fault, &typed))),
        }
        config.texts = texts;
        if faults.is_empty() { Ok(config) } else { Err(Faults { lines: faults, files }) }
    }

    /// Returns one line for each allow list without entries. Such a list allows nothing.
    pub(crate) fn empty_lists(&self) -> Vec<String> {
        let addresses = self.addresses.serve_nobody().map(str::to_owned);
        let lists = self.policy.empty_lists().map(hark_server::nostr::policy::nothing_allowed);
        addresses.into_iter().chain(lists).collect()
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

    /// Returns the settings that differ from `before`, each as `section.key = value`, and whether a
    /// running server applies the change.
    pub(crate) fn changes(&self, before: &Self) -> Vec<(String, bool)> {
        let mut changes = Vec::new();
        for section in settings::SECTIONS {
            for setting in section.settings {
                if !(setting.is_same)(self, before) {
                    let is_live = settings::is_live(section, setting);
                    let value = (setting.show)(self);
                    changes.push((format!("{}.{} = {value}", section.name, setting.key), is_live));
                }
            }
        }
        changes
    }

    /// Returns all settings as TOML. If `active`, they are plain settings without comments.
    /// Otherwise each has its documentation and is commented out, as a file to start from.
    pub(crate) fn to_toml(&self, active: bool) -> String {
        let mut out = String::new();
        for section in settings::SECTIONS {
            if !active {
                let _ = writeln!(out, "# {}", section.doc);
            }
            let _ = writeln!(out, "[{}]", section.name);
            for setting in section.settings {
                let value = (setting.show)(self);
                if active {
                    let _ = writeln!(out, "{} = {value}", setting.key);
                    continue;
                }
                for line in setting.doc.lines() {
                    let _ = writeln!(out, "# {line}");
                }
                let _ = writeln!(out, "#{} = {value}", setting.key);
            }
            out.push('\n');
        }
        out.pop();
        out
    }
}

/// Prefixes a fault that begins with a section and names settings, as in "[section] `key`", with the
/// place where the first of these settings was typed. Other faults are returned unchanged.
fn placed(fault: String, typed: &[typed::TypedSetting]) -> String {
    let Some((section, rest)) = fault.strip_prefix('[').and_then(|rest| rest.split_once("] "))
    else {
        return fault;
    };
    let mut keys = rest.split('`').skip(1).step_by(2);
    // The environment overrides the file.
    let place = keys.find_map(|key| {
        typed.iter().rev().find(|typed| typed.section == section && typed.setting.key == key)
    });
    match place {
        Some(typed) => format!("{}: {fault}", typed.origin),
        None => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::address_forms;

    fn faults(text: &str) -> String {
        let (typed, mut faults) = typed::from_toml("hark.toml".as_ref(), text);
        faults.extend(typed.into_iter().filter_map(|typed| {
            let fault = (typed.setting.set)(&mut Config::default(), &typed.value).err()?;
            Some(format!("{}: `{}` {fault}", typed.origin, typed.setting.key))
        }));
        faults.join("\n")
    }

    #[test]
    fn a_password_is_shown_nowhere() {
        for address in [
            "postgres://me:s3cret@host:5432/hark",
            "postgres://me@host/hark?password=s3cret",
            "host=host user=me password='a s3cret'",
            "mysql://me:s3cret@host/hark",
        ] {
            let text = format!(
                "[archive]\nstore = \"{address}\"\n[postgres]\nread_url = \"{address}\"\n\
                 [mirror]\nstore = \"{address}\"\n[whisper]\npassword = \"s3cret\"\n"
            );
            let mut config = Config::default();
            for typed in typed::from_toml("hark.toml".as_ref(), &text).0 {
                (typed.setting.set)(&mut config, &typed.value).unwrap();
            }
            assert_eq!(config.store.secret(), address);
            let changes = config.changes(&Config::default());
            assert_eq!(changes.len(), 4);
            let elsewhere = faults(&format!("[server]\nlisten = \"{address}\""));
            let toml = config.to_toml(true) + &config.to_toml(false);
            for printed in [format!("{changes:?}"), toml, elsewhere, format!("{config:?}")] {
                assert!(printed.contains("***") && !printed.contains("s3cret"), "{printed}");
            }
            // A change of only the password is still detected.
            let mut other = config.clone();
            other.store = StoreAddress::new(address.replace("s3cret", "other"));
            assert_eq!(other.changes(&config).len(), 1);
        }
    }

    #[test]
    fn lists_in_the_environment_are_written_as_in_a_file_or_with_commas() {
        let kinds = "HARK_PRIVACY_KINDS";
        let words = "HARK_POLICY_DENY_WORDS";
        let networks = "HARK_SERVER_METRICS_ALLOW";
        for (name, text, shown) in [
            (kinds, "[4, 1059]", "kinds = [4, 1059]"),
            (kinds, "4,1059", "kinds = [4, 1059]"),
            (kinds, " 4 , 1059, ", "kinds = [4, 1059]"),
            (kinds, "[\n  4,\n  1059,\n]", "kinds = [4, 1059]"),
            (kinds, "[]", "kinds = []"),
            (kinds, "", "kinds = []"),
            ("HARK_WAKU_SHARDS", "[0, 1]", "shards = [0, 1]"),
            (networks, "[\"127.0.0.1\", '10.0.0.0/8']", "[\"127.0.0.1/32\", \"10.0.0.0/8\"]"),
            (networks, "127.0.0.1, 10.0.0.0/8", "[\"127.0.0.1/32\", \"10.0.0.0/8\"]"),
            (networks, "[]", "metrics_allow = []"),
            (words, "[\"one, two\", \"@file\"]", "[\"one, two\", \"@file\"]"),
            (words, "\"one, two\", \"@file\"", "[\"one, two\", \"@file\"]"),
            (words, "don't,@file", "[\"don't\", \"@file\"]"),
            ("HARK_POLICY_DENY_KINDS", "[4, \"20000-29999\"]", "[\"4\", \"20000-29999\"]"),
            ("HARK_INFO_OTHER_URLS", "[\"ws://a\", \"ws://b\"]", "[\"ws://a\", \"ws://b\"]"),
            ("HARK_RATES_EVENTS_PER_KEY", "[6, 7]", "events_per_key = [6, 7]"),
            ("HARK_RATES_EVENTS_PER_KEY", "6,7", "events_per_key = [6, 7]"),
            ("HARK_RETENTION_SPARED_KINDS", "[5, 62]", "spared_kinds = [5, 62]"),
            ("HARK_RETENTION_RULES", "[]", "rules = []"),
        ] {
            let typed = typed::from_environment([(name.into(), text.into())].into_iter()).0;
            let mut config = Config::default();
            (typed[0].setting.set)(&mut config, &typed[0].value)
                .unwrap_or_else(|fault| panic!("{name}={text}: {fault}"));
            assert!(config.to_toml(true).contains(shown), "{name}={text}");
        }
        for (name, text) in [
            (kinds, "[4, 1059"),
            (kinds, "4;1059"),
            (kinds, "[4]\nother = 1"),
            (kinds, "[65536]"),
            ("HARK_RATES_EVENTS_PER_KEY", "[1]"),
            ("HARK_RETENTION_RULES", "1y"),
        ] {
            let typed = typed::from_environment([(name.into(), text.into())].into_iter()).0;
            let set = (typed[0].setting.set)(&mut Config::default(), &typed[0].value);
            assert!(set.unwrap_err().starts_with("must be "), "{name}={text}");
        }
    }

    #[test]
    fn defaults_and_values_in_force_can_be_read_back() {
        let config = Config::default();
        assert_eq!(checks::faults(&config, &address_forms()), [""; 0]);
        let uncommented: String = config
            .to_toml(false)
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        for text in [config.to_toml(true), config.to_toml(false), uncommented] {
            assert_eq!(faults(&text), "", "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_what_was_meant() {
        for (text, said) in [
            (
                "[server]\nlisten = 7777",
                "hark.toml:2: `listen` must be an address and port like 127.0.0.1:7777 or [::]:7777, but is 7777",
            ),
            (
                "[server]\nlistn = \"\"",
                "hark.toml:2: unknown setting `listn` in [server]; did you mean `listen`?",
            ),
            ("\n[limit]\n", "hark.toml:2: unknown section [limit]; did you mean `limits`?"),
            (
                "[server]\nevent_bytes_max = 1",
                "hark.toml:2: unknown setting `event_bytes_max` in [server]; [limits] has one",
            ),
            ("name = \"x\"", "hark.toml:1: `name` belongs in a section: [info] has one"),
            (
                "listen = 1",
                "hark.toml:1: `listen` belongs in a section: [server], [waku] and [whisper] have one",
            ),
            ("nmae = 1", "hark.toml:1: unknown section [nmae]"),
            ("[name]\nof = 1", "hark.toml:1: unknown section [name]; [info] has a setting `name`"),
            (
                "[limits]\nlisten = 1",
                "unknown setting `listen` in [limits]; [server], [waku] and [whisper] have one",
            ),
            ("server = 1", "hark.toml:1: `server` is a section"),
            (
                "[limits]\nlimit_max = -1",
                "hark.toml:2: `limit_max` must be a whole number, 0 or above, but is -1",
            ),
            ("[limits]\nlimit_max = ", "hark.toml:2: "),
            ("[retention]\nrules = [{ kinds = [1] }]", "without `older_than`"),
            (
                "[retention]\nrules = [{ kind = [1] }]",
                "`kind` of a rule, line 2: unknown; did you mean `kinds`?",
            ),
        ] {
            let faults = faults(text);
            assert!(faults.contains(said), "{text:?} says {faults:?}");
        }
        let shards = |count| {
            let mut config = Config::default();
            config.waku.shards = (0..count).collect();
            checks::faults(&config, &address_forms()).concat()
        };
        assert_eq!(shards(128), "");
        assert!(shards(129).contains("`shards` has 129 shards, at most 128 are served"));
    }

    #[test]
    fn faults_of_every_kind_are_told_at_once_each_with_its_line() {
        let folder = hark_testkit::disk::scratch("config-faults");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("hark.toml");
        let text = "[server]\nlistn = \"x\"\n[limits]\nlimit_max = \"many\"\nfilters_max = 0\n\
                    [info]\nother_urls = [\"wss://a.example\"]\n\
                    [policy]\nallow_keys = [\"@missing.txt\"]\n";
        std::fs::write(&file, text).unwrap();
        let faults = Config::load(Some(&file), &address_forms()).unwrap_err();
        for (line, said) in [
            (2, "unknown setting `listn` in [server]"),
            (4, "`limit_max` must be a whole number"),
            (5, "[limits] `filters_max` must be from 1 to "),
            (7, "[info] `other_urls` is set without `url`"),
            (9, "[policy] `allow_keys`: "),
        ] {
            let begin = format!("{}:{line}: {said}", file.display());
            let is_told = faults.lines().iter().any(|fault| fault.starts_with(&begin));
            assert!(is_told, "{begin}: {}", faults.list());
        }
        assert_eq!(faults.lines().len(), 5, "{}", faults.list());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn rules_are_read_from_either_form() {
        let text = "[[retention.rules]]\nkinds = [7]\nolder_than = \"90d\"\n";
        let typed = typed::from_toml("x".as_ref(), text).0;
        let mut config = Config::default();
        (typed[0].setting.set)(&mut config, &typed[0].value).unwrap();
        assert_eq!(config.retention.rules[0].older_than_s, 90 * 86_400);
        assert!(config.to_toml(true).contains("rules = [{ kinds = [7], older_than = \"90d\" }]"));
        let variable = ("HARK_RETENTION_RULES".into(), "[{ older_than = \"1y\" }]".into());
        let typed = typed::from_environment([variable].into_iter()).0;
        (typed[0].setting.set)(&mut config, &typed[0].value).unwrap();
        assert_eq!(config.retention.rules[0].older_than_s, 365 * 86_400);
    }
}
