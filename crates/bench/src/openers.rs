//! The functions that open the stores which the bench queries itself, without a server.

use crate::store::{BenchArchiveOpener, BenchStoreOpener};
use crate::whisper::EnvelopeStoreOpener;

/// Number of connections for queries: more than any benchmark uses at once.
pub(crate) const CONNECTIONS: usize = 32;

/// The functions that open the stores which the bench queries itself, without a server.
#[derive(Clone, Copy)]
pub(crate) struct BenchOpeners<'a> {
    /// Opens a store of events.
    pub(crate) events: BenchStoreOpener<'a>,
    /// Opens an archive of events for reading.
    pub(crate) archive: BenchArchiveOpener<'a>,
    /// Opens a store of envelopes.
    pub(crate) envelopes: EnvelopeStoreOpener<'a>,
}
