//! The commands, one file each, and code that several commands share.

pub(crate) mod adopt;
pub(crate) mod backup;
mod backup_file;
mod backup_source;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod compact;
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod count;
pub(crate) mod delete;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod healthz;
pub(crate) mod help;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod kick;
pub(crate) mod migrate;
pub(crate) mod moderation;
pub(crate) mod query;
pub(crate) mod rebuild;
mod refusal;
pub(crate) mod relays;
pub(crate) mod reload;
pub(crate) mod reports;
pub(crate) mod restore;
mod restore_records;
pub(crate) mod salvage;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod waku;
#[cfg(feature = "devp2p")]
pub(crate) mod whisper;
