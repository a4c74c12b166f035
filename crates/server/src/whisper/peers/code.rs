//! Codes of the packets of `shh/6` and `waku/1`. A connection adds its offset to these codes.

/// The status, each side's first packet.
pub const STATUS: u64 = 0;
/// Envelopes that a peer forwards.
pub const MESSAGES: u64 = 1;
/// The minimum proof of work that a node requires from now on (`shh/6`).
pub const POW: u64 = 2;
/// The acknowledgement of a packet of envelopes: the packet's hash (superseded by [`OUTCOMES`]).
pub const BATCH_ACKNOWLEDGED: u64 = 11;
/// The outcomes of the envelopes of a packet (`waku/1`, and `shh/6` of status-go).
pub const OUTCOMES: u64 = 12;
/// The changes of a status (`waku/1`).
pub const STATUS_UPDATE: u64 = 22;
/// A request of one mail server to another for envelopes (`shh/6` of status-go).
pub const SYNC_REQUEST: u64 = 123;
/// A part of the answer to [`SYNC_REQUEST`].
pub const SYNC_RESPONSE: u64 = 124;
/// The end of the answer to a request for history.
pub const COMPLETE: u64 = 125;
/// A request for history.
pub const REQUEST: u64 = 126;
/// Envelopes of an answer.
pub const DIRECT: u64 = 127;
