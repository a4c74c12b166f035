//! Hark's archives that are queried in this process, in files and in a database.

mod envelopes;
mod events;

use crate::openers::BenchOpeners;

/// Connections for queries: more than any benchmark uses at once.
const CONNECTIONS: usize = 32;

/// Opens the archives.
pub(crate) const OPENERS: BenchOpeners<'static> = BenchOpeners {
    events: &events::open,
    archive: &events::open_to_read,
    envelopes: &envelopes::open,
};
