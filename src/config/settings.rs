//! The table of all settings: the name of each setting, its documentation, and the field of
//! [`Config`] that it sets. The default file, the check of a file and the names of environment
//! variables are derived from this table.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hark_archive::Key;
use hark_archive::limits::Rate;
use hark_archive::retention::RetentionRule;
use hark_codec::waku::ProtectedShard;
use hark_networks::waku::retention::Retention;
use hark_server::ranges;
use hark_store_postgres::shown;
use ipnet::IpNet;

use super::address::StoreAddress;
use super::policy::PolicyList;
use super::typed::{TypedValue, did_you_mean};
use super::{Config, keys};

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
        doc: "Where Hark listens, and which proxies it trusts.",
        settings: settings! {
            "listen" listen: "Address and port of the relay. 0.0.0.0 stands for every IPv4 address of the machine.";
            "metrics_listen" metrics.listen: "A separate address and port for /metrics and /healthz. The relay's address then has no /metrics, but still /healthz.\nEmpty: the relay's address serves both.";
            "metrics_allow" metrics.allow: "Addresses and networks that may read /metrics, e.g. [\"127.0.0.0/8\", \"10.0.0.0/8\"]. A request that comes through a\nproxy is always refused.";
            "trusted_proxies" proxies.trusted: "Addresses and networks of proxies that Hark trusts to name their clients, e.g. [\"127.0.0.1\"] for one on this machine.\nList only proxies that set or extend the header below themselves. Tor and TCP load balancers do not.";
            "proxy_header" proxies.header: "The header in which these proxies name the client: x-forwarded-for, x-real-ip or forwarded. If it lists several\naddresses, the last one that is not a trusted proxy counts.";
            "deflate_from_bytes" deflate_from_bytes: "Messages of this many bytes or more are compressed for clients that offer permessage-deflate. 0: none.";
            "verify_threads" threads.verify: "Threads that check signatures. 0: one for each core.";
            "read_threads" threads.read: "Threads that search the archive. 0: chosen by the number of cores.";
        },
    },
    SettingsSection {
        name: "archive",
        doc: "Where the archive is, and how writes are grouped.",
        settings: settings! {
            "data" data: "The archive's directory. --data and HARK_DATA override it.";
            "store" store: "Where events are stored: `embedded` for files in the data directory, or postgres://user:password@host/database.";
            "batch_writes_max" batch.batch_writes_max: "The most events in a batch. A batch is made durable with one sync.";
            "batch_bytes_max" batch.batch_bytes_max: "The most bytes of events in a batch, approximately.";
            "batch_wait_ms" batch.batch_wait: "Milliseconds that a batch waits for further events after its first one. 0: it does not wait; batches then grow\nwith the load.";
            "queue_writes_max" batch.queue_max: "The most events that wait for the writer. Above it, senders wait.";
            "seal_records" seal_records: "Number of events in memory at which they are sealed into a segment.";
            "log_bytes_max" log_bytes_max: "Bytes of log at which the events in memory are sealed, if that comes first. A change takes effect while the server\nruns.";
            "head_bytes_max" head_bytes_max: "Bytes of memory, approximately, at which the events in memory are sealed, if that comes first. Events with many tags\ntake more memory. While events come faster than segments are written, up to four times as much is in use;\nabove that, writers wait.";
            "scrub_days" scrub_days: "Days within which a running server reads the whole archive once and compares its indices with its records, a little\nat a time (\"scrubbing\"). Damaged indices are made again, damaged records are told of. 0: it does not.";
        },
    },
    SettingsSection {
        name: "postgres",
        doc: "How an archive in PostgreSQL is used (store = \"postgres://…\").",
        settings: settings! {
            "read_url" postgres.read_url: "postgres:// URL of a replica that answers questions. Empty: none. While the replica is behind or unreachable, the\nprimary answers them, so that no answer lacks a stored event.";
            "connections_max" postgres.connections_max: "The most connections for questions; a replica has as many again. Two more are for writes and for notifications of\nwhat other servers write.";
            "statement_timeout_ms" postgres.statement_timeout: "Milliseconds that a statement may take. A question with a longer statement is answered with an error.";
            "part_days" postgres.part_days: "Days that one part of the tables holds. The number is fixed when the tables are created.";
            "shards" postgres.shards: "Into how many shards each table is divided if the database is a Citus cluster, whose tables have no parts.\nThe number is fixed when the tables are created: some for each worker that there will ever be. A question\nthat is not for single authors, ids or tags asks every shard.";
            "migrate" postgres.migrate: "Whether `hark serve` applies missing migrations to the tables when it starts. If not, `hark migrate up` does.";
        },
    },
    SettingsSection {
        name: "limits",
        doc: "Bounds, and what happens at them. Changes of this file take effect while the server runs.",
        settings: settings! {
            "connections_max" limits.connections_max: "The most connections at a time. One more is answered with HTTP status 503.";
            "connections_per_address_max" limits.connections_per_address_max: "The most connections of one address (of IPv6, of its first 64 bits) at a time. One more is answered with HTTP\nstatus 429.";
            "handshake_timeout_ms" limits.handshake_timeout_ms: "Milliseconds that a connection may take to send its HTTP request head. After that it is closed.";
            "message_bytes_max" limits.message_bytes_max: "The most bytes of a message from a client. A longer one ends the connection. A REQ, COUNT or NEG-OPEN has at most\n256 KiB, or 80 bytes for each of filter_values_max.";
            "ping_after_s" limits.ping_after_s: "Seconds of silence after which the server sends a ping.";
            "idle_timeout_s" limits.idle_timeout_s: "Seconds of silence after which a connection is closed. A connection is also closed if its client reads nothing of\nwhat waits for it for as long.";
            "subscriptions_max" limits.subscriptions_max: "The most subscriptions of a connection. One more is answered with CLOSED.";
            "subscription_bytes_max" limits.subscription_bytes_max: "The most bytes of the REQs of all subscriptions of a connection together. More are answered with CLOSED.";
            "questions_bytes_max" limits.questions_bytes_max: "The most bytes of memory for the questions of all connections, subscriptions included. One address may use a quarter\nof it. A question above it is answered with CLOSED.";
            "subscription_id_chars_max" limits.subscription_id_chars_max: "The most characters of a subscription's name. A longer one is refused.";
            "filters_max" limits.filters_max: "The most filters in a REQ or COUNT. More are answered with CLOSED.";
            "filter_values_max" limits.filter_values_max: "The most values in a filter: ids, authors, kinds and tag values together. More are answered with CLOSED.";
            "limit_default" limits.limit_default: "Number of stored events that are sent for a filter without a limit, and the rest of the last one's second: limit_max\nin all.";
            "limit_max" limits.limit_max: "The most stored events that are sent for a filter, whatever it asks for. A higher limit is lowered to it.";
            "negentropy_per_connection_max" limits.negentropy_per_connection_max: "The most comparisons (NIP-77, negentropy) of a connection at a time. One more is answered with NEG-ERR. 0: NIP-77 is\nnot offered.";
            "negentropy_events_max" limits.negentropy_events_max: "The most events that a comparison may be over. A filter that more events match is answered with NEG-ERR, which names\nthis bound.";
            "negentropy_connection_bytes_max" limits.negentropy_connection_bytes_max: "The most bytes of memory for the comparisons of a connection, about 40 for each event. More are answered with NEG-ERR.";
            "negentropy_bytes_max" limits.negentropy_bytes_max: "The most bytes of memory for the comparisons of all connections. One address may use a quarter of it. More are\nanswered with NEG-ERR.";
            "negentropy_message_bytes_max" limits.negentropy_message_bytes_max: "The most bytes of a NEG-MSG to a client. What does not fit is left for the next one.";
            "negentropy_idle_s" limits.negentropy_idle_s: "Seconds after which a comparison is ended with NEG-ERR if its client does not go on.";
            "event_bytes_max" limits.event_bytes_max: "The most bytes of an event as it is stored, from clients and in imports. A larger one is refused.";
            "content_chars_max" limits.content_chars_max: "The most characters of the content of an event from a client. An event with more is refused.";
            "event_tags_max" limits.event_tags_max: "The most tags of an event from a client. An event with more is refused.";
            "list_tags_max" limits.list_tags_max: "The most tags of a list, an event of kind 3 or of a kind from 10000 to 39999, if they may be more than those of\nother events.";
            "created_at_ahead_s_max" limits.created_at_ahead_s_max: "Seconds that an event's time may lie in the future. An event further ahead is refused.";
            "created_at_behind_s_max" limits.created_at_behind_s_max: "Seconds that the time of an event may lie in the past when the event comes in. An older one is refused. 0: any age.";
            "auth_keys_max" limits.auth_keys_max: "The most keys that a connection may prove with AUTH. One more is refused.";
            "auth_age_s_max" limits.auth_age_s_max: "Seconds that the time of an AUTH may lie before or after now. An AUTH further away is refused.";
            "query_rows_max" limits.query_rows_max: "The most rows that the searches of one REQ or COUNT may visit together, with what is looked up for them. Above it the answer ends with CLOSED.";
            "slice_rows" limits.slice_rows: "Rows that a search visits before the next search continues. In files 2 ms end a slice as well.";
            "searches_per_connection_max" limits.searches_per_connection_max: "The most unanswered REQs and COUNTs of a connection. Above it nothing more is read from the connection.";
            "events_per_connection_max" limits.events_per_connection_max: "The most events of a connection without an OK. Above it nothing more is read from the connection.";
            "intake_bytes_max" limits.intake_bytes_max: "The most bytes of events without an OK, of all connections. Above it, clients that publish wait. A change needs a\nrestart.";
            "inbound_bytes_max" limits.inbound_bytes_max: "The most bytes of incomplete messages, of all connections. One address may use a quarter of it. A connection that\nwould exceed it is closed.";
            "outbox_pause_bytes" limits.outbox_pause_bytes: "Bytes waiting for a client to read them, above which its searches pause.";
            "outbox_bytes_max" limits.outbox_bytes_max: "Bytes waiting for a client to read them, above which the client is too slow and its connection is closed.";
            "outboxes_per_address_bytes_max" limits.outboxes_per_address_bytes_max: "Bytes waiting for all clients of one address. Above it, searches of clients that have bytes to read wait, HTTP\nrequests get status 503, and a live event closes a connection that has more than its share.";
            "outboxes_bytes_max" limits.outboxes_bytes_max: "Bytes waiting for all clients. Above half of it, searches of clients that have bytes to read wait. Above all of it,\nevery search waits, HTTP requests get status 503, and a live event closes a connection that has more than its share.";
            "held_bytes_max" limits.held_bytes_max: "Bytes of live events that a subscription holds back until its stored events are sent. Above it the connection is\nclosed.";
            "control_connections_max" limits.control_connections_max: "The most connections to control.sock, by which commands pass their writes to the server. One more is closed.";
            "control_frame_bytes_max" limits.control_frame_bytes_max: "The most bytes of a frame on such a connection. A longer one ends the connection.";
            "control_window" limits.control_window: "The most events without an answer on such a connection. Above it nothing more is read from the connection.";
            "drain_timeout_ms" limits.drain_timeout_ms: "Milliseconds that a shutdown waits for work under way. After that it drops that work.";
            "takeover_wait_ms" limits.takeover_wait_ms: "Milliseconds that a server waits for a step of a server that takes over, while writes wait. After that it continues\nas before. If the other server may write by then, it refuses writes instead.";
            "takeover_drain_s" limits.takeover_drain_s: "Seconds that a server that was taken over serves its connections. After that it closes them.";
            "takeover_records_max" limits.takeover_records_max: "The most events that a server that was taken over receives and keeps in memory. Above it, it closes its connections.";
        },
    },
    SettingsSection {
        name: "privacy",
        doc: "Kinds that are sent only to their author and recipients, once these have authenticated (NIP-42). Changes of this\n# file take effect while the server runs, for subscriptions that are opened from then on.",
        settings: settings! {
            "kinds" private_kinds: "Kinds that only their author and the keys in their `p` tags receive: direct messages (NIP-04), gift wraps (NIP-59)\nand ephemeral gift wraps. []: everyone receives every kind.";
        },
    },
    SettingsSection {
        name: "rates",
        doc: "How fast messages may come: [number a minute, number at once after a pause]. Faster ones are refused with\n# `rate-limited:`. [0, 0]: no limit. `hark serve --unlimited` lifts all of them. Changes of this file take effect\n# while the server runs.",
        settings: settings! {
            "events_per_address" limits.rates.events_per_address: "EVENT and AUTH messages from one address, whatever their outcome. One counts once more for every 64 KiB.";
            "events_per_key" limits.rates.events_per_key: "Events of one key.";
            "questions_per_address" limits.rates.questions_per_address: "REQs, COUNTs and all other messages that are answered, from one address. REQs and COUNTs count once more for\nevery 64 KiB.";
            "questions_per_key" limits.rates.questions_per_key: "REQs and COUNTs of one key that was proved with AUTH.";
            "rows_per_connection" limits.rates.rows_per_connection: "Rows that the searches and comparisons of one connection visit. Each event that is sent counts as ten more.";
            "rows_per_address" limits.rates.rows_per_address: "Rows that the searches of one address visit, counted in the same way.";
            "spared_addresses" lists.spared_addresses: "Clients at these addresses and networks have no rates, e.g. [\"192.0.2.7\", \"@peers.txt\"]: relays that send what they\nhave, bridges, crawlers of your own. An entry that starts with @ names a file, as in [policy].";
            "spared_keys" lists.spared_keys: "Connections that have proved one of these public keys with AUTH have no rates, e.g. [\"npub1…\", \"@members.txt\"].\nEvents of these keys that others bring keep their rates.";
        },
    },
    SettingsSection {
        name: "policy",
        doc: "Who may connect and what may be published. \"*\" in a list of what is allowed stands for all; a list without any\n# entry allows nothing. An entry that starts with @ names a file with one entry a line; a relative path starts at the\n# folder of this file, and # starts a comment there. Changes of this file and of those files take effect while the\n# server runs, once they have not changed for a second, or for ten if an end may be missing; a file that has lost all\n# its entries is not used. Deletions and requests to vanish concern their author's own data: nothing here refuses\n# one of whoever has events here.",
        settings: settings! {
            "allow_addresses" lists.allow_addresses: "Only clients at these addresses and networks are served, e.g. [\"192.0.2.0/24\"]. [\"*\"]: all.";
            "deny_addresses" lists.deny_addresses: "Clients at these addresses and networks are not served. They get HTTP status 403.";
            "allow_keys" lists.allow_keys: "Only events of these public keys (hex or npub1…) are accepted, e.g. [\"@members.txt\"], and those of the next two\nsettings. [\"*\"]: of all keys.";
            "addressed_kinds" lists.addressed_kinds: "Beside allow_keys, events of these kinds are accepted from any key if a `p` tag names a key of allow_keys: gift wraps,\nwhose key is made for one message, zap receipts, and messages of wallets (NWC) and of remote signers. []: none.";
            "open_kinds" lists.open_kinds: "Beside allow_keys, events of these kinds are accepted from any key, e.g. [3, 10002].";
            "deny_keys" lists.deny_keys: "Events of these public keys are refused. As with the lists below, they get OK false `blocked:`.";
            "allow_kinds" lists.allow_kinds: "Only events of these kinds are accepted, e.g. [0, 1, \"30000-39999\"]. [\"*\"]: of all kinds.";
            "deny_kinds" lists.deny_kinds: "Events of these kinds are refused.";
            "allow_words" lists.allow_words: "Only events with one of these words in content or tags are accepted. [\"*\"]: all events.";
            "deny_words" lists.deny_words: "Events with one of these words are refused. Only whole words match: \"coin\" does not match bitcoin, \"*coin\" does.";
            "pow_bits_min" lists.pow_bits_min: "Proof of work that an event must have (NIP-13), as the number of leading zero bits of its id. One whose nonce tag\ncommits to less is refused. 0: none.";
            "wraps_need_auth" lists.wraps_need_auth: "Whether gift wraps (NIP-59) are accepted only from clients that have authenticated with some key (NIP-42). Their own\nkeys are made for one message, so no other list stops floods of them.";
        },
    },
    super::search::SECTION,
    SettingsSection {
        name: "info",
        doc: "What the relay tells clients about itself (NIP-11). Changes of this file take effect while the server runs.",
        settings: settings! {
            "name" info.name: "The relay's name.";
            "description" info.description: "A description of the relay, of a few words or lines.";
            "url" info.url: "The relay's public address, e.g. \"wss://relay.example\". AUTH and requests to vanish name it. If it is empty,\nclients can authenticate only by the address of this server itself, such as ws://127.0.0.1:7777, and requests to\nvanish that name this relay are refused.";
            "other_urls" info.other_urls: "Further addresses of the relay, e.g. [\"ws://….onion\"]. AUTH and requests to vanish may name these as well.";
            "pubkey" info.pubkey: "The operator's public key, in hex or as npub1…";
            "self" info.self_key: "The relay's own public key, if it has one that signs events for it, in hex or as npub1…";
            "contact" info.contact: "How to reach the operator, e.g. \"mailto:me@relay.example\".";
            "icon" info.icon: "URL of a square picture. The page shows it, and its visitors load it from there.";
            "banner" info.banner: "URL of a wide picture, which the page shows as well.";
            "terms_of_service" info.terms_of_service: "URL of the terms of service.";
        },
    },
    SettingsSection {
        name: "retention",
        doc: "What is deleted after some time. Expired events are always deleted. Changes of this file take effect while the\n# server runs.",
        settings: settings! {
            "bytes_max" retention.bytes_max: "Bytes on disk above which the oldest events are deleted, e.g. \"50GB\". 0: no bound.";
            "free_bytes_min" retention.free_bytes_min: "Free bytes of the disk below which the oldest records of every network are deleted, whoever filled the disk. Choose\nseveral times archive.log_bytes_max. 0: no bound. Archives in files only.";
            "erase_within" erase_within: "Time within which what was deleted, has expired or has vanished is gone from the files of every network, in s, m, h, d,\nw or y. Log files with such records are written anew twice in that time. \"0s\": not before their space is needed.";
            "spared_kinds" retention.spared_kinds: "Kinds that neither rules nor bytes_max delete. Deletions (5) and requests to vanish (62) stay even if they are not\nlisted, and do not expire: they keep the events that they deleted from coming back.";
            "every_s" retention_every: "Seconds between two rounds of retention.";
            "batch_max" retention.batch_max: "The most events that one write deletes.";
            "clock_ahead_max_s" retention.clock_ahead_max_s: "Seconds that the clock may be ahead of the time at which the archive was last in use. If it is further ahead, nothing is\ndeleted by age, because a wrong clock would delete all that a rule names. 0: the clock is always trusted.";
            "delete_brought" retention.delete_brought: "Whether rules by age, of every network, also delete what an import, an adoption or a copy has brought, if it was older\nthan they allow when it came. Until this is true it is kept; the log and /healthz say so.";
            "rules" retention.rules: "Events that are deleted when they are old, e.g.\n  rules = [{ kinds = [7], older_than = \"90d\" }, { not_kinds = [0, 3], older_than = \"5y\" }]\nkinds, not_kinds and authors (hex or npub1…) narrow a rule; older_than is in s, m, h, d, w or y.";
        },
    },
    SettingsSection {
        name: "mirror",
        doc: "A second store that receives every event that the first one accepts, to move to it without a loss, and back.",
        settings: settings! {
            "store" mirror.store: "Address of the second store: a directory or a postgres:// URL. Empty: none. It first receives what the first store\nhas, then every write; the first store never waits for it. `hark stats` shows its progress.";
            "stuck_after_s" mirror.stuck_after_s: "Seconds without progress after which /healthz reports that the mirror is stuck, with status 503. 0: it never does.";
            "queue_bytes_max" mirror.queue_bytes_max: "The most bytes of writes that wait for the second store. Above it they are discarded, and found again by a comparison\nof both stores.";
        },
    },
    super::waku::SECTION,
    super::whisper::SECTION,
    SettingsSection {
        name: "log",
        doc: "The log goes to stderr. Changes of this file take effect while the server runs, unless a flag overrides them.",
        settings: settings! {
            "level" log.level: "error, warn, info, debug or trace; or a filter such as \"warn,hark_server=debug\".";
            "format" log.format: "text or json.";
            "slow_question_ms" log.slow_question_ms: "Milliseconds from which the answer to a REQ or COUNT is slow. A slow one is logged with its filters and plan. 0: none.";
        },
    },
];

/// Sections that are read again while the server runs.
const LIVE: [&str; 7] = ["limits", "rates", "policy", "privacy", "info", "retention", "log"];
/// Settings of the [`LIVE`] sections whose changes nevertheless need a restart.
const NOT_LIVE: [&str; 1] = ["intake_bytes_max"];

/// Settings of other sections that are read again while the server runs.
const LIVE_TOO: [(&str, &str); 15] = [
    ("archive", "log_bytes_max"),
    ("mirror", "stuck_after_s"),
    ("waku", "protected_shards"),
    ("waku", "window_s"),
    ("waku", "queries"),
    ("waku", "query_rows_max"),
    ("waku", "retention"),
    ("whisper", "pow_min"),
    ("whisper", "envelope_bytes_max"),
    ("whisper", "envelopes"),
    ("whisper", "new_topics"),
    ("whisper", "queries"),
    ("whisper", "query_rows_max"),
    ("whisper", "retention_days"),
    ("whisper", "bytes_max"),
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
        // The value may be an address with a password, typed for the wrong setting.
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

const LISTEN_ADDRESS: &str = "an address and port like 127.0.0.1:7777 or [::]:7777";

/// Parses an address to listen on. `localhost` is the only accepted name, since other names may
/// resolve to several or changing addresses.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let local = port.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local.or_else(|| text.parse().ok()).ok_or_else(|| format!("must be {LISTEN_ADDRESS}"))
}

impl SettingType for SocketAddr {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let read = String::read(value).ok().and_then(|text| listen_address(&text).ok());
        read.map_or_else(|| wanted(LISTEN_ADDRESS, value), Ok)
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

/// An age such as "7d".
impl SettingType for super::EraseBound {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Ok(Self(Some(any_age(value)?).filter(|seconds| *seconds > 0)))
    }

    fn show(&self) -> String {
        let (seconds, day) = (self.0.unwrap_or(0), 86_400);
        let days = seconds > 0 && seconds % day == 0;
        quoted(&if days { format!("{}d", seconds / day) } else { format!("{seconds}s") })
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
    match any_age(value)? {
        0 => Err("must be above 0; `hark delete` deletes events of any age".into()),
        age_s => Ok(age_s),
    }
}

fn any_age(value: &TypedValue) -> Result<u64, String> {
    let what = "an age like \"90d\" (s, m, h, d, w, y)";
    let (TypedValue::Text(text) | TypedValue::Bare(text)) = value else {
        return wanted(what, value);
    };
    let years = text.strip_suffix('y').and_then(|years| years.parse::<u64>().ok());
    let age_s =
        years.and_then(|years| years.checked_mul(365 * 86_400)).or_else(|| crate::when::age(text));
    age_s.map_or_else(|| wanted(what, value), Ok)
}

fn authors(value: &TypedValue) -> Result<Vec<Key>, String> {
    let what = "a list of public keys, each in hex or as npub1…";
    let TypedValue::List(list) = value else { return wanted(what, value) };
    let key = |value: &TypedValue| match value {
        TypedValue::Text(text) => keys::public_key(text),
        _ => wanted(what, value),
    };
    list.iter().map(key).collect()
}

/// An age as it may be typed, in the largest unit that it is a multiple of.
fn shown_age(seconds: u64) -> String {
    let units = [("y", 365 * 86_400), ("w", 7 * 86_400), ("d", 86_400), ("h", 3_600), ("m", 60)];
    let fits = units.iter().find(|(_, unit_s)| seconds > 0 && seconds.is_multiple_of(*unit_s));
    fits.map_or_else(
        || format!("{seconds}s"),
        |(unit, unit_s)| format!("{}{unit}", seconds / unit_s),
    )
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
        let keys: Vec<String> =
            authors.iter().map(|key| format!("\"{}\"", keys::shown(key))).collect();
        parts.push(format!("authors = [{}]", keys.join(", ")));
    }
    parts.push(format!("older_than = \"{}\"", shown_age(rule.older_than_s)));
    format!("{{ {} }}", parts.join(", "))
}
