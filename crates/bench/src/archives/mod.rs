//! Hark's archives that are queried in this process, in files and in a database.

mod envelopes;
mod events;
mod own;

use crate::openers::BenchOpeners;

/// Opens the archives.
pub(crate) const OPENERS: BenchOpeners<'static> = BenchOpeners {
    events: &events::open,
    archive: &events::open_to_read,
    envelopes: &envelopes::open,
};
