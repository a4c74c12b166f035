//! Opens the shelf of the bans when the server starts. The shelf has no door of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Moderation;
use super::subject::{Ruling, SubjectSort};
use crate::ServeError;
use crate::admin::http::Operators;
use crate::blocking;
use crate::door::{Door, DoorAddress, DoorFuture, Host, OpenFuture, OpenNetwork, ServableNetwork};
use crate::metrics::MetricsPage;
use crate::shelf::ShelfOptions;
use crate::stop::StopSignal;

/// The bans and allows, ready to be put in force.
pub struct ModerationService {
    /// The options of the shelf.
    pub shelf: ShelfOptions,
}

/// A door without endpoints: clients reach the bans through the other doors.
struct ModerationDoor(Moderation);

impl ServableNetwork for ModerationService {
    fn open<'a>(self: Box<Self>, host: &'a mut Host<'_>) -> OpenFuture<'a> {
        let moderation = host.moderation.clone();
        Box::pin(async move {
            let opened = moderation.clone();
            // Reading the entries may wait for a database.
            let opening = blocking::run(move || opened.open(self.shelf));
            let shelf =
                opening.await.map_err(|error| ServeError::Thread(io::Error::other(error)))?;
            let shelf = shelf.map_err(|error| ServeError::Door(error.into()))?;
            Ok(OpenNetwork { shelf, door: Arc::new(ModerationDoor(moderation)) })
        })
    }
}

impl Door for ModerationDoor {
    fn addresses(&self) -> Vec<DoorAddress> {
        Vec::new()
    }

    fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    fn metrics(&self, page: &mut MetricsPage) {
        const NAME: &str = "hark_moderation_entries";
        page.head(NAME, "gauge", "Bans and allows in the archive, by ruling and sort.");
        for ruling in Ruling::ALL {
            for sort in SubjectSort::ALL {
                let labels = format!("ruling=\"{}\",sort=\"{}\"", ruling.name(), sort.name());
                page.line(NAME, &labels, self.0.count(ruling, sort));
            }
        }
    }

    fn serve(self: Arc<Self>, _: Operators, mut stop: StopSignal) -> DoorFuture {
        Box::pin(async move { stop.accepting().await })
    }
}
