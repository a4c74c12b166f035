//! The state of a mail server.

use std::sync::Arc;

use arc_swap::Guard;

use super::config::{MailConfig, MailSettings};
use super::metrics::{MailMetrics, MailSource, RequestFate};
use super::news::NewsReader;
use super::topics::TopicIndex;
use crate::Clients;
use crate::rate::RateBuckets;
use crate::service::{IntakeBounds, Service};

/// Bounds for the envelopes that wait to be durable.
pub(super) const INTAKE: IntakeBounds = IntakeBounds { records_max: 16_384 };

/// The state that all interfaces share.
pub(crate) struct MailServer {
    pub(super) service: Service,
    pub(super) topics: Arc<TopicIndex>,
    pub(super) news: NewsReader,
    pub(super) metrics: MailMetrics,
    /// The rate limits for new topics.
    pub(super) topic_buckets: RateBuckets,
    /// Whether the rate limits for envelopes are disabled.
    pub(super) unlimited: bool,
    pub(super) clients: Clients,
    pub(super) config: MailConfig,
}

impl MailServer {
    /// Returns the current settings.
    pub(super) fn settings(&self) -> Guard<Arc<MailSettings>> {
        self.config.settings.load()
    }

    /// The current time, in seconds since 1970.
    pub(super) fn now_s(&self) -> u64 {
        self.service.shelf.clock().now_s()
    }

    /// Counts a request.
    pub(super) fn count_request(&self, from: MailSource, fate: RequestFate) {
        self.metrics.requests.of(from).of(fate).add(1);
    }
}
