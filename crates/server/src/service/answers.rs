//! Bounds the bytes of answers that clients have not read yet: the total, and the sum of each
//! address. An answer above the bounds is refused, so a client that does not read delays only
//! itself.

use axum::body::Bytes;

use crate::permits::{Share, Shares};
use crate::rate::RateSource;

/// Maximum size of the answers that clients have not read yet, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// Maximum size of such answers for one address, in bytes.
const BYTES_PER_ADDRESS_MAX: usize = 64 << 20;

/// Permits, in bytes, for answers in transmission.
pub(crate) struct Answers(Shares<RateSource>);

/// A page, and the memory permit for its answer.
pub(crate) struct PermittedAnswer<P> {
    pub(crate) page: P,
    pub(crate) room: Share<RateSource>,
}

/// Bytes of an answer, and the memory permit that is held until the bytes are sent.
pub(crate) struct PermittedBytes {
    bytes: Vec<u8>,
    _room: Share<RateSource>,
}

impl Answers {
    pub(super) fn new() -> Self {
        Self(Shares::new(BYTES_MAX, BYTES_PER_ADDRESS_MAX))
    }

    /// Takes the permit for an answer of `bytes` bytes. `None` above the bounds.
    pub(crate) fn reserve(&self, of: RateSource, bytes: usize) -> Option<Share<RateSource>> {
        self.0.acquire(of, bytes)
    }
}

impl PermittedBytes {
    /// Bytes for the body of an HTTP answer.
    pub(crate) fn body(bytes: Vec<u8>, room: Share<RateSource>) -> Bytes {
        Bytes::from_owner(Self { bytes, _room: room })
    }
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
