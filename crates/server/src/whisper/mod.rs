//! The Whisper mail server: accepts envelopes and serves history, by REST and by devp2p (EIP-627,
//! 6/WAKU1, 8/WAKU-MAIL).
//!
//! `config` is the configuration, `mail_server` the state, and `door` opens and serves both
//! interfaces. `intake` stores envelopes, and `history` answers requests. `hark_networks::whisper`
//! decides which envelopes are accepted, and turns requests into searches and pages. `rest` is the
//! REST API, which other mail servers do not have. The API makes history available to programs that
//! do not speak devp2p.

mod config;
mod door;
mod history;
mod intake;
mod mail_server;
pub mod metrics;
mod news;
#[cfg(feature = "devp2p")]
pub mod peers;
mod prometheus;
mod refresh;
mod rest;
#[cfg(feature = "devp2p")]
pub mod rlpx;
mod topics;

pub use config::{MailConfig, MailSettings, SharedMailSettings, shared};
pub use door::MailService;
