//! The interface to a store that the bench queries itself, without a server. The binary passes the
//! store in. `StoreQuerier` and `StoreInserter` are the interfaces to all targets that run one
//! query or insert one batch at a time.

use std::path::Path;

/// An open store of Hark, shared by the threads that query and the threads that insert.
pub trait BenchStore: Send + Sync {
    /// Stores events, each given as JSON, without checking signatures. The events are durable on
    /// return.
    fn put(&self, events: &[Vec<u8>]) -> anyhow::Result<()>;

    /// Reads all events that match a filter and returns their number.
    fn ask(&self, filter: &str) -> anyhow::Result<u64>;
}

/// Opens the store at an address, a directory or a `postgres://` URL. Creates a missing store.
pub type BenchStoreOpener<'a> = &'a dyn Fn(&str) -> anyhow::Result<Box<dyn BenchStore>>;

/// An archive in which the bench measures searches itself, while a server serves the same archive.
pub trait BenchArchive {
    /// Parses the filters of a REQ in advance, so that only the answer is timed later.
    fn question(&self, filters: &str) -> anyhow::Result<BenchQuestion<'_>>;
}

/// A parsed query that appends the events of its answer to a buffer.
pub type BenchQuestion<'a> = Box<dyn Fn(&mut Vec<u8>) -> anyhow::Result<()> + 'a>;

/// Opens the archive in a directory for reading.
pub type BenchArchiveOpener<'a> = &'a dyn Fn(&Path) -> anyhow::Result<Box<dyn BenchArchive>>;

/// Runs queries, one at a time.
pub(crate) trait StoreQuerier: Send {
    /// Runs a query, reads the whole answer and returns its number of events.
    fn ask(&mut self, filter: &str) -> anyhow::Result<u64>;
}

/// Inserts events, one batch at a time.
pub(crate) trait StoreInserter: Send {
    /// Inserts events and returns once they are durable.
    fn insert(&mut self, events: &[Vec<u8>]) -> anyhow::Result<()>;
}

/// Each of several threads queries a store through its own reference.
impl StoreQuerier for &dyn BenchStore {
    fn ask(&mut self, filter: &str) -> anyhow::Result<u64> {
        BenchStore::ask(*self, filter)
    }
}

/// Each of several threads inserts into a store through its own reference.
impl StoreInserter for &dyn BenchStore {
    fn insert(&mut self, events: &[Vec<u8>]) -> anyhow::Result<()> {
        self.put(events)
    }
}
