//! The settings of the Whisper mail server, and its construction.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
#[cfg(feature = "devp2p")]
use std::time::Duration;

use hark_archive::retention::{RetentionPolicy, RetentionRule};
use hark_networks::whisper::admit::EnvelopeBounds;
use hark_server::limits::Rate;
#[cfg(feature = "devp2p")]
use hark_server::whisper::peers::{PeerTimes, PeersConfig, RequestRules};
use hark_server::whisper::{MailConfig, MailService, MailSettings, shared};
use hark_server::{WebAccess, shelf};

use super::Config;
use super::mail_keys::{RequestKey, RequestPassword, TrustedNode};
use super::networks::{DoorFacts, NetworkService, NetworkSetup, ShelfConfig};
use super::settings::{Setting, SettingType, SettingsSection, settings, wanted};
use super::typed::TypedValue;

/// The configuration and setup of the network.
pub(super) const SETUP: NetworkSetup = NetworkSetup {
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
pub(super) const SECTION: SettingsSection = SettingsSection {
    name: "whisper",
    doc: "A mail server of Whisper (Status) beside the relay, on a shelf of its own.",
    settings: settings! {
        "serve" whisper.serve: "Whether the mail server runs.";
        "rest" whisper.rest: "Address and port of the REST API; /openapi.json describes the API. Empty: no REST API. Anyone who reaches the\nAPI may publish.";
        "rest_allow_origin" whisper.access.allow_origin: "Origins of web pages that may use the REST API: [\"http://localhost:*\", \"app.example\"]. \"*\": all. Requests of\nother pages are refused, because a browser lets any page send requests to any address.";
        "rest_hosts" whisper.access.hosts: "Host names of the REST API, in addition to localhost and IP addresses, e.g. [\"mail.example\"]. A request to\nanother name is refused, because a web page can make its own name point to this address. \"*\": any name.";
        "listen" whisper.listen: "Address and port for peers (devp2p): go-ethereum's wnode (shh/6) and status-go (waku/1). Empty: none. The node's\nkey, whose public part is in the enode URL, is in whisper.key in the archive's directory.";
        "password" whisper.password: "Password with which clients encrypt requests for history. Empty: no password; without a\n`request_key`, peers then cannot request history.";
        "request_key" whisper.request_key: "Secret key in hex. Clients may encrypt requests for its public key instead of with the password. Empty: none.";
        "request_pause_s" whisper.request_pause_s: "Minimum time between two requests of a peer, in seconds (MailServerRateLimit). Earlier requests are refused. 0:\nnone.";
        "bare_range_max_s" whisper.bare_range_max_s: "Maximum time range of a request in the form before RLP, in seconds, e.g. 86400 as in status-go. 0: any range.";
        "trusted" whisper.trusted: "Enode URLs of mail servers that may fetch all envelopes, so that they have the same envelopes as this server.";
        "pow_min" whisper.pow_min: "Minimum proof of work of an envelope, and of a request. Less work is refused. 0.000002 is the minimum of\nStatus's nodes since July 2020, whose clients seal messages above 50 KB with that proof of work, and other\nmessages with 0.002. go-ethereum's minimum is 0.2.";
        "envelope_bytes_max" whisper.envelope_bytes_max: "Maximum size of an envelope in bytes. Larger envelopes are refused.";
        "envelopes" whisper.envelopes: "How fast an address may send envelopes: [envelopes a minute, envelopes at once after a pause]. Faster envelopes\nare refused; the peer stays connected. Nodes in `trusted` have no limit. [0, 0]: no limit.";
        "new_topics" whisper.new_topics: "The same for envelopes of topics that the archive does not have yet, because each new topic makes requests by\nbloom filter slower.";
        "queries" whisper.requests: "How fast a client may request history: [requests a minute, requests at once after a pause]. Faster requests are\nrefused. [0, 0]: no limit.";
        "query_rows_max" whisper.query_rows_max: "Maximum number of rows that one request may visit. A request that would visit more rows is refused.";
        "retention_days" whisper.retention_days: "Days after which envelopes are deleted. 0: never. [retention] sets how often and in which steps envelopes are\ndeleted, and whether older envelopes of an adoption or an import are deleted too.";
        "bytes_max" whisper.bytes_max: "Size on disk in bytes above which the oldest envelopes are deleted, e.g. \"50GB\". 0: no bound.";
        "part_days" whisper.part_days: "Days that one part of the tables in PostgreSQL covers. The number is fixed when the tables are created.";
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

/// The mail server's settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WhisperSettings {
    /// Whether the mail server runs.
    pub(crate) serve: bool,
    pub(crate) rest: Option<SocketAddr>,
    pub(crate) access: WebAccess,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) password: RequestPassword,
    pub(crate) request_key: Option<RequestKey>,
    pub(crate) request_pause_s: u64,
    pub(crate) bare_range_max_s: Option<u64>,
    pub(crate) trusted: Vec<TrustedNode>,
    pub(crate) pow_min: ProofMinimum,
    pub(crate) envelope_bytes_max: usize,
    pub(crate) envelopes: Option<Rate>,
    pub(crate) new_topics: Option<Rate>,
    pub(crate) requests: Option<Rate>,
    pub(crate) query_rows_max: u64,
    /// `None` keeps envelopes for ever.
    pub(crate) retention_days: Option<u64>,
    pub(crate) bytes_max: Option<u64>,
    pub(crate) part_days: u64,
}

/// The minimum proof of work of an envelope.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProofMinimum(f64);

impl SettingType for ProofMinimum {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let number = match value {
            TypedValue::Fraction(number) => Some(*number),
            TypedValue::Whole(number) => Some(*number as f64),
            TypedValue::Bare(text) => text.trim().parse().ok(),
            _ => None,
        };
        let number = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.map_or_else(|| wanted("a number that is not negative", value), |it| Ok(Self(it)))
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}

impl Default for WhisperSettings {
    fn default() -> Self {
        let settings = MailSettings::default();
        Self {
            serve: false,
            rest: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 8548))),
            access: WebAccess::default(),
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 30_303))),
            password: RequestPassword::default(),
            request_key: None,
            request_pause_s: 0,
            bare_range_max_s: None,
            trusted: Vec::new(),
            pow_min: ProofMinimum(settings.bounds.pow_min),
            envelope_bytes_max: settings.bounds.envelope_bytes_max,
            envelopes: settings.envelopes,
            new_topics: settings.new_topics,
            requests: settings.requests,
            query_rows_max: settings.query_rows_max,
            retention_days: Some(30),
            bytes_max: None,
            part_days: 1,
        }
    }
}

impl WhisperSettings {
    /// Returns the settings that can change while the mail server runs.
    fn settings(&self) -> MailSettings {
        MailSettings {
            bounds: EnvelopeBounds {
                envelope_bytes_max: self.envelope_bytes_max,
                pow_min: self.pow_min.0,
            },
            envelopes: self.envelopes,
            new_topics: self.new_topics,
            requests: self.requests,
            query_rows_max: self.query_rows_max,
        }
    }

    fn retention(&self) -> RetentionPolicy {
        let rule = |days: u64| RetentionRule {
            older_than_s: days.saturating_mul(86_400),
            ..RetentionRule::default()
        };
        RetentionPolicy {
            rules: self.retention_days.map(rule).into_iter().collect(),
            bytes_max: self.bytes_max,
            ..RetentionPolicy::default()
        }
    }

    #[cfg(feature = "devp2p")]
    fn peers(&self, listen: SocketAddr, at: &DoorFacts<'_>) -> PeersConfig {
        PeersConfig {
            listen,
            key: at.data.join("whisper.key"),
            rules: RequestRules {
                password_key: self.password.key(),
                secret_key: self.request_key.as_ref().map(|key| key.0.clone()),
                bare_range_max_s: self.bare_range_max_s,
            },
            request_pause: Duration::from_secs(self.request_pause_s),
            trusted: self.trusted.iter().map(|node| node.0).collect(),
            times: PeerTimes::default(),
        }
    }

    fn mail(&self, at: &DoorFacts<'_>) -> MailConfig {
        MailConfig {
            rest: self.rest,
            access: self.access.clone(),
            #[cfg(feature = "devp2p")]
            peers: self.listen.map(|listen| self.peers(listen, at)),
            settings: shared(self.settings()),
            store_at: at.store_at,
            database: at.store,
        }
    }
}
