//! Opens the service of a network, with the network's shelf.

use std::sync::Arc;

#[cfg(feature = "devp2p")]
use arc_swap::Guard;

use super::intake::{IntakeBounds, WriteIntake};
use super::plain_figures::ServiceFigures;
use super::questions::Questions;
use super::turns::StoreLocation;
use crate::answers::Answers;
use crate::door::Host;
#[cfg(feature = "devp2p")]
use crate::settings::Settings;
use crate::settings::SharedSettings;
use crate::shelf::{Shelf, ShelfOptions, Subscribers};

/// The service of a network; see the documentation of the module `service`.
pub struct Service {
    /// The network's part of the archive.
    pub(crate) shelf: Arc<Shelf>,
    /// The settings of the server.
    pub(super) settings: SharedSettings,
    /// The common metrics, for a network that defines no metrics of its own.
    pub(super) figures: ServiceFigures,
    /// Stores records.
    pub(crate) intake: WriteIntake,
    /// Finds pages of records.
    pub(crate) questions: Questions,
    /// Bounds the memory of the unread pages of all services.
    pub(crate) answers: Answers,
}

impl Service {
    /// Opens the shelf of a network, and the service on this shelf.
    pub fn open(
        host: &Host<'_>,
        options: ShelfOptions,
        subscribers: Arc<dyn Subscribers>,
        bounds: IntakeBounds,
        at: StoreLocation,
    ) -> Self {
        let writer = bounds.writer(options.writer);
        let shelf = Shelf::open(ShelfOptions { writer, ..options }, subscribers);
        Self {
            intake: WriteIntake::new(shelf.writer(), bounds),
            questions: Questions::new(&host.settings, &shelf, at),
            settings: Arc::clone(&host.settings),
            figures: ServiceFigures::default(),
            answers: host.answers.clone(),
            shelf,
        }
    }

    /// The network's part of the archive.
    pub fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// The settings of the server.
    #[cfg(feature = "devp2p")]
    pub(crate) fn settings(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// Ends all threads of the service except the writer. Called when no client is served any more.
    pub fn close(&self) {
        self.questions.close();
    }
}
