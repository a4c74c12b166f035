//! The Nostr relay: it translates messages to questions and records, and back.
//!
//! `listen` accepts connections, `web` answers HTTP, and `session` serves one WebSocket.
//! `messages` turns the messages of a session into requests. Events go to `intake` (parse, hash,
//! verify, write), questions to `page` and `count`, and messages of NIP-77 to `comparison`. The
//! reader threads run `page`, `count` and `comparison`. `page` also sends live events. `names` checks the
//! names of authors in the background.

mod audience;
mod auth;
mod checked_event;
mod comparison;
mod config;
mod cost;
mod count;
mod event_checks;
mod event_page;
mod hidden_events;
mod hll;
mod html;
mod identity;
mod info;
mod intake;
mod invite_answer;
mod landing;
mod listen;
pub(crate) mod manage;
mod message_head;
mod messages;
pub mod metrics;
mod names;
mod nip11;
mod open;
mod outbox;
mod outbox_item;
mod outboxes;
mod outgoing;
mod own;
mod page;
mod plugin;
pub mod policy;
mod prometheus;
mod question_memory;
mod question_refusals;
mod readers;
mod reading;
mod refused;
mod relay;
mod reply_handle;
mod report;
mod rule_mode;
mod session;
mod subscription;
mod text_parts;
mod threads;
mod trust;
mod vanish;
mod web;
mod word_list;

pub use config::{DEFLATE_FROM_BYTES, RelayConfig, RelayService, ThreadCounts};
pub use identity::SharedIdentity;
pub use info::{FeePurpose, PRIVATE_KINDS, RelayFee, RelayInfo};
pub use manage::{ManageMethod, ManageResult, ManagerKeys, ManagerRole, Managers, SharedManagers};
pub use names::{DomainList, NameClient, NameRules};
pub use own::{OwnEvents, SharedOwnEvents};
pub(crate) use relay::Relay;
pub use rule_mode::RuleMode;
pub use trust::{
    OpenStore, TRUST_DEPTH_MAX, Trust, TrustGate, TrustOptions, TrustRules, TrustSource, TrustStats,
};
