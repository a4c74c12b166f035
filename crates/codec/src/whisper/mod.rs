//! Whisper (EIP-627) and its successor Waku 1 (6/WAKU1): envelopes with their proof of work, bloom
//! filters of topics, requests for history (8/WAKU-MAIL), and the packets that end the answers to
//! such requests. Decoding borrows from the input, and encoding appends to a buffer.
//!
//! If the specifications and the programs of these networks differ, Hark follows the programs:
//! go-ethereum 1.9.20 and status-go.

pub mod bloom;
pub mod completion;
pub mod cursor;
pub mod ecies;
pub mod envelope;
pub mod keys;
pub mod message;
pub mod record;
pub mod request;
pub mod rlp;

pub use bloom::Bloom;
pub use completion::Completion;
pub use cursor::HistoryCursor;
pub use envelope::{Envelope, EnvelopeError};
pub use keys::{PublicKey, SecretKey};
pub use message::{OpenedMessage, SealedMessageError};
pub use record::EnvelopeRecord;
pub use request::{HistoryRequest, RequestError};
pub use rlp::RlpError;

/// The unencrypted topic of an envelope: four bytes, usually of a hash.
pub type Topic = [u8; 4];
