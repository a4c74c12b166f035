//! The network's section of the configuration file, and the construction of the mail server.

use std::sync::Arc;

use hark_server::shelf;
use hark_server::whisper::MailService;

use crate::config::bounds::{ANY, DAYS, MESSAGE, SECONDS};
use crate::config::doors::DoorFacts;
use crate::config::network_setup::{NetworkService, NetworkSetup, ShelfConfig};
use crate::config::setting::{Setting, SettingsSection, settings};
use crate::config::setting_type::SettingType;
use crate::config::values::Config;

/// The configuration and setup of the network.
pub(in crate::config) const SETUP: NetworkSetup = NetworkSetup {
    network: &hark_networks::whisper::Whisper,
    shelf: |config| ShelfConfig {
        retention: config.retention(&config.whisper.retention()),
        part_days: config.whisper.part_days,
        record_bytes_max: config.whisper.envelope_bytes_max,
        texts: None,
    },
    is_served: |config| config.whisper.serve,
    serve,
};

/// The network's section of the configuration file.
pub(in crate::config) const SECTION: SettingsSection = SettingsSection {
    name: "whisper",
    doc: "A Whisper mail server (Status) in the same process as the relay, with a separate shelf.",
    settings: settings! {
        "serve" whisper.serve: "Whether the mail server runs.";
        "rest" whisper.rest: "Address and port of the REST API, or a list; /openapi.json describes the API. Empty: no REST API. Anyone who\nreaches the API may publish.";
        "rest_allow_origin" whisper.access.allow_origin: "Origins of web pages that may use the REST API: [\"http://localhost:*\", \"app.example\"]. \"*\": all. Requests of\nother pages are refused, because a browser lets any page send requests to any address.";
        "rest_hosts" whisper.access.hosts: "Host names of the REST API, in addition to localhost and IP addresses, e.g. [\"mail.example\"]. A request to\nanother name is refused, because a web page can make its own name point to this address. \"*\": any name.";
        "listen" whisper.listen: "Address and port for peers (devp2p): go-ethereum's wnode (shh/6) and status-go (waku/1). Empty: none. The server's\nkey is in whisper.key in the archive's directory; its public part is in the enode URL.";
        "password" whisper.password: "Password with which clients encrypt requests for history. Empty: no password. If `request_key` is empty too,\npeers cannot request history.";
        "request_key" whisper.request_key: "Secret key in hex. Clients may encrypt requests for its public key instead of with the password. Empty: none.";
        "request_pause_s" whisper.request_pause_s [0, SECONDS]: "Minimum time between two requests of a peer, in seconds (MailServerRateLimit). A request that comes\nsooner is refused. 0: no minimum.";
        "bare_range_max_s" whisper.bare_range_max_s [0, SECONDS]: "Maximum time range of a request in the older form, without RLP, in seconds, e.g. 86400 as in status-go. 0: any\nrange.";
        "trusted" whisper.trusted: "Enode URLs of mail servers that may fetch all envelopes, so that they have the same envelopes as this server.";
        "pow_min" whisper.pow_min live: "Minimum proof of work of an envelope, and of a request. Less work is refused. 0.000002 has been the minimum of\nStatus's nodes since July 2020: Status's clients send messages above 50 KB with this proof of work, and other\nmessages with 0.002. go-ethereum's minimum is 0.2.";
        "envelope_bytes_max" whisper.envelope_bytes_max [1, MESSAGE] live: "Maximum size of an envelope in bytes. Larger envelopes are refused.";
        "envelopes" whisper.envelopes [0, ANY] live: "How fast an address may send envelopes: [envelopes a minute, envelopes at once after a pause]. Faster envelopes\nare refused; the peer stays connected. Nodes in `trusted` have no limit. [0, 0]: no limit.";
        "new_topics" whisper.new_topics [0, ANY] live: "How fast an address may send envelopes with topics that are new to the archive, written as in `envelopes`. Each new\ntopic makes requests by bloom filter slower.";
        "queries" whisper.requests [0, ANY] live: "How fast a client may request history: [requests a minute, requests at once after a pause]. Faster requests are\nrefused. [0, 0]: no limit.";
        "query_rows_max" whisper.query_rows_max [1, ANY] live: "Maximum number of rows that one request may visit. A request that would visit more rows is refused.";
        "retention_days" whisper.retention_days [0, DAYS] live: "Days after which envelopes are deleted. 0: never. [retention] sets how often envelopes are deleted, how many at\nonce, and whether older envelopes of an adoption or an import are deleted, too.";
        "bytes_max" whisper.bytes_max [0, u64::MAX] live: "Size on disk in bytes above which the oldest envelopes are deleted, e.g. \"50GB\". 0: no limit.";
        "part_days" whisper.part_days [1, DAYS]: "Days that one part of the tables in PostgreSQL covers. The number is fixed when the tables are created.";
    },
};

fn serve(config: &Config, shelf: shelf::ShelfOptions, at: &DoorFacts<'_>) -> NetworkService {
    let mail = config.whisper.mail(at);
    let settings = Arc::clone(&mail.settings);
    NetworkService {
        network: Box::new(MailService { config: mail, shelf }),
        reload: Box::new(move |config| settings.store(Arc::new(config.whisper.settings()))),
    }
}
