//! The Nostr door: its messages to questions and records, and back.
//!
//! [`door`] takes what a client says; events go to `intake` (parse, hash, verify, write), questions
//! to `page` and `count`, which the reader threads carry out; live events come through `page`.

use std::sync::Arc;

use hark_archive::limits::Limits;
use hark_archive::live::Live;
use hark_archive::writer::Writer;
use hark_archive::{Store, clock::Clock};

use crate::RelayInfo;
use crate::metrics::Metrics;
use crate::readers::Readers;

pub mod admit;
pub(crate) mod auth;
mod cost;
mod count;
pub(crate) mod door;
mod hll;
pub(crate) mod intake;
pub(crate) mod nip11;
mod page;
pub mod query;

/// What all sessions share.
pub(crate) struct Relay {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) live: Arc<Live>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) auth: Arc<auth::Terms>,
    pub(crate) intake: Arc<intake::Intake>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) info: RelayInfo,
}
