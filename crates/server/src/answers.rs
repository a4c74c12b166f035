//! Bounds the bytes of answers that clients have not read yet, in total and per address. The bounds
//! cover the answers of the REST APIs and the pages that are sent to peers. An answer above the
//! bounds is refused, so clients that do not read cannot fill the memory.
//!
//! Messages to WebSockets are counted separately, in the outboxes: a page to a WebSocket waits
//! instead of being refused, and live messages cannot wait. Both counts have the same bounds,
//! `outboxes_bytes_max` and `outboxes_per_address_bytes_max`.

use axum::body::Bytes;

use crate::permits::{Share, Shares};
use crate::rate::RateSource;
use crate::settings::SharedSettings;

/// Minimum of the total bound, even if the setting is lower, so that the longest page fits.
const BYTES_MIN: usize = 8 << 20;

/// Permits, in bytes, for answers in transmission. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Answers {
    shares: Shares<RateSource>,
    settings: SharedSettings,
}

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
    /// Creates the permits of a server with these settings. No permit is in use yet.
    pub(crate) fn new(settings: SharedSettings) -> Self {
        // Each reservation first sets the bounds from the settings.
        Self { shares: Shares::new(0, 0), settings }
    }

    /// Acquires the permit for an answer of `bytes` bytes. Returns `None` if a bound would be
    /// exceeded.
    pub(crate) fn reserve(&self, of: RateSource, bytes: usize) -> Option<Share<RateSource>> {
        self.apply_bounds();
        self.shares.acquire(of, bytes)
    }

    /// Acquires the permit for an answer to a source that stands for many clients. The bound per
    /// address does not apply.
    pub(crate) fn reserve_any(&self, of: RateSource, bytes: usize) -> Option<Share<RateSource>> {
        self.apply_bounds();
        self.shares.acquire_any(of, bytes)
    }

    /// Sets the bounds from the settings, which can change while the server runs.
    fn apply_bounds(&self) {
        let settings = self.settings.load();
        let limits = &settings.limits;
        let max = limits.outboxes_bytes_max.max(BYTES_MIN);
        self.shares.set_bounds(max, limits.outboxes_per_address_bytes_max);
    }
}

impl PermittedBytes {
    /// Returns the body of an HTTP answer. The body holds the permit `room` until it is sent.
    pub(crate) fn body(bytes: Vec<u8>, room: Share<RateSource>) -> Bytes {
        Bytes::from_owner(Self { bytes, _room: room })
    }
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use arc_swap::ArcSwap;

    use super::*;
    use crate::Settings;

    fn source(last: u8) -> RateSource {
        RateSource::Address(IpAddr::from([192, 0, 2, last]).into())
    }

    #[test]
    fn the_bounds_are_those_of_the_settings_in_force() {
        let mut settings = Settings::default();
        settings.limits.outboxes_bytes_max = 64 << 20;
        settings.limits.outboxes_per_address_bytes_max = 12 << 20;
        let shared: SharedSettings = Arc::new(ArcSwap::from_pointee(settings.clone()));
        let waku_rest = Answers::new(Arc::clone(&shared));
        let mail_rest = waku_rest.clone();
        let _first = waku_rest.reserve(source(1), 8 << 20).unwrap();
        assert!(mail_rest.reserve(source(1), 8 << 20).is_none(), "the doors share one bound");
        assert!(mail_rest.reserve(source(2), 8 << 20).is_some());

        settings.limits.outboxes_per_address_bytes_max = 32 << 20;
        shared.store(Arc::new(settings));
        let second = mail_rest.reserve(source(1), 8 << 20);
        assert!(second.is_some(), "16 MiB are a quarter of all");
        assert!(mail_rest.reserve(source(1), 1).is_none(), "a quarter is the most");
        assert!(mail_rest.reserve_any(RateSource::Connection(0), 32 << 20).is_some());
    }

    #[test]
    fn a_single_page_fits_whatever_the_settings_are() {
        let mut settings = Settings::default();
        settings.limits.outboxes_bytes_max = 1 << 20;
        settings.limits.outboxes_per_address_bytes_max = 1 << 20;
        let answers = Answers::new(Arc::new(ArcSwap::from_pointee(settings)));
        let page = answers.reserve(source(1), BYTES_MIN);
        assert!(page.is_some() && answers.reserve(source(2), 1).is_none());
    }
}
