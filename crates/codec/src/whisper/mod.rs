//! Whisper (EIP-627) and its successor Waku 1 (6/WAKU1): envelopes and their proof of work, bloom
//! filters of topics, the requests for history that mail servers answer (8/WAKU-MAIL), and the ends
//! of these answers. Decoding borrows, encoding appends.
//!
//! Where the specifications and the programs that ran these networks differ, the programs count:
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

/// The visible topic of an envelope: four bytes, usually of a hash.
pub type Topic = [u8; 4];
