//! Verified names (NIP-05). A stored profile (kind 0) with a name makes a check in the background: the
//! name's domain must list the author's key. With `[names] mode = "require"`, only keys with a verified
//! name may publish.
//!
//! `rules` has the operator's settings, `client` asks a domain, `lines` decides when a domain is asked,
//! and `checker` does the checks. The verified names are kept by `moderation`, and `policy` refuses
//! events.

mod checker;
mod checks;
mod client;
mod fault;
mod lines;
mod rules;

pub(crate) use checker::NameChecker;
pub(crate) use checks::NameChecks;
pub use client::NameClient;
pub use rules::{DomainList, NameRules};
