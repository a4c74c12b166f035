//! The state that the sessions of all peers share.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hark_codec::whisper::keys::{PublicKey, SecretKey};

use super::config::PeerTimes;
use super::half_open::HalfOpenConnections;
use super::mail::RequestRules;
use crate::budget::Budget;
use crate::limits::Rate;
use crate::rate::{RateBuckets, RateSource, RateSubject};
use crate::whisper::mail_server::MailServer;
use crate::whisper::rlpx::hello::Hello;

/// Rate limit for log lines about peers that connect and disconnect.
const LINES: Rate = Rate { per_minute: 60, at_once: 600 };

/// The state that all sessions share.
pub(super) struct PeersState {
    pub(super) mail: Arc<MailServer>,
    pub(super) rules: RequestRules,
    pub(super) request_pause: Duration,
    pub(super) trusted: Vec<PublicKey>,
    pub(super) times: PeerTimes,
    pub(super) key: SecretKey,
    pub(super) hello: Hello,
    pub(super) half_open: Arc<HalfOpenConnections>,
    pub(super) budget: Arc<Budget>,
    /// The rate limiter for log lines.
    pub(super) lines: RateBuckets,
}

impl PeersState {
    /// Returns an address in the form in which the log shows addresses.
    pub(super) fn shown(&self, ip: IpAddr) -> String {
        self.mail.service.settings().addresses_shown.show(ip)
    }

    /// Logs a line about a peer, unless the log already has too many such lines.
    pub(super) fn note(&self, log: impl FnOnce()) {
        if self.lines.charge(RateSubject::Events(RateSource::Connection(0)), LINES).is_ok() {
            log();
        }
    }
}
