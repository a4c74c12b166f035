//! Nostr: events, filters and the messages between client and relay.
//!
//! `docs/protocols.md` describes how Hark reads each of these, and why.

pub mod binary;
pub mod canonical;
pub mod draft;
pub mod event;
pub mod filter;
mod filter_error;
pub mod json;
mod json_error;
pub mod message;
pub mod negentropy;
pub mod npub;
pub mod profile;
mod read;
pub mod reply;
mod span;
mod tag;
mod value_bound;
pub mod verified;

pub use binary::{EventEncoder, EventRecord};
pub use draft::EventDraft;
pub use event::{Event, EventArena, EventError, REQUESTS};
pub use filter::{Filter, TagValues};
pub use filter_error::{Element, FilterError};
pub use json_error::{JsonError, NumberError};
pub use message::{ClientMessage, MessageBuffers, MessageError, MessageErrorKind, RefusalSubject};
pub use tag::{Tag, Tags};
pub use verified::{CheckError, VerifiedEvent};
