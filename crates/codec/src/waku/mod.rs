//! Waku: messages (RFC 14/WAKU2-MESSAGE), their deterministic hash, and the requests and responses
//! of Store v3 (RFC 13/WAKU2-STORE), Filter v2 and light push. Decoding borrows from the input, and
//! encoding appends to a buffer.

pub mod filter;
pub mod light_push;
pub mod message;
pub mod protobuf;
pub mod rln;
pub mod shard;
pub mod signed;
pub mod store;
pub mod sync;

pub use filter::{FilterPush, FilterRequest, FilterResponse};
pub use light_push::{LegacyPush, LightPushRequest, LightPushResponse};
pub use message::{Message, MessageEncoder, MessageRecord, topic};
pub use protobuf::ProtobufError;
pub use rln::RateLimitProof;
pub use shard::Shard;
pub use signed::{ProtectedShard, ShardKey};
pub use store::{StoreRequest, StoreResponse};
