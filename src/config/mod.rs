//! The configuration. Values are read as typed (`typed`), then checked setting by setting
//! (`settings`) and stored in [`Config`] (`values`), which the rest of the binary uses. The file
//! overrides the defaults, the environment overrides the file, and flags (in `commands`) override
//! the environment.

mod bounds;
mod checks;
mod doors;
mod fees;
mod files;
mod keys;
mod load;
pub(crate) mod log;
mod manage;
mod moderation;
mod network_setup;
mod networks;
mod nostr;
mod origins;
mod plugin;
mod policy;
mod ranges;
mod rate_groups;
mod reread;
mod retention;
mod rule_mode;
mod search;
mod setting;
mod setting_type;
pub(crate) mod settings;
mod sizes;
#[cfg(test)]
mod tests;
mod tls;
mod trust;
mod typed;
mod unused;
mod value;
mod values;
mod waku;
mod whisper;

pub use doors::DoorFacts;
pub(crate) use files::FileState;
pub(crate) use load::Faults;
pub(crate) use log::{LogFormat, LogSettings};
pub use network_setup::{NetworkService, NetworkSetup, ReloadCallback, ShelfConfig};
pub use networks::NETWORKS;
pub(crate) use networks::{client_setups, serve_these, setup, setups, shelf_config};
pub(crate) use reread::{FileWatch, LOOK_EVERY};
pub use values::Config;
