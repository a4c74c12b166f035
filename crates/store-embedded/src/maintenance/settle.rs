//! Runs maintenance at once, for tests and benches.

use super::error::MaintenanceError;
use super::run::maintain_all;
use crate::engine::embedded_store::EmbeddedStore;
use crate::repair::file_lengths::{check_lengths, forget_verified};

impl EmbeddedStore {
    /// Runs all due maintenance jobs, and returns after the last. For tests and benches.
    pub fn run_due_maintenance(&self) -> Result<(), MaintenanceError> {
        maintain_all(&self.shelf)
    }

    /// Runs the regular checks of maintenance at once, for tests: compares the lengths of all
    /// files, and makes later reads verify checksums again.
    pub fn recheck_files(&self) {
        check_lengths(&self.shelf);
        forget_verified(&self.shelf.view.load_full());
    }
}
