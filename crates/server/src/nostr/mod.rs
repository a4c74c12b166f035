//! The Nostr door: its messages to questions and records, and back.
//!
//! [`door`] takes what a client says; events go to `intake` (parse, hash, verify, write), questions
//! to `page` and `count`, which the reader threads carry out; live events come through `page`.

use std::sync::Arc;

use arc_swap::Guard;
use hark_archive::live::Live;
use hark_archive::writer::Writer;
use hark_archive::{Store, clock::Clock};

use crate::RelayInfo;
use crate::address::Proxies;
use crate::admin::handover::Peers;
use crate::admin::http::trouble;
use crate::budget::Budget;
use crate::connections::Connections;
use crate::metrics::Metrics;
use crate::rate::Rates;
use crate::settings::{Settings, Shared};
use crate::socket::Deflate;
use outboxes::Outboxes;
use readers::Readers;

pub(crate) mod auth;
mod cost;
mod count;
pub(crate) mod door;
mod hll;
pub(crate) mod intake;
mod landing;
pub(crate) mod line;
pub(crate) mod nip11;
pub(crate) mod outboxes;
mod page;
pub(crate) mod readers;
mod session;
pub(crate) mod slow;
pub(crate) mod web;

/// What all sessions share.
pub(crate) struct Relay {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) live: Arc<Live>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) auth: Arc<auth::Terms>,
    pub(crate) intake: Arc<intake::Intake>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) settings: Shared,
    pub(crate) rates: Rates,
    /// Processes that this one has taken over from, or that has taken over.
    pub(crate) peers: Arc<Peers>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) slow: slow::SlowLog,
    pub(crate) info: RelayInfo,
    pub(crate) connections: Connections,
    pub(crate) outboxes: Arc<Outboxes>,
    /// Memory of questions.
    pub(crate) questions: Arc<Budget>,
    /// Messages that have not come whole, or wait to be handed on.
    pub(crate) inbound: Arc<Budget>,
    pub(crate) proxies: Proxies,
    pub(crate) deflate: Deflate,
    /// Rate limits are off.
    pub(crate) unlimited: bool,
}

impl Relay {
    /// Why the archive takes no writes, or does not tell of all, while that is so.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.peers.trouble().or_else(|| trouble(&self.writer));
        trouble.or_else(|| self.store.trouble())
    }

    /// The settings in force now.
    pub(crate) fn settings(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }
}
