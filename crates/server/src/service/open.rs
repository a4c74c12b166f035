//! Opens the service of a network, with the network's shelf.

use std::sync::Arc;

use super::answers::Answers;
use super::intake::{IntakeBounds, WriteIntake};
use super::questions::Questions;
use super::turns::StoreLocation;
use crate::door::Host;
use crate::rate::RateBuckets;
use crate::shelf::{Shelf, ShelfOptions, Subscribers};

/// The service of a network; see the module above.
pub(crate) struct Service {
    /// The network's part of the archive.
    pub(crate) shelf: Arc<Shelf>,
    /// The buckets of the rates of the network's own settings.
    pub(crate) buckets: Arc<RateBuckets>,
    /// Stores records.
    pub(crate) intake: WriteIntake,
    /// Searches pages.
    pub(crate) questions: Questions,
    /// Holds pages until clients have read them.
    pub(crate) answers: Answers,
}

impl Service {
    /// Opens the shelf of a network, and the service on this shelf.
    pub(crate) fn open(
        host: &Host<'_>,
        options: ShelfOptions,
        subscribers: Arc<dyn Subscribers>,
        bounds: IntakeBounds,
        at: StoreLocation,
    ) -> Self {
        let writer = bounds.writer(options.writer);
        let shelf = Shelf::open(ShelfOptions { writer, ..options }, subscribers);
        let buckets = Arc::<RateBuckets>::default();
        Self {
            intake: WriteIntake::new(shelf.writer(), bounds),
            questions: Questions::new(&host.settings, &shelf, at, Arc::clone(&buckets)),
            buckets,
            answers: Answers::new(),
            shelf,
        }
    }
}
