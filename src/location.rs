//! The location of the archive, and the ways to open the archive. A command can read beside a
//! running server. To write, a command holds the archive's lock itself, or sends its writes to the
//! running server.

use std::any::Any;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueHint};
use hark_archive::{Store, TextSource};
use hark_networks::Network;
use hark_server::control::ControlClient;
use hark_server::moderation::{Moderation, ModerationNetwork, concern};
use parking_lot::Mutex;
use rustix::fs::{Access, access};

use crate::config::{Config, NetworkSetup, ShelfConfig, setup, setups, shelf_config};
use crate::control::{CONTROL_SOCKET, connect};
use crate::print;
use crate::stores::embedded::{FILES, FileArchive, FileShelf};
use crate::stores::{
    ArchiveStore, ShelfPlace, StoreFacts, StoreLock, address_forms, archive_in, distant_archive,
    named_archive,
};
use crate::writer::{HistoryWriter, OwnedStore, WriterHandle};
use crate::wrong_use::WrongUse;

/// The directories in which services have their archives; see deploy/hark.service.
pub(crate) const SERVICES: [&str; 1] = ["/var/lib/hark"];

/// The flags that select the archive and the settings.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LocationArgs {
    /// The archive's directory [default: archive.data of the configuration, which is ./data]
    #[arg(long, value_name = "DIR", env = "HARK_DATA", global = true)]
    pub(crate) data: Option<PathBuf>,
    /// The store of events: `embedded` (files in DIR) or postgres://user@host/database [default:
    /// archive.store of the configuration, which is embedded]
    #[arg(long, value_name = "URL", env = "HARK_STORE", global = true, hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// The network that the command works on [default: the first]
    #[arg(long, value_name = "NAME", value_parser = networks(), global = true)]
    pub(crate) network: Option<String>,
    /// A configuration file; none is needed (see `hark config`) [default: /etc/hark/hark.toml, if
    /// the file is there; an empty name stands for no file]
    #[arg(long, value_name = "FILE", env = "HARK_CONFIG", global = true)]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<OsString>,
}

pub(crate) fn networks() -> PossibleValuesParser {
    let named = |setup: &NetworkSetup| {
        PossibleValue::new(setup.network.name()).help(setup.network.records())
    };
    setups().iter().map(named).collect::<Vec<_>>().into()
}

/// The location of a shelf (one network's part of an archive), and the settings in force.
pub struct ArchiveLocation {
    pub(crate) network: &'static dyn Network,
    pub(crate) data: PathBuf,
    /// The archive's store, with the shelves of all networks.
    pub(crate) store: Arc<dyn ArchiveStore>,
    /// The address of the store.
    address: String,
    pub(crate) config: Config,
    /// Whether a flag, a variable or the configuration names the archive. False for the default
    /// location.
    is_named: bool,
}

/// The configuration of the machine's service. All commands read this file unless the command line
/// names another file.
pub(crate) const SERVICE_CONFIG: &str = "/etc/hark/hark.toml";

impl LocationArgs {
    /// Returns the configuration file to read, if any.
    pub(crate) fn config_file(&self) -> Option<&Path> {
        match &self.config {
            Some(named) => Some(Path::new(named)).filter(|_| !named.is_empty()),
            None => Some(Path::new(SERVICE_CONFIG)).filter(|file| file.symlink_metadata().is_ok()),
        }
    }

    /// Returns the path for a first configuration: the named file. If no file is named, returns the
    /// path of the service's file if this user can create the file, otherwise a path in the current
    /// directory.
    pub(crate) fn new_config_file(&self) -> PathBuf {
        match &self.config {
            Some(named) if !named.is_empty() => named.into(),
            None if can_create(Path::new(SERVICE_CONFIG)) => SERVICE_CONFIG.into(),
            _ => "hark.toml".into(),
        }
    }
}

/// Whether this user may create a file, with its folder if the folder is missing.
fn can_create(file: &Path) -> bool {
    let folder = file.ancestors().skip(1).find(|folder| folder.is_dir());
    let allowed = Access::WRITE_OK | Access::EXEC_OK;
    folder.is_some_and(|folder| access(folder, allowed).is_ok())
}

impl ArchiveLocation {
    /// Loads the configuration, and applies the flags, which override the configuration.
    pub(crate) fn new(args: LocationArgs) -> anyhow::Result<Self> {
        let config = Config::load(args.config_file(), &address_forms())?;
        let is_named = args.data.is_some() || config.data != Config::default().data;
        let data = args.data.unwrap_or_else(|| config.data.clone());
        let address = args.store.unwrap_or_else(|| config.store.secret().into());
        let store = named_archive(&address, &data)?;
        // The command line accepts only known networks.
        let named = args.network.as_deref().and_then(setup);
        let network = named.unwrap_or(&setups()[0]).network;
        Ok(Self { network, data, store, address, config, is_named })
    }

    /// Returns the location of a shelf at an address: a directory, or the address of another store.
    /// The settings come from the configuration of the machine's service and from the environment.
    /// `connections` is the maximum number of connections to a database.
    pub fn at(
        address: &str,
        network: &'static dyn Network,
        connections: usize,
    ) -> anyhow::Result<Self> {
        let mut location = Self::new(LocationArgs::default())?.of(network).other(address)?;
        location.config.postgres.connections_max = connections;
        Ok(location)
    }

    /// Returns the location of another network's shelf in the same archive.
    pub(crate) fn of(&self, network: &'static dyn Network) -> Self {
        let (data, store) = (self.data.clone(), Arc::clone(&self.store));
        let (address, config) = (self.address.clone(), self.config.clone());
        Self { network, data, store, address, config, is_named: self.is_named }
    }

    /// Returns the location of an archive in the files of another directory, with the same
    /// settings.
    pub(crate) fn in_directory(&self, data: &Path) -> Self {
        let (network, config) = (self.network, self.config.clone());
        let (data, store, address) = (data.to_path_buf(), archive_in(data), FILES.to_owned());
        Self { network, data, store, address, config, is_named: true }
    }

    /// Returns the location of another archive, with the same settings.
    pub(crate) fn other(&self, address: &str) -> anyhow::Result<Self> {
        let mut other = match distant_archive(address, &self.data)? {
            Some(store) => {
                Self { store, address: address.into(), is_named: true, ..self.of(self.network) }
            }
            None => self.in_directory(Path::new(address)),
        };
        // The read replica is a copy of this archive, and not of the archive at `address`.
        other.config.postgres.read_url = None;
        Ok(other)
    }

    /// Returns the network, the directory and the settings, which a store needs to open the shelf.
    pub(crate) fn place(&self) -> ShelfPlace<'_> {
        ShelfPlace { network: self.network, data: &self.data, config: &self.config }
    }

    /// Returns the properties of the store that commands and doors need: its name, where its
    /// records are, and the batch size of an import.
    pub(crate) fn facts(&self) -> StoreFacts {
        self.store.facts()
    }

    /// Returns the archive if its store is of the kind `T`.
    pub(crate) fn store_as<T: ArchiveStore>(&self) -> Option<&T> {
        let store: &dyn Any = &*self.store;
        store.downcast_ref()
    }

    /// Returns the shelf in files. Fails if the archive is in another store. `command` is the name
    /// of the command, which works only on files.
    pub(crate) fn files(&self, command: &str) -> anyhow::Result<(&FileArchive, FileShelf<'_>)> {
        let Some(archive) = self.store_as::<FileArchive>() else {
            bail!("{}", self.store.refuses(command));
        };
        Ok((archive, archive.shelf(self.place())))
    }

    /// The directory of the shelf.
    pub(crate) fn shelf(&self) -> PathBuf {
        self.place().dir()
    }

    /// The socket on which a running server accepts writes.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.data.join(CONTROL_SOCKET)
    }

    /// The settings of the shelf.
    pub(crate) fn shelf_config(&self) -> ShelfConfig {
        shelf_config(&self.config, self.network)
    }

    /// The indexed texts of records; `None` without search.
    pub fn texts(&self) -> Option<Arc<dyn TextSource>> {
        self.shelf_config().texts
    }

    /// Whether the archive exists. Only an archive in files may be missing.
    pub(crate) fn exists(&self) -> bool {
        self.store.exists(&self.place())
    }

    /// Whether the archive has the shelf of any network.
    fn is_created(&self) -> bool {
        let place = |setup: &NetworkSetup| ShelfPlace { network: setup.network, ..self.place() };
        setups().iter().any(|setup| self.store.exists(&place(setup)))
    }

    /// Fails, with advice, if a server would create an archive although a service of this machine
    /// has an archive.
    pub(crate) fn must_be_meant_to_serve(&self) -> anyhow::Result<()> {
        if self.is_created() { Ok(()) } else { self.must_be_meant(&SERVICES) }
    }

    /// Fails, with advice, if the archive does not exist.
    pub(crate) fn must_exist(&self) -> anyhow::Result<()> {
        self.store.must_exist(&self.place())
    }

    /// Opens the archive for reading, even while a server is running.
    pub fn read(&self) -> anyhow::Result<Arc<dyn Store>> {
        self.must_exist()?;
        self.store.open_read_only(&self.place())
    }

    /// Returns a store for reading the archive that `writer` writes: the writer's own store or,
    /// beside a running server, a store opened on the same files.
    pub(crate) fn read_beside(&self, writer: &WriterHandle) -> anyhow::Result<Arc<dyn Store>> {
        match writer {
            WriterHandle::Own(owned) => Ok(Arc::clone(&owned.store)),
            WriterHandle::Server(_) => self.read(),
        }
    }

    /// Returns the bans and allows of the archive that `writer` writes.
    pub(crate) fn bans_beside(&self, writer: &WriterHandle) -> anyhow::Result<Option<Moderation>> {
        match writer {
            WriterHandle::Own(owned) => Ok(owned.bans.clone()),
            WriterHandle::Server(_) => self.bans(),
        }
    }

    /// Acquires the lock and opens the shelf for writing.
    pub fn own(&self) -> anyhow::Result<OwnedStore> {
        let lock = self.store.lock()?;
        Ok(OwnedStore { store: self.store.open(&self.place())?, bans: None, lock })
    }

    /// Opens the bans that concern the records of this shelf, under the archive's lock. Returns
    /// `None` if bans do not concern the network.
    pub(crate) fn bans(&self) -> anyhow::Result<Option<Moderation>> {
        let shelf = setup(ModerationNetwork.name()).filter(|_| concern(self.network));
        let Some(shelf) = shelf.map(|setup| self.of(setup.network)) else { return Ok(None) };
        let store = if !self.facts().is_in_directory {
            // This call makes the tables if the database has none yet.
            match shelf.store.open(&shelf.place()) {
                Err(error) if shelf.store.lacks(&shelf.place(), &error) => return Ok(None),
                opened => opened?,
            }
        } else if shelf.exists() {
            shelf.store.open_read_only(&shelf.place())?
        } else {
            return Ok(None);
        };
        Ok(Some(Moderation::over(store)?))
    }

    /// Returns a function that opens another archive's shelf as this shelf's mirror. The function
    /// can be retried until the other archive is available. `lock` is the other archive's lock; all
    /// shelves of an archive share its lock.
    pub(crate) fn mirror(
        &self,
        address: &str,
        lock: &MirrorLock,
    ) -> anyhow::Result<hark_archive::mirror::StoreOpener> {
        let location = self.other(address)?;
        if location.data == self.data && location.address == self.address {
            bail!("[mirror] `store` names the archive itself; name another one");
        }
        let lock = Arc::clone(lock);
        Ok(Box::new(move || {
            let mut held = lock.lock();
            if held.is_none() {
                *held = Some(location.store.lock().map_err(|error| format!("{error:#}"))?);
            }
            drop(held);
            location.store.open(&location.place()).map_err(|error| format!("{error:#}"))
        }))
    }

    /// Returns a writer: the running server if a server holds the archive, otherwise this process.
    /// If several processes may write, this process always writes.
    pub(crate) fn write(&self) -> anyhow::Result<WriterHandle> {
        if self.facts().is_in_directory {
            if let Some(client) = self.server()? {
                return Ok(WriterHandle::Server(client));
            }
            if !self.is_created() {
                self.must_be_meant(&SERVICES)?;
                print::note!(
                    "hark: there was no archive in {}; one is created",
                    self.data.display()
                );
            }
        }
        let mut owned = self.own()?;
        owned.bans = self.bans()?;
        Ok(WriterHandle::Own(owned))
    }

    /// Whether the first write will create the archive. Fails, with advice, if a new archive is
    /// probably a mistake: a service of this machine has an archive, and the user named no archive.
    pub(crate) fn is_yet_to_be_created(&self) -> anyhow::Result<bool> {
        if !self.facts().is_in_directory || self.is_created() || self.server()?.is_some() {
            return Ok(false);
        }
        self.must_be_meant(&SERVICES)?;
        Ok(true)
    }

    /// Fails, with advice, if the archive to be created was not named, and a service of this
    /// machine has an archive in one of the directories `services`. Usually the user means the
    /// service's archive.
    fn must_be_meant(&self, services: &[&str]) -> anyhow::Result<()> {
        let service = services.iter().find(|service| Path::new(service).symlink_metadata().is_ok());
        let Some(service) = service.filter(|_| !self.is_named) else { return Ok(()) };
        let data = self.data.display();
        Err(WrongUse(format!(
            "no archive is named, and there is none in ./{data}, but a service has one in {service}. \
             Name the service's with --data {service}, or create another with --data ./{data}"
        ))
        .into())
    }

    /// Like [`ArchiveLocation::write`], for records from another store.
    pub(crate) fn import(&self) -> anyhow::Result<HistoryWriter> {
        let policy = self.shelf_config().retention;
        Ok(HistoryWriter::new(self.write()?, policy, self.network.records()))
    }

    /// Connects to the running server of this archive, for this shelf. Returns `None` if no server
    /// runs, or if several processes may write, since this process then writes to the store
    /// directly.
    pub(crate) fn server(&self) -> anyhow::Result<Option<ControlClient>> {
        if self.facts().is_in_directory { self.control() } else { Ok(None) }
    }

    /// Connects to the server that uses this data directory, even if its archive is elsewhere.
    /// Returns `None` if no server runs.
    pub(crate) fn control(&self) -> anyhow::Result<Option<ControlClient>> {
        connect(&self.control_socket(), self.network.name())
    }
}

/// The lock of a mirror. The lock is held between attempts to open the mirror, and outlives every
/// store opened under this lock.
pub(crate) type MirrorLock = Arc<Mutex<Option<StoreLock>>>;

#[cfg(test)]
mod tests {
    use hark_testkit::disk::scratch;

    use super::*;

    #[test]
    fn an_archive_without_a_name_is_not_created_beside_that_of_a_service() {
        let folder = scratch("service");
        std::fs::create_dir(&folder).unwrap();
        let service = folder.to_str().unwrap();
        let missing = format!("{service}/missing");
        let missing = missing.as_str();
        let location = |is_named| ArchiveLocation {
            network: setups()[0].network,
            data: "data".into(),
            store: archive_in(Path::new("data")),
            address: FILES.into(),
            config: Config::default(),
            is_named,
        };
        let refusal = location(false).must_be_meant(&[missing, service]).unwrap_err();
        assert!(refusal.is::<WrongUse>());
        let said = refusal.to_string();
        for part in [
            format!("a service has one in {service}. "),
            format!("with --data {service}, or create another with --data ./data"),
        ] {
            assert!(said.contains(&part), "{part}: {said}");
        }
        assert!(location(false).must_be_meant(&[missing]).is_ok());
        assert!(location(true).must_be_meant(&[service]).is_ok());
        std::fs::remove_dir(&folder).unwrap();
    }
}
