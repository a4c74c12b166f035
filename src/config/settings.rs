//! The table of all settings: the name of each setting, the field of [`Config`](super::Config) that
//! it sets, its minimum and maximum if it is a number, whether a running server applies a change
//! (`live`), and its documentation. The default file, the check of a file, and the names of
//! environment variables are derived from this table.

use hark_server::nostr::TRUST_DEPTH_MAX;
use hark_store_embedded::{LOG_BYTES_MAX, SEAL_RECORDS_MAX};

use super::bounds::{ANY, BYTES, DAYS, MESSAGE, MILLISECONDS, SECONDS, THREADS};
use super::setting::{Setting, SettingsSection, settings};
use super::setting_type::SettingType;
use super::{waku, whisper};

pub(crate) static SECTIONS: &[SettingsSection] = &[
    SettingsSection {
        name: "server",
        doc: "Addresses on which Hark listens, and trusted proxies.",
        settings: settings! {
            "listen" listen: "Address and port of the relay, or a host name and a port, or a list, e.g. [\"127.0.0.1:7777\", \"[::1]:7777\"]. 0.0.0.0\nstands for every IPv4 address of the machine, and [::] for every address. A name is resolved once, at the start,\nand the relay listens on all addresses of the name. unix:/run/hark/relay.sock is a Unix socket for a proxy on this\nmachine. Connections through the socket count as connections from 127.0.0.1.";
            "metrics_listen" metrics.listen: "Separate address and port for /metrics and /healthz. The relay's address then serves /healthz, but not /metrics.\nEmpty: the relay's address serves both.";
            "metrics_allow" metrics.allow: "Addresses and networks that may read /metrics, e.g. [\"127.0.0.0/8\", \"10.0.0.0/8\"]. A request that comes through a\nproxy is always refused.";
            "trusted_proxies" proxies.trusted: "Addresses and networks of proxies from which Hark accepts the addresses of clients, e.g. [\"127.0.0.1\"] for a proxy\non this machine, also at a Unix socket. List only proxies that set or extend the header in proxy_header themselves.\nTor and TCP load balancers do not.";
            "proxy_header" proxies.header: "Header in which these proxies name the client: x-forwarded-for, x-real-ip or forwarded. If the header lists\nseveral addresses, the last address that is not a trusted proxy counts.";
            "deflate_from_bytes" deflate_from_bytes [0, BYTES]: "Size in bytes from which messages are compressed for clients that offer permessage-deflate. 0: no compression.";
            "verify_threads" threads.verify [0, THREADS]: "Number of threads that check signatures. 0: one for each core.";
            "read_threads" threads.read [0, THREADS]: "Number of threads that search the archive. 0: one for each core, or postgres.connections_max if the archive is in a\ndatabase.";
        },
    },
    SettingsSection {
        name: "tls",
        doc: "Certificate of the server, for TLS without a proxy. All addresses in server.listen then speak wss:// and https://,\n# and not ws://, unless relay is false. Unix sockets and server.metrics_listen have no TLS.",
        settings: settings! {
            "certificate" tls.certificate: "File with the certificate of the relay, followed by the certificates of its authority, in PEM, e.g. certbot's\nfullchain.pem. A relative path is in the directory of this file. A running server reads both files again within\na minute after a change, and at `hark reload`. Empty: no TLS.";
            "key" tls.key: "File with the private key of the certificate, in PEM and without a password, e.g. certbot's privkey.pem.";
            "acme_domains" tls.acme_domains: "Names of the relay, e.g. [\"relay.example\"], for which the server itself orders and renews a certificate by ACME.\nThe authority connects to port 443 of each name (TLS-ALPN-01). The certificate and its key are in the folder acme\nin the archive's directory. Empty: no certificate is ordered.";
            "acme_contact" tls.acme_contact: "URL at which the certificate authority reaches the operator, e.g. \"mailto:me@relay.example\". Empty: none.";
            "acme_directory" tls.acme_directory: "URL at which the certificate authority describes its service. Let's Encrypt's service for tests is\nhttps://acme-staging-v02.api.letsencrypt.org/directory.";
            "relay" tls.relay: "Whether the relay speaks TLS. If false, all addresses in server.listen speak ws:// and http://, for a proxy, and\nthe certificate is only for the REST APIs, if rest is set, and for the secure WebSockets (/wss) in waku.listen.";
            "rest" tls.rest: "Whether the REST APIs of Waku and Whisper speak https:// with this certificate, too.";
        },
    },
    SettingsSection {
        name: "archive",
        doc: "The location of the archive, and the sizes of its batches and segments.",
        settings: settings! {
            "data" data: "Directory of the archive. --data and HARK_DATA override this setting.";
            "store" store: "Where events are stored: `embedded` for files in the data directory, or postgres://user:password@host/database.";
            "batch_writes_max" batch.batch_writes_max [1, 1 << 20]: "Maximum number of events in a batch. One sync makes a batch durable.";
            "batch_bytes_max" batch.batch_bytes_max [0, 1 << 30]: "Maximum size of the events in a batch in bytes, approximately.";
            "batch_wait_ms" batch.batch_wait [0, 60_000]: "Milliseconds that a batch waits for further events after its first event. 0: no wait; batches then grow with the\nload.";
            // The queue is allocated as a whole.
            "queue_writes_max" batch.queue_max [1, 1 << 20]: "Maximum number of events that wait for the writer. Above this number, senders wait.";
            "seal_records" seal_records [1, SEAL_RECORDS_MAX as u64]: "Number of events in memory at which the server writes these events into a segment (sealing).";
            "log_bytes_max" log_bytes_max [1, LOG_BYTES_MAX] live: "Size of the log in bytes at which the events in memory are sealed, if the log reaches this size before\nseal_records.";
            "head_bytes_max" head_bytes_max [1 << 20, BYTES]: "Approximate size in bytes of the events in memory at which these events are sealed, if this size is reached first.\nEvents with many tags take more memory. While events arrive faster than segments are written, up to four times as\nmuch memory is in use; above that, writers wait.";
            "scrub_days" scrub_days [0, 3_650]: "Days within which a running server reads the whole archive once, a little at a time, and compares the indices\nwith the records (\"scrubbing\"). Damaged indices are rebuilt, and damaged records are reported. 0: no scrubbing.";
        },
    },
    SettingsSection {
        name: "postgres",
        doc: "Settings of an archive in PostgreSQL (store = \"postgres://…\").",
        settings: settings! {
            "read_url" postgres.read_url: "postgres:// URL of a replica that answers questions. Empty: no replica. While the replica is behind or\nunreachable, the primary answers the questions, so that no answer lacks a stored event.";
            "connections_max" postgres.connections_max [1, 1_000]: "Maximum number of connections for questions to the primary; a replica gets the same number. Two further\nconnections are for writes, and for notifications of other servers' writes.";
            // The timeout also bounds the statements of a commit, which takes some 100 ms on a busy
            // disk. The database stores the timeout as a signed 32-bit integer.
            "statement_timeout_ms" postgres.statement_timeout [1_000, 2_147_483_647]: "Maximum time in milliseconds that Hark waits for the database: for one statement, and for all statements together that\na question needs for its next results. A large batch of events may take twice as long. Then the answer is an error.";
            "part_days" postgres.part_days [1, DAYS]: "Days that one part of the tables covers. The number is fixed when the tables are created.";
            "shards" postgres.shards [1, 64_000]: "Number of shards of each table if the database is a Citus cluster, whose tables have no parts. The number is fixed\nwhen the tables are created: choose several shards for each worker that you expect. A question that names no\nauthors, ids or tags is sent to every shard.";
            "migrate" postgres.migrate: "Whether `hark serve` applies missing migrations to the tables at its start. If false, `hark migrate up` applies the\nmissing migrations.";
        },
    },
    SettingsSection {
        name: "limits",
        doc: "Limits, and the behaviour at each limit. Changes of this section take effect while the server runs, except\n# intake_bytes_max.",
        settings: settings! {
            "connections_max" limits.connections_max [1, ANY] live: "Maximum number of connections at a time. Further connections are answered with HTTP status 503.";
            "connections_per_address_max" limits.connections_per_address_max [1, ANY] live: "Maximum number of connections of one address (of IPv6, of its first 64 bits) at a time. Further connections are\nanswered with HTTP status 429.";
            "handshake_timeout_ms" limits.handshake_timeout_ms [1, MILLISECONDS] live: "Milliseconds that a connection may take for its TLS handshake, and then to send its HTTP request head. After that\ntime, the connection is closed.";
            "message_bytes_max" limits.message_bytes_max [1, 4 * MESSAGE] live: "Maximum size of a message from a client in bytes. A longer message ends the connection. A REQ, COUNT or NEG-OPEN\nhas at most 256 KiB or, if that is more, 80 bytes for each of filter_values_max.";
            "ping_after_s" limits.ping_after_s [0, SECONDS] live: "Seconds of silence after which the server sends a ping.";
            "idle_timeout_s" limits.idle_timeout_s [1, SECONDS] live: "Seconds of silence after which a connection is closed. A connection is also closed if its client reads none of\nthe waiting bytes for this time.";
            "subscriptions_max" limits.subscriptions_max [1, ANY] live: "Maximum number of subscriptions of a connection. Further subscriptions are answered with CLOSED.";
            "subscription_bytes_max" limits.subscription_bytes_max [0, BYTES] live: "Maximum size in bytes of the REQs of all subscriptions of a connection together. Further REQs are answered with\nCLOSED.";
            "questions_bytes_max" limits.questions_bytes_max [1 << 20, BYTES] live: "Maximum memory in bytes for the questions of all connections, subscriptions included. One address may use a\nquarter of this memory. Further questions are answered with CLOSED.";
            "subscription_id_chars_max" limits.subscription_id_chars_max [1, ANY] live: "Maximum length of a subscription's name in characters. Longer names are refused.";
            "filters_max" limits.filters.filters_max [1, ANY] live: "Maximum number of filters in a REQ or COUNT. A message with more filters is answered with CLOSED.";
            "filter_values_max" limits.filters.filter_values_max [1, ANY] live: "Maximum number of values in a filter: ids, authors, kinds and tag values together. A filter with more values is\nanswered with CLOSED.";
            "limit_default" limits.filters.limit_default [0, ANY] live: "Number of stored events that are sent for a filter without a limit. All other events of the last event's second\nfollow, up to limit_max events in all.";
            "limit_max" limits.filters.limit_max [1, ANY] live: "Maximum number of stored events that are sent for a filter. A higher limit in a filter is lowered to this\nnumber.";
            "negentropy_per_connection_max" limits.negentropy_per_connection_max [0, ANY] live: "Maximum number of comparisons (NIP-77, negentropy) of a connection at a time. Further comparisons are answered\nwith NEG-ERR. 0: NIP-77 is not offered.";
            "negentropy_events_max" limits.negentropy_events_max [1, ANY] live: "Maximum number of events in a comparison. A filter that matches more events is answered with NEG-ERR, which\nnames this bound.";
            "negentropy_connection_bytes_max" limits.negentropy_connection_bytes_max [0, BYTES] live: "Maximum memory in bytes for the comparisons of a connection, about 40 bytes for each event. Further comparisons\nare answered with NEG-ERR.";
            "negentropy_bytes_max" limits.negentropy_bytes_max [0, BYTES] live: "Maximum memory in bytes for the comparisons of all connections. One address may use a quarter of this memory.\nFurther comparisons are answered with NEG-ERR.";
            // The minimum is a message of 4 KiB as hex digits, and 1 KiB for the JSON around the digits.
            "negentropy_message_bytes_max" limits.negentropy_message_bytes_max [9_216, 4 * MESSAGE] live: "Maximum size of a NEG-MSG to a client in bytes. The rest is sent in the next NEG-MSG.";
            "negentropy_idle_s" limits.negentropy_idle_s [1, SECONDS] live: "Seconds without a message of the client after which a comparison is ended with NEG-ERR.";
            "event_bytes_max" limits.events.event_bytes_max [1, MESSAGE] live: "Maximum size of a stored event in bytes, from clients and in imports. Larger events are refused.";
            "content_chars_max" limits.events.content_chars_max [0, ANY] live: "Maximum length of the content of an event from a client in characters. Events with longer content are refused.";
            "event_tags_max" limits.events.event_tags_max [0, ANY] live: "Maximum number of tags of an event from a client. Events with more tags are refused.";
            "list_tags_max" limits.events.list_tags_max [0, ANY] live: "Maximum number of tags of a list, which is an event of kind 3 or of a kind from 10000 to 39999. If\nevent_tags_max is higher, lists may have that many tags.";
            "created_at_ahead_s_max" limits.events.created_at_ahead_s_max [0, SECONDS] live: "Seconds that an event's time may lie in the future. Events further ahead are refused.";
            "created_at_behind_s_max" limits.events.created_at_behind_s_max [0, SECONDS] live: "Seconds that an event's time may lie in the past when the event arrives. Older events are refused. 0: any age.";
            "auth_keys_max" limits.auth_keys_max [0, ANY] live: "Maximum number of keys that a connection may prove with AUTH. Further keys are refused.";
            "auth_age_s_max" limits.auth_age_s_max [0, SECONDS] live: "Seconds that the time of an AUTH may lie before or after the current time. Any other AUTH is refused.";
            "query_rows_max" limits.filters.query_rows_max [1, ANY] live: "Maximum number of rows that the searches of one REQ or COUNT may visit together, including lookups for these\nsearches. Above this number, the answer ends with CLOSED.";
            "slice_rows" limits.slice_rows [1, ANY] live: "Number of rows that a search visits before the next search continues. In an archive in files, a slice also ends\nafter 2 ms.";
            "searches_per_connection_max" limits.searches_per_connection_max [1, ANY] live: "Maximum number of unanswered REQs and COUNTs of a connection. Above this number, nothing more is read from the\nconnection.";
            "events_per_connection_max" limits.events_per_connection_max [1, ANY] live: "Maximum number of events of a connection that have no OK yet. Above this number, nothing more is read from the\nconnection.";
            "intake_bytes_max" limits.intake_bytes_max [1, BYTES]: "Maximum size in bytes of the events that have no OK yet, of all connections together. Above this size, clients\nthat publish wait. A change needs a restart.";
            "inbound_bytes_max" limits.inbound_bytes_max [1 << 20, BYTES] live: "Maximum size in bytes of the incomplete messages of all connections. One address may use a quarter of this size.\nA connection that would exceed the bound is closed.";
            "outbox_pause_bytes" limits.outbox_pause_bytes [0, BYTES] live: "Size in bytes of a client's unread output above which the client's searches pause.";
            "outbox_bytes_max" limits.outbox_bytes_max [0, BYTES] live: "Maximum size of a client's unread output in bytes. Above this size, the client is too slow and its connection is\nclosed.";
            "outboxes_per_address_bytes_max" limits.outboxes_per_address_bytes_max [1 << 20, BYTES] live: "Maximum size in bytes of the unread output of all clients of one address. Above this size, a search waits while\nits client has unread output, HTTP requests get status 503, and a live event closes a connection that has more\nthan its share. Answers of Waku and Whisper count separately, with the same bound.";
            "outboxes_bytes_max" limits.outboxes_bytes_max [1 << 20, BYTES] live: "Maximum size in bytes of the unread output of all clients. Above half of this size, a search waits while its\nclient has unread output. Above this size, every search waits, HTTP requests get status 503, and a live event\ncloses a connection that has more than its share. Answers of Waku and Whisper count separately, with the same\nbound, and are refused above this size.";
            "held_bytes_max" limits.held_bytes_max [0, BYTES] live: "Maximum size in bytes of the live events that a subscription holds back until its stored events are sent. Above\nthis size, the connection is closed.";
            "control_connections_max" limits.control_connections_max [0, 1 << 16] live: "Maximum number of connections to control.sock, by which commands pass their writes to the server. Further\nconnections are closed.";
            "control_frame_bytes_max" limits.control_frame_bytes_max [0, 1 << 30] live: "Maximum size in bytes of a frame on a connection to control.sock, unless the frame has a record. A longer frame\nends the connection.";
            // Each connection's queue is allocated as a whole.
            "control_window" limits.control_window [1, 1 << 16] live: "Maximum number of events without an answer on a connection to control.sock. Above this number, nothing more is\nread from the connection.";
            "drain_timeout_ms" limits.drain_timeout_ms [0, MILLISECONDS] live: "Milliseconds that a shutdown waits for work in progress. After that time, the remaining work is dropped.";
            "takeover_wait_ms" limits.takeover_wait_ms [0, MILLISECONDS] live: "Milliseconds that a server waits for each step of a new server that takes over. Writes wait meanwhile. After that\ntime, the old server continues as before; if the new server may already write, the old server refuses writes.";
            "takeover_drain_s" limits.takeover_drain_s [0, SECONDS] live: "Seconds for which a server serves its connections after another server has taken over. After that time, the\nconnections are closed.";
            "takeover_records_max" limits.takeover_records_max [0, ANY] live: "Maximum number of events that a server receives and keeps in memory after another server has taken over. Above\nthis number, the server closes its connections.";
        },
    },
    SettingsSection {
        name: "privacy",
        doc: "Kinds whose events are sent only to their author and recipients, after these have authenticated (NIP-42). Changes\n# of this file take effect while the server runs, for subscriptions that are opened after the change.",
        settings: settings! {
            "kinds" private_kinds live: "Kinds whose events only the author and the keys in the `p` tags receive: direct messages (NIP-04), gift wraps\n(NIP-59) and ephemeral gift wraps. []: everyone receives every kind.";
        },
    },
    SettingsSection {
        name: "rates",
        doc: "Maximum rates of messages: [number a minute, number at once after a pause]. Faster messages are refused with\n# `rate-limited:`. [0, 0]: no limit. `hark serve --unlimited` lifts all rates. Changes of this file take effect\n# while the server runs.",
        settings: settings! {
            "events_per_address" limits.rates.events_per_address [0, ANY] live: "EVENT and AUTH messages from one address, accepted or not. A message counts once more for every 64 KiB.";
            "events_per_key" limits.rates.events_per_key [0, ANY] live: "Events of one key that have a valid signature and are stored. An ephemeral event counts only on a connection that\nhas proved its key.";
            "questions_per_address" limits.rates.questions_per_address [0, ANY] live: "REQs, COUNTs and all other messages that are answered, from one address. A REQ or COUNT counts once more for\nevery 64 KiB.";
            "questions_per_key" limits.rates.questions_per_key [0, ANY] live: "REQs and COUNTs of one key that was proved with AUTH.";
            "rows_per_connection" limits.rates.rows_per_connection [0, ANY] live: "Rows that the searches and comparisons of one connection visit. Each event that is sent counts as ten further\nrows.";
            "rows_per_address" limits.rates.rows_per_address [0, ANY] live: "Rows that the searches of one address visit, counted in the same way.";
            "spared_addresses" lists.spared_addresses live: "Clients at these addresses and networks have no rates on any network, e.g. [\"192.0.2.7\", \"@peers.txt\"]: relays that send their\nhistory, bridges, your own crawlers. An entry that starts with @ names a file, as in [policy].";
            "spared_keys" lists.spared_keys live: "Connections that have proved one of these public keys with AUTH have no rates, e.g. [\"npub1…\", \"@members.txt\"].\nEvents of these keys on other connections keep their rates.";
            "groups" rate_groups live: "Groups of clients or kinds with other rates; also written as [[rates.groups]]. The first group that matches\napplies, e.g.\n  groups = [{ name = \"members\", keys = [\"@members.txt\"], times = 10 },\n    { name = \"tor\", addresses = [\"@exits.txt\"], times = 0.1, connections_per_address_max = 1000 },\n    { name = \"wraps\", kinds = [1059], events_per_address = [30, 60] }]\nA group has keys, addresses or trusted = true (connections that have proved a key that [trust] trusts), times (a\nfactor of all rates of all networks), rates that replace the rates above, and connections_per_address_max. With\nkinds, a group has events_per_address and events_per_key, which also limit the events of these kinds.";
        },
    },
    SettingsSection {
        name: "policy",
        doc: "The clients that may connect, the events that they may publish, and the questions that are answered. \"*\" in an\n# allow list stands for everything; an allow list without entries allows nothing. An entry that starts with @ names a\n# file with one entry per line. A relative path starts at the folder of this file, and # starts a comment in the\n# named file. Changes of this file and of the named files take effect while the server runs, after one second without\n# further changes, or after ten seconds if the end of a file may be missing. If a file has lost all its entries, the\n# earlier list stays in force. Deletions and requests to vanish concern their author's own data: no setting of this\n# section refuses such an event if its author has events in the archive.",
        settings: settings! {
            "allow_addresses" lists.allow_addresses live: "Only clients at these addresses and networks are served, e.g. [\"192.0.2.0/24\"]. [\"*\"]: all addresses.";
            "deny_addresses" lists.deny_addresses live: "Clients at these addresses and networks are refused with HTTP status 403.";
            "allow_keys" lists.allow_keys live: "Only events of these public keys (hex or npub1…) are accepted, e.g. [\"@members.txt\"], and events that the next\ntwo settings accept. [\"*\"]: all keys.";
            "addressed_kinds" lists.addressed_kinds live: "Events of these kinds are accepted from any key, in addition to allow_keys, if a `p` tag names a key of allow_keys:\ngift wraps, whose key is made for a single message, zap receipts, and messages of wallets (NWC) and of remote\nsigners. []: none.";
            "open_kinds" lists.open_kinds live: "Events of these kinds are accepted from any key, in addition to allow_keys, e.g. [3, 10002].";
            "deny_keys" lists.deny_keys live: "Events of these public keys are refused with OK false `blocked:`, like events that the lists below refuse.";
            "allow_kinds" lists.allow_kinds live: "Only events of these kinds are accepted, e.g. [0, 1, \"30000-39999\"]. [\"*\"]: all kinds.";
            "deny_kinds" lists.deny_kinds live: "Events of these kinds are refused.";
            "allow_words" lists.allow_words live: "Only events with one of these words in content or tags are accepted. [\"*\"]: all events.";
            "deny_words" lists.deny_words live: "Events with one of these words in content or tags are refused. Only whole words match: \"coin\" does not match\nbitcoin, \"*coin\" does.";
            // More work than 128 bits is not feasible.
            "pow_bits_min" lists.pow_bits_min [0, 128] live: "Minimum proof of work of an event (NIP-13), as the number of leading zero bits of its id. An event whose nonce\ntag commits to less work is refused, too. 0: none.";
            "wraps_need_auth" lists.wraps_need_auth live: "Whether gift wraps (NIP-59) are accepted only from clients that have authenticated with some key (NIP-42). The\nkey of a gift wrap is made for a single message, so no other list stops floods of gift wraps.";
            "members_only_kinds" lists.members_only_kinds live: "Only members may read events of these kinds, at most 1,000, e.g. [4, 30078]. [\"*\"]: only members may read anything.\nA member is a client that has proved a key of allow_keys (NIP-42), or any key if allow_keys is [\"*\"].";
            "members_only_except_own" lists.members_only_except_own live: "Whether a client whose key is not a member's may read the events of members_only_kinds that this key wrote, or that\nname this key in a `p` tag.";
            "question_kinds" lists.question_kinds live: "Only events of these kinds, at most 1,000, are sent in answers, e.g. [0, 3, 10002]. A question that names only\nother kinds is refused with `blocked:`. [\"*\"]: all kinds.";
            "narrow_questions" lists.narrow_questions live: "Whether every filter of a question must name ids, authors or the values of a tag. Other questions are refused\nwith `blocked:`, so that nobody reads the whole archive.";
        },
    },
    SettingsSection {
        name: "trust",
        doc: "Web of trust: people whom trusted people follow may publish. The follow lists (kind 3) are those in the archive.\n# Changes of this file and of the files that it names take effect while the server runs.",
        settings: settings! {
            "mode" trust_settings.mode live: "off: no follow lists are read. watch: events that require would refuse are counted in hark_trust_events_total and\nin the log, and are accepted. require: only trusted keys may publish, besides members, keys of `hark allow`,\nmanagers and the relay's own key. Kinds of policy.addressed_kinds and policy.open_kinds are not refused.";
            "roots" trust_settings.roots live: "Public keys (hex or npub1…) that are trusted in any case, and with which the trust begins, e.g. [\"npub1…\",\n\"@roots.txt\"].";
            "depth" trust_settings.depth [1, TRUST_DEPTH_MAX as u64] live: "Number of rings around the roots. 1: the keys that the roots follow are trusted. 2: also the keys that these\npeople follow, and so on.";
            "followers_min" trust_settings.followers_min [1, 1_000_000] live: "Number of followers in the inner rings that a key needs: among the roots for the first ring, and among the roots\nand the keys of the first ring for the second ring. If there are fewer roots, all roots must follow a key of the\nfirst ring.";
            "follows_max" trust_settings.follows_max [1, 100_000] live: "Maximum number of keys of a follow list that count. The log warns if a list is longer.";
            "bytes_max" trust_settings.bytes_max [1 << 20, BYTES] live: "Maximum memory for keys and follow lists in bytes, approximately. Further keys are not trusted, and the log warns.";
        },
    },
    SettingsSection {
        name: "plugin",
        doc: "A program that decides about the events of clients, with the interface of strfry's write-policy plugins. The\n# program has the rights of the server. Changes of this section take effect while the server runs.",
        settings: settings! {
            "command" plugin.command live: "Command that a shell runs in the folder of this file, e.g. \"./policy.py\" or \"exec node policy.js --strict\". If\nthe command is a path, the plugin is started again when its file changes. Empty: no plugin.";
            "processes" plugin.processes [1, 64] live: "Maximum number of processes that run the command. Each process decides about one event at a time. Another process\ngets events only while the earlier processes have not answered for 20 ms, and the events of one address never\noccupy the last process. 1: one process gets all events, which plugins that count events need.";
            "timeout_ms" plugin.timeout_ms [1, MILLISECONDS] live: "Milliseconds that an event may wait for a process, and that a process may take for its answer, including its\nstart. After that time, the process is killed.";
            "on_failure" plugin.on_failure live: "The decision about an event if the plugin fails or does not answer in time: refuse (with `error:`) or accept.";
        },
    },
    SettingsSection {
        name: "names",
        doc: "Verified names of keys (NIP-05). A profile (kind 0) claims a name like bob@example.com, and the domain of the name must\n# list the author's key at https://example.com/.well-known/nostr.json. Names are checked in the background, only by\n# https and at public addresses. Changes of this section take effect while the server runs.",
        settings: settings! {
            "mode" names.mode live: "off: no name is checked. watch: the name of each stored profile is checked, and /metrics counts the events of keys\nwithout a verified name. require: other events of these keys are refused with `restricted:`, too. Profiles are\naccepted, and members (policy.allow_keys, `hark allow`) and managers need no name.";
            "domains_allowed" lists.name_domains_allowed live: "Only names of these domains count, e.g. [\"example.com\", \"*.example.org\", \"@domains.txt\"]; *.example.org stands for\nthe subdomains of example.org. [\"*\"]: names of all domains.";
            "domains_denied" lists.name_domains_denied live: "Names of these domains do not count.";
            "valid_s" names.valid_s [60, SECONDS] live: "Seconds for which a verified name holds after its last check, if its domain does not answer. If the domain answers\nand does not list the key, the name does not hold any longer.";
            "check_every_s" names.check_every_s [60, SECONDS] live: "Seconds after which a verified name is checked again, at most half of valid_s.";
            "checks_max" names.checks_max [1, 256] live: "Maximum number of checks at a time. A domain is asked about one name at a time.";
            "waiting_max" names.waiting_max [1, 100_000] live: "Maximum number of names that wait for a check. One domain may have an eighth of these places. Above this number,\na name is not checked until its owner publishes again.";
            "answer_bytes_max" names.answer_bytes_max [1, 1 << 20] live: "Maximum size of the answer of a domain in bytes. A longer answer is not used.";
            "timeout_ms" names.timeout [1, MILLISECONDS] live: "Maximum time of a check in milliseconds.";
        },
    },
    SettingsSection {
        name: "manage",
        doc: "The keys that may manage the relay from a client (NIP-86). Each request is signed by a key (NIP-98). Without an entry in this\n# section, every such request is refused. Changes of this file take effect while the server runs.",
        settings: settings! {
            "keys" lists.manager_keys live: "Public keys (hex or npub1…) that may call every method of NIP-86, e.g. [\"npub1…\", \"@managers.txt\"]. An entry that\nstarts with @ names a file, as in [policy].";
            "page" managers.has_page live: "Whether the relay has the page /admin, on which managers ban and allow in a browser, and see clients, reports and\nthe state of the server. They log in with a key of this section, or with a link of `hark admin link`.";
            "roles" managers.roles live: "Roles whose keys may call some methods, e.g.\n  roles = [{ id = \"moderator\", methods = [\"banevent\", \"listbannedevents\"], keys = [\"npub1…\"] }]\nmethods has names of methods of NIP-86. keys may be left out, since the method `assignrole` also gives a role to\nkeys.";
        },
    },
    SettingsSection {
        name: "search",
        doc: "Full-text search (NIP-50), which is not available on a Citus cluster. After a change, all events are indexed again\n# in the background; until an event is indexed, searches read its text. Servers that share a database need the same\n# settings in this section.",
        settings: settings! {
            "enabled" search.enabled: "Whether words are indexed and searched for.";
            "kinds" search.kinds: "Kinds of events whose words are indexed. Private kinds ([privacy] kinds) are never indexed.";
            "parts" search.parts: "Texts of these events that are indexed: content; titles (the tags title, name, subject, summary, description and\nalt); hashtags; profiles (name, display_name, about and nip05 of kind 0).";
        },
    },
    SettingsSection {
        name: "info",
        doc: "Information about the relay for clients (NIP-11). Changes of this file take effect while the server runs.",
        settings: settings! {
            "name" info.name live: "Name of the relay.";
            "description" info.description live: "Description of the relay, in a few words or lines.";
            "url" info.url live: "Public address of the relay, e.g. \"wss://relay.example\". AUTH and requests to vanish name this address. Empty:\nclients can authenticate only with the address of this server itself, such as ws://127.0.0.1:7777, and requests\nto vanish that name this relay are refused.";
            "other_urls" info.other_urls live: "Further addresses of the relay, e.g. [\"ws://….onion\"]. AUTH and requests to vanish may name these addresses,\ntoo.";
            "pubkey" info.pubkey live: "The operator's public key, in hex or as npub1…";
            "self" info.self_key live: "The relay's own public key, in hex or as npub1…, if a program beside Hark signs events on its behalf. With [self]\nkey_file, this setting confirms a change of the key: the archive then stores the new public key.";
            "contact" info.contact live: "Address for messages to the operator, e.g. \"mailto:me@relay.example\".";
            "icon" info.icon live: "URL of a square picture. The relay's page shows the picture, and visitors of the page load it from this URL.";
            "banner" info.banner live: "URL of a wide picture, which the page shows, too.";
            "terms_of_service" info.terms_of_service live: "URL of the terms of service.";
            "terms" info.terms live: "Terms of service as a text, which the relay's page shows.";
            "privacy" info.privacy live: "Text about privacy, which the relay's page shows.";
            "joining" info.joining live: "Text on the relay's page about the way to become a member. Empty: a sentence that follows from the settings.";
            "client_url" info.client_url live: "URL at which a web client opens the relay, with {url} for the relay's URL or {host} for the URL without its scheme.\nThe relay's page has a button with this link if `url` is set. Empty: no button.";
            "payments_url" info.payments_url live: "URL of a page at which users pay the fees.";
            "fees" info.fees live: "Fees that the NIP-11 document and the relay's page list, e.g.\n  fees = [{ for = \"admission\", amount = 1000000, unit = \"msats\" }]\nfor is admission, subscription or publication; period_s is the time that the fee covers, in seconds, and kinds are\nthe kinds of events that the fee is for. Hark collects no fees: put the keys of paying users into allow_keys. An\nadmission fee sets payment_required.";
        },
    },
    SettingsSection {
        name: "self",
        doc: "The relay's own key, with which the relay signs events of its own.",
        settings: settings! {
            "key_file" own_key: "File with the relay's own secret key, in hex, e.g. \"relay.key\". A missing file is created, for its owner only. All\nservers of an archive need a copy of the same file. Backups do not contain this file. A relative path is in the\ndirectory of this file. Empty: the relay has no key, and signs nothing.";
            "report" own_events.report live: "Whether the relay publishes a report about itself (NIP-66): the contents of its NIP-11 document as tags that clients\nof other relays can search. The report needs info.url.";
            "members" own_events.members live: "Whether the relay publishes its members and their roles (NIP-43): the keys of allow_keys and of `hark allow`.\nEverybody who may read the relay can read the list.";
            "member_invites" own_events.member_invites [0, 100] live: "Number of invite codes that a member may make a day (UTC) from a client (NIP-43). One key can join with each code,\nwithin 7 days. 0: only `hark invite` makes codes.";
        },
    },
    SettingsSection {
        name: "retention",
        doc: "Rules and limits by which events are deleted. Expired events are always deleted. Changes of this file take\n# effect while the server runs.",
        settings: settings! {
            "bytes_max" retention.bytes_max [0, u64::MAX] live: "Size on disk in bytes above which the oldest events are deleted, e.g. \"50GB\". 0: no limit.";
            "free_bytes_min" retention.free_bytes_min [0, BYTES] live: "Free space on the disk in bytes below which the oldest records of every network are deleted, even if other files\nfill the disk. Choose several times archive.log_bytes_max. 0: no limit. This setting is only for archives in\nfiles.";
            "erase_within" erase_within live: "Time within which deleted, expired and vanished records are gone from the files of every network, in s, m, h, d, w\nor y. Hark rewrites the log files that have such records twice within this time. \"0s\": the records stay until their\nspace is needed.";
            "spared_kinds" retention.spared_kinds live: "Kinds that neither rules nor bytes_max delete. Deletions (5) and requests to vanish (62) are kept even if they are\nnot listed, and do not expire, because they prevent deleted events from being stored again.";
            "every_s" retention_every [1, SECONDS] live: "Seconds between two rounds of retention.";
            // The records that one write deletes are collected in memory first.
            "batch_max" retention.batch_max [1, 65_536] live: "Maximum number of events that one write deletes.";
            "clock_ahead_max_s" retention.clock_ahead_max_s [0, SECONDS] live: "Seconds that the clock may be ahead of the time at which the archive was last in use. If the clock is further\nahead, nothing is deleted by age, because with a wrong clock, every event could be old enough for a rule. 0: the\nclock is always trusted.";
            "delete_brought" retention.delete_brought live: "Whether rules by age also delete imported, adopted or copied records that were already older on arrival than the\nrules allow. The setting applies to every network. While this setting is false, such records are kept, and the log\nand /healthz report the kept records.";
            "rules" retention.rules live: "Rules by which old events are deleted, e.g.\n  rules = [{ kinds = [7], older_than = \"90d\" }, { not_kinds = [0, 3], older_than = \"5y\" }]\nkinds, not_kinds and authors (hex or npub1…) narrow a rule; older_than is an age in s, m, h, d, w or y.";
        },
    },
    SettingsSection {
        name: "mirror",
        doc: "A second store that receives every event that the first store accepts, so that you can move to the second store,\n# and back, without losing events.",
        settings: settings! {
            "store" mirror.store: "Address of the second store: a directory or a postgres:// URL. Empty: no second store. The second store first\nreceives the events of the first store, then every write; the first store never waits for the second store.\n`hark stats` shows the progress.";
            "stuck_after_s" mirror.stuck_after_s [0, SECONDS] live: "Seconds without progress after which /healthz reports that the mirror is stuck, with status 503. 0: never.";
            "queue_bytes_max" mirror.queue_bytes_max [0, BYTES]: "Maximum size in bytes of the writes that wait for the second store. Above this size, the waiting writes are\ndiscarded, and a comparison of both stores later finds these writes.";
        },
    },
    waku::SECTION,
    whisper::SECTION,
    SettingsSection {
        name: "log",
        doc: "Settings of the log, which goes to stderr. Changes of this file take effect while the server runs, unless a flag\n# overrides the changed setting.",
        settings: settings! {
            "level" log.level live: "Level of the log: error, warn, info, debug or trace; or a filter such as \"warn,hark_server=debug\".";
            "format" log.format live: "Format of the log: text or json.";
            "slow_question_ms" log.slow_question_ms [0, MILLISECONDS] live: "Milliseconds from which the answer to a REQ or COUNT is slow. Slow REQs and COUNTs are logged with their filters\nand plan. 0: no slow questions are logged.";
            "refusals_from" log.refusals_from [0, ANY] live: "Number of messages and connections of an address that must be refused within a minute before the log names the\naddress. Further refusals of the address are logged at most once a minute, with their number. 0: no refusals are\nlogged.";
            "addresses" log.addresses live: "Form of clients' addresses in the log and in `hark clients`: whole; prefix, for networks (/24 of IPv4, /48 of\nIPv6); or hash, for hashes whose key the server makes at its start.";
        },
    },
];
