//! The table of all settings: the name of each, its documentation, and the field of [`Config`] that
//! it fills. The default file, the check of a file and the names in the environment all use it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hark_archive::Key;
use hark_archive::limits::Rate;
use hark_archive::retention::RetentionRule;
use hark_codec::hex;
use hark_codec::waku::ProtectedShard;
use hark_networks::waku::retention::Retention;
use hark_server::ranges;
use hark_store_postgres::shown;
use ipnet::IpNet;

use super::Config;
use super::address::StoreAddress;
use super::policy::PolicyList;
use super::typed::{TypedValue, did_you_mean};

/// A `[section]` of the file.
pub(crate) struct SettingsSection {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) settings: &'static [Setting],
}

/// One `key = value`.
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    pub(crate) doc: &'static str,
    /// The value as TOML.
    pub(crate) show: fn(&Config) -> String,
    pub(crate) set: fn(&mut Config, &TypedValue) -> Result<(), String>,
    /// Whether two configurations have the same value, including its secret parts.
    pub(crate) is_same: fn(&Config, &Config) -> bool,
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.key)
    }
}

macro_rules! settings {
    ($($key:literal $($field:ident).+ : $doc:literal;)*) => {
        &[$(Setting {
            key: $key,
            doc: $doc,
            show: |config| config.$($field).+.show(),
            set: |config, value| {
                config.$($field).+ = SettingType::read(value)?;
                Ok(())
            },
            is_same: |one, other| one.$($field).+ == other.$($field).+,
        }),*]
    };
}

pub(super) use settings;

pub(crate) static SECTIONS: &[SettingsSection] = &[
    SettingsSection {
        name: "server",
        doc: "Where Hark listens.",
        settings: settings! {
            "listen" listen: "Address and port. 0.0.0.0 is every IPv4 address of the machine.";
            "metrics_listen" metrics.listen: "An address and port of their own for /metrics and /healthz. Empty: the same as the relay's.";
            "metrics_allow" metrics.allow: "Addresses and networks that may read /metrics, e.g. [\"127.0.0.0/8\", \"10.0.0.0/8\"]; asked through a proxy, nobody may.";
            "trusted_proxies" proxies.trusted: "Addresses and networks of proxies whose word about their clients is taken, e.g. [\"127.0.0.1\"] for one on this\nmachine. Only proxies that set or extend the header below themselves: Tor and balancers of TCP connections do not.";
            "proxy_header" proxies.header: "The header they name the client in: x-forwarded-for, x-real-ip or forwarded. Of several hops, the last\none that is no trusted proxy counts.";
            "deflate_from_bytes" deflate_from_bytes: "Messages of so many bytes or more are compressed for clients that offer permessage-deflate. 0: none.";
            "verify_threads" threads.verify: "Threads that check signatures. 0: one a core.";
            "read_threads" threads.read: "Threads that search the archive. 0: by the number of cores.";
        },
    },
    SettingsSection {
        name: "archive",
        doc: "What is kept where, and how writes are grouped.",
        settings: settings! {
            "data" data: "The archive's directory. --data and HARK_DATA win over it.";
            "store" store: "Where events are: `embedded` for files in the data directory, or postgres://user:password@host/database.";
            "batch_writes_max" batch.batch_writes_max: "Events made durable with one sync, at most.";
            "batch_bytes_max" batch.batch_bytes_max: "Bytes of them, about at most.";
            "batch_wait_ms" batch.batch_wait: "How long a batch waits for company. 0: not at all, and batches grow with the load.";
            "queue_writes_max" batch.queue_max: "Events that may wait for the writer. Above it, senders wait.";
            "seal_records" seal_records: "Events that are indexed in memory before they become a segment.";
            "log_bytes_max" log_bytes_max: "Bytes of log after which they do, if that comes first.";
            "head_bytes_max" head_bytes_max: "Bytes of memory after which they do, about: events with many tags take more. Up to four times as many are in use\nwhile events come faster than segments are made; then writers wait.";
        },
    },
    SettingsSection {
        name: "postgres",
        doc: "How an archive in PostgreSQL is used (store = \"postgres://…\").",
        settings: settings! {
            "read_url" postgres.read_url: "postgres:// URL of a replica that questions go to. Empty: none. While it is behind or away, they go to the\nprimary, so that no answer misses what is there.";
            "connections_max" postgres.connections_max: "Connections for questions, as many again to a replica. One more is for writes, one to hear of what other servers write.";
            "statement_timeout_ms" postgres.statement_timeout: "How long a statement may take. A question that takes longer is answered with an error.";
            "part_days" postgres.part_days: "Days that one part of the tables holds. Counts when the tables are made.";
            "migrate" postgres.migrate: "Whether `hark serve` brings the tables up to date when it starts.";
        },
    },
    SettingsSection {
        name: "limits",
        doc: "Bounds, and what happens at them. Read again when this file changes.",
        settings: settings! {
            "connections_max" limits.connections_max: "Connections at a time. One more is answered with HTTP status 503.";
            "connections_per_address_max" limits.connections_per_address_max: "Connections of one address (of IPv6, of its first 64 bits). One more is answered with 429.";
            "handshake_timeout_ms" limits.handshake_timeout_ms: "How long a connection may take to send its HTTP request head.";
            "message_bytes_max" limits.message_bytes_max: "Bytes of one message from a client. A longer one ends the connection.";
            "ping_after_s" limits.ping_after_s: "Silence after which the server pings.";
            "idle_timeout_s" limits.idle_timeout_s: "Silence after which a connection is closed, and how long a client may take nothing of what waits for it.";
            "subscriptions_max" limits.subscriptions_max: "Subscriptions of one connection. One more is answered with CLOSED.";
            "subscription_bytes_max" limits.subscription_bytes_max: "Bytes of the REQs that one connection is subscribed with, together.";
            "questions_bytes_max" limits.questions_bytes_max: "Bytes of memory for the questions of all connections, subscriptions included; an address may have a quarter of\nit. One more question is answered with CLOSED.";
            "subscription_id_chars_max" limits.subscription_id_chars_max: "Characters of a subscription's name.";
            "filters_max" limits.filters_max: "Filters in a REQ or COUNT.";
            "filter_values_max" limits.filter_values_max: "Values in one filter: ids, authors, kinds and tag values together.";
            "limit_default" limits.limit_default: "Stored events a filter gets that names no limit.";
            "limit_max" limits.limit_max: "Stored events a filter gets at most; a higher limit is lowered to it.";
            "event_bytes_max" limits.event_bytes_max: "Bytes of one event, from clients and in imports.";
            "content_chars_max" limits.content_chars_max: "Characters of the content of an event from a client.";
            "event_tags_max" limits.event_tags_max: "Tags of an event from a client.";
            "created_at_ahead_s_max" limits.created_at_ahead_s_max: "How far an event's time may lie ahead.";
            "created_at_behind_s_max" limits.created_at_behind_s_max: "How old an event may be when it comes in. 0: of any age.";
            "auth_keys_max" limits.auth_keys_max: "Keys that one connection may prove with AUTH. One more is refused.";
            "auth_age_s_max" limits.auth_age_s_max: "How far the time of an AUTH may be from now, before and after.";
            "query_rows_max" limits.query_rows_max: "Rows that the searches of one REQ or COUNT may visit in all.";
            "slice_rows" limits.slice_rows: "Rows a search visits before the next one has its turn.";
            "searches_per_connection_max" limits.searches_per_connection_max: "REQs and COUNTs of one connection under way. Above it the connection is not read from.";
            "events_per_connection_max" limits.events_per_connection_max: "Events of one connection without an OK. Above it the connection is not read from.";
            "intake_bytes_max" limits.intake_bytes_max: "Bytes of events of all connections without an OK. Above it publishers wait.";
            "inbound_bytes_max" limits.inbound_bytes_max: "Bytes of messages that have not come whole, of all connections; an address may have a quarter of it. Above it\nthose that would need more are closed.";
            "outbox_pause_bytes" limits.outbox_pause_bytes: "Bytes waiting for a client to take them, above which its searches pause.";
            "outbox_bytes_max" limits.outbox_bytes_max: "Bytes waiting for a client, above which it is too slow and closed.";
            "outboxes_per_address_bytes_max" limits.outboxes_per_address_bytes_max: "Bytes waiting for all clients of one address. Above it, searches wait for those that have something to take,\nHTTP requests get status 503, and a live event closes a client that has more than its share.";
            "outboxes_bytes_max" limits.outboxes_bytes_max: "Bytes waiting for all clients. Above it the same happens, and all searches wait; from half of it on, those of\nclients that have something to take.";
            "held_bytes_max" limits.held_bytes_max: "Bytes of live events a subscription holds back until its stored ones are told.";
            "control_connections_max" limits.control_connections_max: "Commands that hand writes to the server at a time.";
            "control_frame_bytes_max" limits.control_frame_bytes_max: "Bytes of one frame from such a command.";
            "control_window" limits.control_window: "Events of such a command without an answer.";
            "drain_timeout_ms" limits.drain_timeout_ms: "How long a shutdown waits for what is under way.";
            "takeover_wait_ms" limits.takeover_wait_ms: "How long writes wait for a server that takes over. After that this one goes on, or refuses them where the other may write by then.";
            "takeover_drain_s" limits.takeover_drain_s: "How long a server that was taken over serves its connections to their end.";
            "takeover_records_max" limits.takeover_records_max: "Events it hears of meanwhile and keeps in memory. After that it closes them.";
        },
    },
    SettingsSection {
        name: "privacy",
        doc: "What only those see whom it concerns, once they have shown who they are (NIP-42).",
        settings: settings! {
            "kinds" private_kinds: "Kinds that only their author and those in their `p` tags get: direct messages (NIP-04), gift wraps (NIP-59) and passing gift wraps. []: everyone gets everything.";
        },
    },
    SettingsSection {
        name: "rates",
        doc: "How fast things may come: [so many a minute, so many at once after a rest]. Faster is refused with\n# `rate-limited:`. [0, 0]: any. `hark serve --unlimited` lifts all of them. Read again when this file changes.",
        settings: settings! {
            "events_per_address" limits.rates.events_per_address: "EVENT and AUTH messages from one address, whatever becomes of them.";
            "events_per_key" limits.rates.events_per_key: "Events of one key.";
            "questions_per_address" limits.rates.questions_per_address: "REQs, COUNTs and whatever else takes an answer, from one address.";
            "questions_per_key" limits.rates.questions_per_key: "REQs and COUNTs of one key that was proved with AUTH.";
            "rows_per_connection" limits.rates.rows_per_connection: "Rows that the searches of one connection visit; an event that is told counts as ten more.";
            "rows_per_address" limits.rates.rows_per_address: "Rows that the searches of one address visit.";
        },
    },
    SettingsSection {
        name: "policy",
        doc: "Who may come and what may be published. An empty list asks for nothing. An entry that starts with @\n# names a file with one entry a line, beside this one unless its path is absolute; # starts a comment there.\n# Read again when this file or one of those changes.",
        settings: settings! {
            "allow_addresses" lists.allow_addresses: "Only clients at these addresses and networks are served, e.g. [\"192.0.2.0/24\"].";
            "deny_addresses" lists.deny_addresses: "Clients at these are not; they get HTTP status 403.";
            "allow_keys" lists.allow_keys: "Only events of these public keys (hex) are taken, e.g. [\"@members.txt\"].";
            "deny_keys" lists.deny_keys: "Events of these are not. They get OK false `blocked:`, as below.";
            "allow_kinds" lists.allow_kinds: "Only events of these kinds are taken, e.g. [0, 1, \"30000-39999\"].";
            "deny_kinds" lists.deny_kinds: "Events of these are not.";
            "allow_words" lists.allow_words: "Only events with one of these words in content or tags are taken.";
            "deny_words" lists.deny_words: "Events with one of these are not. A word stands alone: \"coin\" is not in bitcoin, \"*coin\" is.";
            "pow_bits_min" lists.pow_bits_min: "Work an event must show and commit to (NIP-13): leading zero bits of its id.";
        },
    },
    SettingsSection {
        name: "info",
        doc: "What the relay says about itself (NIP-11).",
        settings: settings! {
            "name" info.name: "Its name.";
            "description" info.description: "A few words or lines.";
            "url" info.url: "Its public address, e.g. \"wss://relay.example\"; AUTH and requests to vanish name it. Without it, AUTH may name what the client's request called the server.";
            "other_urls" info.other_urls: "Further addresses that lead here, e.g. [\"ws://….onion\"]; for clients that know it by one of these.";
            "pubkey" info.pubkey: "Its operator's public key, hex.";
            "contact" info.contact: "How to reach the operator, e.g. \"mailto:me@relay.example\".";
            "icon" info.icon: "URL of a square picture.";
            "banner" info.banner: "URL of a wide picture.";
            "terms_of_service" info.terms_of_service: "URL of the terms.";
        },
    },
    SettingsSection {
        name: "retention",
        doc: "What is not kept for ever. Expired events always go.",
        settings: settings! {
            "bytes_max" retention.bytes_max: "Bytes on disk above which the oldest events go. 0: no bound.";
            "spared_kinds" retention.spared_kinds: "Kinds that no rule touches: deletions and requests to vanish keep others from coming back.";
            "every_s" retention_every: "Time between two rounds.";
            "batch_max" retention.batch_max: "Deletes in one write.";
            "clock_ahead_max_s" retention.clock_ahead_max_s: "How far the clock may be ahead of the ten newest events for anything to go by age; a clock that is wrong\nwould else cost what a rule names. 0: the clock is always believed.";
            "rules" retention.rules: "What goes when it is old, e.g.\n  rules = [{ kinds = [7], older_than = \"90d\" }, { not_kinds = [0, 3], older_than = \"5y\" }]\nkinds, not_kinds and authors (hex) narrow a rule; older_than is s, m, h, d, w or y.";
        },
    },
    SettingsSection {
        name: "mirror",
        doc: "A second store that gets every event the first one accepts, to move there without losing any, and back.",
        settings: settings! {
            "store" mirror.store: "A directory or a postgres:// URL. Empty: none. It is brought up to what the first has, then kept so; the first\nnever waits for it. `hark stats` says how far it is.";
            "queue_bytes_max" mirror.queue_bytes_max: "Bytes of writes that may wait for it. Above it, they are given up and found again by comparing both stores.";
        },
    },
    super::waku::SECTION,
    super::whisper::SECTION,
    SettingsSection {
        name: "log",
        doc: "Logs go to stderr.",
        settings: settings! {
            "level" log.level: "error, warn, info, debug or trace; or a filter like \"warn,hark_server=debug\".";
            "format" log.format: "text or json.";
            "slow_question_ms" log.slow_question_ms: "Time a REQ or COUNT takes to be answered from which it is logged, with its filters and plan. 0: never.";
        },
    },
];

/// Sections that are read again while the server runs.
const LIVE: [&str; 3] = ["limits", "rates", "policy"];
/// Settings of the [`LIVE`] sections that need a restart nevertheless.
const NOT_LIVE: [&str; 1] = ["intake_bytes_max"];

/// Settings of other sections that are read again while the server runs.
const LIVE_TOO: [(&str, &str); 8] = [
    ("waku", "protected_shards"),
    ("waku", "window_s"),
    ("waku", "queries"),
    ("waku", "query_rows_max"),
    ("whisper", "pow_min"),
    ("whisper", "envelope_bytes_max"),
    ("whisper", "queries"),
    ("whisper", "query_rows_max"),
];

/// Whether a change of the setting takes effect without a restart.
pub(crate) fn is_live(section: &SettingsSection, setting: &Setting) -> bool {
    LIVE.contains(&section.name) && !NOT_LIVE.contains(&setting.key)
        || LIVE_TOO.contains(&(section.name, setting.key))
}

/// A type that a setting can have.
pub(super) trait SettingType: Sized {
    fn read(value: &TypedValue) -> Result<Self, String>;
    fn show(&self) -> String;
}

pub(super) fn wanted<T>(what: &str, got: &TypedValue) -> Result<T, String> {
    let got = match got {
        // A value typed for the wrong setting may be an address with a password.
        TypedValue::Text(text) | TypedValue::Bare(text) => format!("{:?}", shown(text)),
        TypedValue::Whole(number) => number.to_string(),
        TypedValue::Fraction(number) => number.to_string(),
        TypedValue::Switch(switch) => switch.to_string(),
        TypedValue::List(_) => "a list".into(),
        TypedValue::Table(_) => "a table".into(),
        TypedValue::Other(what) => (*what).into(),
    };
    Err(format!("must be {what}, but is {got}"))
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

impl SettingType for u64 {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = "a whole number, 0 or above";
        match value {
            TypedValue::Whole(number) => Self::try_from(*number).or_else(|_| wanted(what, value)),
            TypedValue::Bare(text) => {
                text.replace('_', "").parse().or_else(|_| wanted(what, value))
            }
            _ => wanted(what, value),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingType for u32 {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Self::try_from(u64::read(value)?).or_else(|_| wanted("a smaller number", value))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingType for u16 {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Self::try_from(u64::read(value)?).or_else(|_| wanted("at most 65535", value))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingType for Retention {
    fn read(value: &TypedValue) -> Result<Self, String> {
        String::read(value)?.parse().map_err(|fault: String| format!("cannot be read: {fault}"))
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

impl SettingType for usize {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Self::try_from(u64::read(value)?).or_else(|_| wanted("a smaller number", value))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingType for bool {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Switch(switch) => Ok(*switch),
            TypedValue::Bare(text) => text.parse().or_else(|_| wanted("true or false", value)),
            _ => wanted("true or false", value),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// 0 stands for none.
impl SettingType for Option<u64> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Ok(Some(u64::read(value)?).filter(|number| *number > 0))
    }

    fn show(&self) -> String {
        self.unwrap_or(0).to_string()
    }
}

impl SettingType for String {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Text(text) | TypedValue::Bare(text) => Ok(text.clone()),
            _ => wanted("text in quotes", value),
        }
    }

    fn show(&self) -> String {
        quoted(self)
    }
}

/// Empty text stands for none.
impl SettingType for Option<String> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Ok(Some(String::read(value)?).filter(|text| !text.is_empty()))
    }

    fn show(&self) -> String {
        quoted(self.as_deref().unwrap_or(""))
    }
}

impl SettingType for StoreAddress {
    fn read(value: &TypedValue) -> Result<Self, String> {
        String::read(value).map(Self::new)
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

/// Empty text stands for none.
impl SettingType for Option<StoreAddress> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Ok(Option::<String>::read(value)?.map(StoreAddress::new))
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| quoted(""), StoreAddress::show)
    }
}

impl SettingType for PathBuf {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let path = String::read(value)?;
        if path.is_empty() { wanted("a directory", value) } else { Ok(path.into()) }
    }

    fn show(&self) -> String {
        quoted(&self.to_string_lossy())
    }
}

impl SettingType for SocketAddr {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = "an address and port like 127.0.0.1:7777 or [::]:7777";
        String::read(value)
            .ok()
            .and_then(|text| text.parse().ok())
            .map_or_else(|| wanted(what, value), Ok)
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

/// Empty text stands for none.
impl SettingType for Option<SocketAddr> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Text(text) | TypedValue::Bare(text) if text.is_empty() => Ok(None),
            _ => SocketAddr::read(value).map(Some),
        }
    }

    fn show(&self) -> String {
        self.map_or_else(|| quoted(""), |addr| addr.show())
    }
}

impl SettingType for Vec<IpNet> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = "a list of addresses and networks like [\"127.0.0.1\", \"10.0.0.0/8\"]";
        let ranges = texts(value).and_then(|texts| {
            texts.iter().map(|text| ranges::read(text).ok()).collect::<Option<_>>()
        });
        ranges.map_or_else(|| wanted(what, value), Ok)
    }

    fn show(&self) -> String {
        let ranges: Vec<String> = self.iter().map(|range| quoted(&range.to_string())).collect();
        format!("[{}]", ranges.join(", "))
    }
}

/// `[per_minute, at_once]`; [0, 0] stands for none.
impl SettingType for Option<Rate> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = "two whole numbers: [so many a minute, so many at once]";
        let numbers: Option<Vec<u64>> =
            value.entries().and_then(|list| list.iter().map(|n| u64::read(n).ok()).collect());
        match numbers.as_deref() {
            Some([0, 0]) => Ok(None),
            Some(&[per_minute, at_once]) if per_minute > 0 && at_once > 0 => {
                Ok(Some(Rate { per_minute, at_once }))
            }
            _ => wanted(what, value),
        }
    }

    fn show(&self) -> String {
        self.map_or("[0, 0]".into(), |rate| format!("[{}, {}]", rate.per_minute, rate.at_once))
    }
}

impl SettingType for PolicyList {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let entry = |value: &TypedValue| match value {
            TypedValue::Text(text) | TypedValue::Bare(text) => Some(text.clone()),
            TypedValue::Whole(number) => Some(number.to_string()),
            _ => None,
        };
        let entries =
            value.entries().and_then(|list| list.iter().map(entry).collect::<Option<_>>());
        entries
            .map(Self)
            .map_or_else(|| wanted("a list of entries like [\"one\", \"@file\"]", value), Ok)
    }

    fn show(&self) -> String {
        let entries: Vec<String> = self.0.iter().map(|entry| quoted(entry)).collect();
        format!("[{}]", entries.join(", "))
    }
}

impl SettingType for Vec<String> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        texts(value).map_or_else(|| wanted("a list of texts in quotes", value), Ok)
    }

    fn show(&self) -> String {
        let texts: Vec<String> = self.iter().map(|text| quoted(text)).collect();
        format!("[{}]", texts.join(", "))
    }
}

/// A list of texts.
pub(super) fn texts(value: &TypedValue) -> Option<Vec<String>> {
    value.entries()?.iter().map(|value| String::read(value).ok()).collect()
}

/// In milliseconds.
impl SettingType for Duration {
    fn read(value: &TypedValue) -> Result<Self, String> {
        u64::read(value).map(Self::from_millis)
    }

    fn show(&self) -> String {
        self.as_millis().to_string()
    }
}

/// In seconds.
impl SettingType for super::IntervalSeconds {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match u64::read(value)? {
            0 => wanted("at least 1", value),
            seconds => Ok(Self(seconds)),
        }
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl SettingType for super::LogFormat {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Text(text) | TypedValue::Bare(text) if text == "text" => Ok(Self::Text),
            TypedValue::Text(text) | TypedValue::Bare(text) if text == "json" => Ok(Self::Json),
            _ => wanted("\"text\" or \"json\"", value),
        }
    }

    fn show(&self) -> String {
        quoted(if *self == Self::Json { "json" } else { "text" })
    }
}

impl SettingType for super::waku::ForwardMode {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match String::read(value).as_deref() {
            Ok("auto") => Ok(Self::Auto),
            Ok("always") => Ok(Self::Always),
            Ok("never") => Ok(Self::Never),
            _ => wanted("\"auto\", \"always\" or \"never\"", value),
        }
    }

    fn show(&self) -> String {
        quoted(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl SettingType for Vec<ProtectedShard> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what =
            "a list of shards and public keys like [\"32:02…\"], a key of 66 or 130 hex digits";
        let shards = texts(value)
            .and_then(|texts| texts.iter().map(|text| text.parse().ok()).collect::<Option<_>>());
        shards.map_or_else(|| wanted(what, value), Ok)
    }

    fn show(&self) -> String {
        let shards: Vec<String> = self.iter().map(|shard| quoted(&shard.to_string())).collect();
        format!("[{}]", shards.join(", "))
    }
}

/// A list of numbers below 65,536.
fn numbers(value: &TypedValue) -> Option<Vec<u16>> {
    value.entries()?.iter().map(|number| u16::read(number).ok()).collect()
}

impl SettingType for Vec<u16> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        numbers(value).map_or_else(|| wanted("a list of shards like [0, 1]", value), Ok)
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl SettingType for Vec<u32> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let kinds = numbers(value).map(|kinds| kinds.into_iter().map(u32::from).collect());
        kinds.map_or_else(|| wanted("a list of kinds like [1, 7]", value), Ok)
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl SettingType for Vec<RetentionRule> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value.entries() {
            Some(list) => list.iter().map(rule).collect(),
            None => wanted("a list of rules in TOML", value),
        }
    }

    fn show(&self) -> String {
        let rules: Vec<String> = self.iter().map(show_rule).collect();
        format!("[{}]", rules.join(", "))
    }
}

fn rule(value: &TypedValue) -> Result<RetentionRule, String> {
    const KEYS: [&str; 4] = ["kinds", "not_kinds", "authors", "older_than"];
    let TypedValue::Table(table) = value else {
        return wanted("a rule like { older_than = \"90d\" }", value);
    };
    let mut rule = RetentionRule::default();
    let mut older_than = None;
    for (key, line, value) in table {
        let read = match key.as_str() {
            "kinds" => SettingType::read(value).map(|kinds| rule.kinds = Some(kinds)),
            "not_kinds" => SettingType::read(value).map(|kinds| rule.not_kinds = kinds),
            "authors" => authors(value).map(|authors| rule.authors = Some(authors)),
            "older_than" => age(value).map(|age_s| older_than = Some(age_s)),
            _ => Err(format!("unknown{}", did_you_mean(key, KEYS.into_iter()))),
        };
        read.map_err(|fault| format!("`{key}` of a rule, line {line}: {fault}"))?;
    }
    // A rule without an age would delete records of any age, so the age is mandatory.
    rule.older_than_s = older_than.ok_or("has a rule without `older_than`, e.g. \"90d\"")?;
    Ok(rule)
}

fn age(value: &TypedValue) -> Result<u64, String> {
    let what = "an age like \"90d\" (s, m, h, d, w, y)";
    let TypedValue::Text(text) = value else { return wanted(what, value) };
    let years = text.strip_suffix('y').and_then(|years| years.parse::<u64>().ok());
    years
        .and_then(|years| years.checked_mul(365 * 86_400))
        .or_else(|| crate::when::age(text))
        .map_or_else(|| wanted(what, value), Ok)
}

fn authors(value: &TypedValue) -> Result<Vec<Key>, String> {
    let what = "a list of public keys, 64 lowercase hex digits each";
    let TypedValue::List(list) = value else { return wanted(what, value) };
    let key = |value: &TypedValue| match value {
        TypedValue::Text(text) => hex::decode_32(text.as_bytes()),
        _ => None,
    };
    list.iter().map(key).collect::<Option<_>>().map_or_else(|| wanted(what, value), Ok)
}

fn show_rule(rule: &RetentionRule) -> String {
    let mut parts = Vec::new();
    if let Some(kinds) = &rule.kinds {
        parts.push(format!("kinds = {kinds:?}"));
    }
    if !rule.not_kinds.is_empty() {
        parts.push(format!("not_kinds = {:?}", rule.not_kinds));
    }
    if let Some(authors) = &rule.authors {
        let keys: Vec<String> = authors
            .iter()
            .map(|key| format!("\"{}\"", String::from_utf8_lossy(&hex::encode_32(key))))
            .collect();
        parts.push(format!("authors = [{}]", keys.join(", ")));
    }
    parts.push(format!("older_than = \"{}s\"", rule.older_than_s));
    format!("{{ {} }}", parts.join(", "))
}
