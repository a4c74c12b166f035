//! A pass of the slow check at a caller's request.

use hark_archive::store::ScrubStats;

use super::step::scrub_step;
use crate::engine::embedded_store::EmbeddedStore;
use crate::maintenance::error::MaintenanceError;
use crate::maintenance::run::maintain_all;

impl EmbeddedStore {
    /// Runs a whole pass of the slow check at full speed, and then all due maintenance.
    pub fn scrub(&self) -> Result<ScrubStats, MaintenanceError> {
        let shelf = &self.shelf;
        let scrub = shelf.jobs.scrub();
        scrub.begin_pass(&mut scrub.run());
        while !scrub_step(shelf).1 {}
        maintain_all(shelf)?;
        Ok(scrub.stats(shelf.view.load().bytes_on_disk()))
    }
}
