//! A store that is asked in process, lent by the binary: this crate knows none. And whatever else
//! answers questions or takes events, one at a time.

/// A store of Hark, opened. Shared by the threads that ask and those that insert.
pub trait Store: Send + Sync {
    /// Keeps events, each given as JSON, without checking their signatures. Durable on return.
    fn put(&self, events: &[Vec<u8>]) -> anyhow::Result<()>;

    /// Reads all that a filter asks for and says how many events that are.
    fn ask(&self, filter: &str) -> anyhow::Result<u64>;
}

/// Opens the store at an address: a directory or a `postgres://` URL. It is made if it is not there.
pub type Open<'a> = &'a dyn Fn(&str) -> anyhow::Result<Box<dyn Store>>;

/// Whatever answers questions, one at a time.
pub(crate) trait Asker: Send {
    /// Reads the whole answer and says how many events it holds.
    fn ask(&mut self, filter: &str) -> anyhow::Result<u64>;
}

/// Whatever takes events, some at a time.
pub(crate) trait Inserter: Send {
    /// Returns once they are durable.
    fn insert(&mut self, events: &[Vec<u8>]) -> anyhow::Result<()>;
}

/// One of several threads that ask a store.
impl Asker for &dyn Store {
    fn ask(&mut self, filter: &str) -> anyhow::Result<u64> {
        Store::ask(*self, filter)
    }
}

/// One of several threads that insert.
impl Inserter for &dyn Store {
    fn insert(&mut self, events: &[Vec<u8>]) -> anyhow::Result<()> {
        self.put(events)
    }
}
