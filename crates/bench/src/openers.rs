//! The ways to open the stores that are queried in process.

use crate::store::{BenchArchiveOpener, BenchStoreOpener};
use crate::whisper::EnvelopeStoreOpener;

/// Connections for queries: more than any benchmark uses at once.
pub(crate) const CONNECTIONS: usize = 32;

/// Opens the stores that are queried in process.
#[derive(Clone, Copy)]
pub(crate) struct BenchOpeners<'a> {
    /// Opens a store of events.
    pub(crate) events: BenchStoreOpener<'a>,
    /// Opens an archive of events for reading.
    pub(crate) archive: BenchArchiveOpener<'a>,
    /// Opens a store of envelopes.
    pub(crate) envelopes: EnvelopeStoreOpener<'a>,
}
