//! Reads the requests of streams. The memory for long requests is bounded, in total and per
//! address.

use std::io;
use std::time::Duration;

use libp2p::Stream;

use super::frame;
use crate::permits::{Share, Shares};
use crate::rate::RateSource;

/// Maximum size of a short request, in bytes. The number of streams bounds the memory for short
/// requests.
const SHORT: usize = 4 << 10;
/// How long a stream may be idle before its request: js-waku opens streams ahead of time.
const WAIT: Duration = Duration::from_mins(30);

/// The bounds for the requests of a protocol.
#[derive(Clone)]
pub(super) struct RequestBounds {
    /// Maximum size of a request, in bytes.
    bytes_max: usize,
    /// Permits for the bytes of long requests.
    long: Shares<RateSource>,
}

/// A request, and the permit for its bytes.
pub(super) struct ReadRequest {
    pub(super) bytes: Vec<u8>,
    _room: Option<Share<RateSource>>,
}

/// Why a request is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnreadRequest {
    /// The peer has left, or has sent no request in time.
    Left,
    /// The bytes before the request are not a valid length.
    Malformed,
    /// The request has more bytes than allowed.
    TooLong,
    /// Too many long requests are being read.
    Busy,
}

impl RequestBounds {
    /// Allows requests of `bytes_max` bytes, and `total_max` bytes of long requests at a time.
    pub(super) fn new(bytes_max: usize, total_max: usize) -> Self {
        Self { bytes_max, long: Shares::new(total_max, total_max) }
    }

    /// Reads the request of a stream.
    pub(super) async fn read(
        &self,
        stream: &mut Stream,
        source: RateSource,
    ) -> Result<ReadRequest, UnreadRequest> {
        let mut fault = UnreadRequest::Malformed;
        let reading = frame::read_if(stream, usize::MAX, |len| {
            if len > self.bytes_max {
                fault = UnreadRequest::TooLong;
                return None;
            }
            if len <= SHORT {
                return Some(None);
            }
            fault = UnreadRequest::Busy;
            self.long.acquire(source, len).map(Some)
        });
        match tokio::time::timeout(WAIT, reading).await {
            Ok(Ok(Some((bytes, room)))) => Ok(ReadRequest { bytes, _room: room }),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => Err(fault),
            _ => Err(UnreadRequest::Left),
        }
    }
}
