//! Waku: messages (RFC 14/WAKU2-MESSAGE), their deterministic hash, and what Store v3 (RFC
//! 13/WAKU2-STORE) asks and answers. Decoding borrows, encoding appends.

pub mod message;
pub mod protobuf;
pub mod store;

pub use message::{Encoder, Message, MessageRecord, topic};
pub use protobuf::ProtobufError;
pub use store::{Request, Response};
