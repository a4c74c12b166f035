//! The interface between the commands and a kind of store. A command asks a store for its
//! properties ([`StoreFacts`]), and does not know which store it uses. Commands that support only
//! one kind of store, such as `hark compact`, ask the location for an archive of this kind.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use hark_archive::Store;
use hark_networks::Network;
use hark_server::StoreLocation;
use hark_server::control::{Handover, Takeover, TakeoverLock};
use hark_server::shelf::CompactFn;
use hark_store_embedded::backup::PutSource;

use super::address::AddressForm;
use super::check::{ArchiveCheck, ArchiveRebuild, CheckMeter};
use crate::config::{Config, ShelfConfig, shelf_config};

/// A kind of store: an entry of the list of stores.
#[derive(Clone, Copy, Debug)]
pub struct StoreSetup {
    /// The form of the store's addresses.
    pub form: AddressForm,
    /// Returns the archive at an address, without opening a file or a connection. The path is the
    /// archive's directory.
    pub archive: fn(&str, &Path) -> Arc<dyn ArchiveStore>,
}

/// The properties of a store that commands and doors need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// The name in metrics.
    pub name: &'static str,
    /// Whether the records are in the archive's directory. Then only the process that holds the
    /// archive's lock writes, and commands send their writes to the running server.
    pub is_in_directory: bool,
    /// Whether the records are in another process, which may be temporarily unreachable. Such a
    /// store looks ids up in batches, when records are put.
    pub is_remote: bool,
    /// Number of records that an import makes durable together.
    pub batch_records: usize,
}

/// A shelf to be opened: the network, the archive's directory, and the settings.
#[derive(Clone, Copy)]
pub struct ShelfPlace<'a> {
    /// The network of the shelf.
    pub network: &'static dyn Network,
    /// The archive's directory.
    pub data: &'a Path,
    /// The settings in force.
    pub config: &'a Config,
}

impl ShelfPlace<'_> {
    /// Returns the directory of the shelf, for stores that have their records in the archive's
    /// directory.
    pub fn dir(&self) -> PathBuf {
        self.data.join(self.network.name())
    }

    /// Returns the settings of the shelf.
    pub fn settings(&self) -> ShelfConfig {
        shelf_config(self.config, self.network)
    }
}

/// The lock of an archive, held until this value is dropped.
pub struct StoreLock(
    #[expect(dead_code, reason = "held, not read")] Option<Box<dyn Any + Send + Sync>>,
);

impl StoreLock {
    /// The lock of an archive to which several processes may write.
    pub fn none() -> Self {
        Self(None)
    }

    /// A lock that is released when `lock` is dropped.
    pub fn new(lock: impl Any + Send + Sync) -> Self {
        Self(Some(Box::new(lock)))
    }
}

/// Opens a shelf of an archive that this process serves.
pub type ShelfOpener = Box<dyn Fn(&ShelfPlace<'_>) -> anyhow::Result<ServedShelf>>;

/// An archive that this process serves.
pub struct ServedStore {
    /// The archive's lock, which a takeover passes on; `None` if several processes may write.
    pub lock: Option<Arc<dyn TakeoverLock>>,
    /// The takeover from a running server, if any.
    pub taking: Option<Takeover>,
    /// Opens a shelf.
    pub open: ShelfOpener,
}

/// A shelf opened to be served.
pub struct ServedShelf {
    /// The open store.
    pub store: Arc<dyn Store>,
    /// Where the store does its work: in this process, or in a database.
    pub at: StoreLocation,
    /// Whether the store refuses all writes because its disk is full.
    pub refuses_writes: bool,
    /// Frees space on request, if the store can.
    pub compact: Option<CompactFn>,
    /// Passes the shelf to the next server, if the store can.
    pub handover: Option<Arc<dyn Handover>>,
}

/// The store of an archive at one address, with the shelves of all networks.
pub trait ArchiveStore: Any + Send + Sync {
    /// Returns the properties of the store that commands and doors need.
    fn facts(&self) -> StoreFacts;

    /// Returns the directory or the address of a shelf, for messages. Secrets are left out.
    fn shown(&self, shelf: &ShelfPlace<'_>) -> String;

    /// Whether the shelf exists. True for every shelf if the store creates shelves on demand.
    fn exists(&self, _shelf: &ShelfPlace<'_>) -> bool {
        true
    }

    /// Fails, with advice, if the shelf does not exist, or cannot be opened in its state.
    fn must_exist(&self, _shelf: &ShelfPlace<'_>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Returns the error of a command that works on files alone.
    fn refuses(&self, command: &str) -> String {
        let name = self.facts().name;
        format!("`hark {command}` is for archives in files; this one is in another store ({name})")
    }

    /// Acquires the archive's lock, which only one process can hold.
    fn lock(&self) -> anyhow::Result<StoreLock> {
        Ok(StoreLock::none())
    }

    /// Opens a shelf for writing. The caller must hold the archive's lock.
    fn open(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Arc<dyn Store>>;

    /// Opens a shelf for reading, even while a server is running.
    fn open_read_only(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Arc<dyn Store>>;

    /// Returns the present state of a shelf for a backup, if the store has no logs that can be
    /// copied. Returns `None` if there is no such shelf.
    fn put_source(&self, _: &ShelfPlace<'_>) -> anyhow::Result<Option<Box<dyn PutSource>>> {
        bail!("{}", self.refuses("backup"))
    }

    /// Prepares this process to serve the archive. `takeover` names the shelves to be taken over
    /// from the running server, if a takeover was requested.
    fn serve(self: Arc<Self>, takeover: Option<&[&str]>) -> anyhow::Result<ServedStore>;

    /// Checks a shelf, and changes nothing. A server may serve the shelf meanwhile.
    fn check(&self, _: &ShelfPlace<'_>, _: CheckMeter<'_>) -> anyhow::Result<ArchiveCheck> {
        bail!("{}", self.refuses("check"))
    }

    /// Rebuilds everything in a shelf that can be derived from its records.
    fn rebuild(&self, _: &ShelfPlace<'_>, _: CheckMeter<'_>) -> anyhow::Result<ArchiveRebuild> {
        bail!("{}", self.refuses("rebuild"))
    }

    /// Whether an error from opening a shelf means that the shelf has never been made, and that
    /// this process cannot make the shelf.
    fn lacks(&self, _shelf: &ShelfPlace<'_>, _error: &anyhow::Error) -> bool {
        false
    }

    /// Whether an error from opening a shelf means that the store is temporarily unreachable.
    fn is_away(&self, _error: &anyhow::Error) -> bool {
        false
    }
}
