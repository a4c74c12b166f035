//! Nostr: events, filters and the messages between client and relay.
//!
//! What is read how, and why, stands in `docs/protocols.md`.

pub mod binary;
pub mod canonical;
pub mod draft;
pub mod event;
pub mod filter;
pub mod json;
pub mod message;
mod read;
pub mod reply;
pub mod verified;

pub use binary::{Encoder, EventRecord};
pub use draft::Draft;
pub use event::{Arena, Event, EventError, Tag, Tags};
pub use filter::{Filter, FilterError};
pub use message::{About, ClientMessage, Inbox, MessageError, MessageErrorKind};
pub use read::{JsonError, NumberError};
pub use verified::{CheckError, VerifiedEvent};
