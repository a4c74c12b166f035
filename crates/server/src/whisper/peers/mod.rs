//! The devp2p interface: peers send envelopes, and request history (EIP-627, 6/WAKU1, 8/WAKU-MAIL).
//!
//! A peer speaks `shh/6`, like go-ethereum, or `waku/1`, like status-go. Hark is only a mail server
//! for both: it archives the envelopes that peers forward, answers requests, and forwards no
//! envelopes. No client needs forwarding, because clients publish to all of their peers. status-go
//! considers an envelope sent once any peer has acknowledged the envelope. Hark acknowledges an
//! envelope once the envelope is durable.
//!
//! `door` accepts connections, and `half_open` bounds the connections before a session. Each
//! connection is one task: `run` reads packets, and `session` is the connected peer. `intake`
//! receives envelopes, and `mail` and `delivery` answer requests.

mod code;
mod config;
mod delivery;
mod door;
mod end;
mod form;
mod half_open;
mod intake;
mod mail;
mod run;
mod session;
mod state;
mod status;

pub use config::{PeerTimes, PeersConfig};
pub(super) use door::PeersDoor;
pub use door::{enode, load_key};
pub use mail::RequestRules;
