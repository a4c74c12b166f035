//! The settings of the Whisper mail server.

use std::net::{Ipv4Addr, SocketAddr};
#[cfg(feature = "devp2p")]
use std::time::Duration;

use hark_archive::retention::{RetentionPolicy, RetentionRule};
use hark_networks::whisper::admit::EnvelopeBounds;
use hark_server::limits::Rate;
#[cfg(feature = "devp2p")]
use hark_server::whisper::peers::{PeerTimes, PeersConfig, RequestRules};
use hark_server::whisper::{MailConfig, MailSettings, shared};
use hark_server::{ListenAddress, WebAccess};

use super::keys::{RequestKey, RequestPassword, TrustedNode};
use crate::config::doors::DoorFacts;
use crate::config::setting_type::{SettingType, wanted};
use crate::config::value::TypedValue;

/// The mail server's settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WhisperSettings {
    /// Whether the mail server runs.
    pub(crate) serve: bool,
    pub(crate) rest: Vec<ListenAddress>,
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
            rest: vec![ListenAddress::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 8548)))],
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
    pub(super) fn settings(&self) -> MailSettings {
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

    pub(super) fn retention(&self) -> RetentionPolicy {
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

    pub(super) fn mail(&self, at: &DoorFacts<'_>) -> MailConfig {
        MailConfig {
            rest: self.rest.clone(),
            access: self.access.clone(),
            #[cfg(feature = "devp2p")]
            peers: self.listen.map(|listen| self.peers(listen, at)),
            settings: shared(self.settings()),
            store_at: at.store_at,
            database: at.store,
        }
    }
}
