//! The location of the archive, and the ways to open the archive. A command can read beside a
//! running server. To write, a command holds the archive's lock itself, or sends its writes to the
//! running server.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueHint};
use hark_archive::clock::Clock;
use hark_archive::retention::{RetentionPolicy, RetentionState};
use hark_archive::store::SpaceBounds;
use hark_archive::{Outcome, Query, Record, Store, TextSource, Write};
use hark_networks::Network;
use hark_server::control::{ControlClient, ControlError, Takeover};
use hark_store_embedded::backup::BackupCatalog;
use hark_store_embedded::disk::{Disk as _, RealDisk, make_dir};
use hark_store_embedded::{
    DirectoryLock, DiskReserve, EmbeddedOptions, EmbeddedStore, LockError, ShelfOpenError,
};
use hark_store_postgres::{PostgresStore, is_database, shown};
use parking_lot::Mutex;

use crate::config::{Config, NetworkSetup, ShelfConfig, setup, setups};
use crate::{WrongUse, owner, print};

/// Advice in errors about a database that could not be reached.
pub(crate) const LOOK_AT_DATABASE: &str =
    "check the address, and that the database runs and accepts this user";

/// The error message if a server ends while a command writes.
const SERVER_IS_GONE: &str = "the server stopped answering; what was reported as stored is safe. Run the \
                              import again: it skips what is stored";

/// An archive that is bounded in bytes is split into at least this many logs, unless a log would
/// then be smaller than [`LOG_BYTES_MIN`].
const LOGS_MIN: u64 = 40;
const LOG_BYTES_MIN: u64 = 256 << 10;
/// Deleted records may permanently occupy one part in this many of a bound in bytes.
const DEAD_SHARE: u64 = 20;

/// The name of a server's control socket in the archive's directory.
const CONTROL_SOCKET: &str = "control.sock";

/// The directories in which services have their archives; see deploy/hark.service.
pub(crate) const SERVICES: [&str; 1] = ["/var/lib/hark"];

/// A command that creates a whole archive. It builds the archive in a separate directory within the
/// archive's directory. Once all files are durable, the separate directory is renamed, which
/// commits the result. Then its content is moved to its final place. While one of the two names
/// exists, no other command opens the archive.
pub(crate) struct Making {
    pub(crate) command: &'static str,
    /// Name of the directory while the archive is incomplete.
    pub(crate) unfinished: &'static str,
    /// Name of the directory once the archive is complete.
    pub(crate) finished: &'static str,
}

pub(crate) const RESTORE: Making =
    Making { command: "restore", unfinished: "restoring", finished: "restored" };
pub(crate) const SALVAGE: Making =
    Making { command: "salvage", unfinished: "salvaging", finished: "salvaged" };

impl Making {
    /// Commits the archive that was built in `data`, and moves it into its final place.
    pub(crate) fn finish(&self, data: &Path) -> anyhow::Result<()> {
        let (unfinished, finished) = (data.join(self.unfinished), data.join(self.finished));
        if !finished.exists() {
            std::fs::rename(&unfinished, &finished)
                .and_then(|()| RealDisk.sync_dir(data))
                .with_context(|| format!("{} could not be renamed", unfinished.display()))?;
        }
        move_all(&finished, data).with_context(|| {
            format!("{} could not be moved to its place; run the command again", finished.display())
        })
    }
}

/// Moves the content of `from` into `data`, and removes `from`.
fn move_all(from: &Path, data: &Path) -> std::io::Result<()> {
    // A symbolic link made by a service's user could lead to any directory of this machine.
    if !from.symlink_metadata()?.is_dir() {
        return Err(std::io::Error::other("it is no directory, but a link or a file"));
    }
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::rename(entry.path(), data.join(entry.file_name()))?;
    }
    RealDisk.sync_dir(data)?;
    std::fs::remove_dir(from)?;
    RealDisk.sync_dir(data)
}

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
pub(crate) struct ArchiveLocation {
    pub(crate) network: &'static dyn Network,
    pub(crate) data: PathBuf,
    /// URL of the database; `None` if the archive is in files.
    pub(crate) database: Option<String>,
    pub(crate) config: Config,
    /// Whether a flag, a variable or the configuration names the archive. False for the default
    /// location.
    is_named: bool,
    /// Reserved disk space for use when the disk is full.
    reserve: Arc<DiskReserve>,
}

/// Returns the reserve of an archive's directory.
fn reserve(data: &Path) -> Arc<DiskReserve> {
    Arc::new(DiskReserve::new(data, Arc::new(RealDisk)))
}

/// Returns the URL of a database, or `None` for `embedded`, which means files.
fn database(store: &str) -> anyhow::Result<Option<String>> {
    match store {
        "embedded" => Ok(None),
        url if is_database(url) => Ok(Some(url.into())),
        other => Err(WrongUse(format!(
            "there is no store `{}`; leave --store out for files in the data directory, or give \
             postgres://user@host/database",
            shown(other)
        ))
        .into()),
    }
}

/// The configuration of the machine's service, which all commands read unless another is named.
const SERVICE_CONFIG: &str = "/etc/hark/hark.toml";

impl LocationArgs {
    /// Returns the configuration file to read, if any.
    pub(crate) fn config_file(&self) -> Option<&Path> {
        match &self.config {
            Some(named) => Some(Path::new(named)).filter(|_| !named.is_empty()),
            None => Some(Path::new(SERVICE_CONFIG)).filter(|file| file.symlink_metadata().is_ok()),
        }
    }
}

impl ArchiveLocation {
    /// Loads the configuration, and applies the flags, which override the configuration.
    pub(crate) fn new(args: LocationArgs) -> anyhow::Result<Self> {
        let config = Config::load(args.config_file())?;
        let is_named = args.data.is_some() || config.data != Config::default().data;
        let data = args.data.unwrap_or_else(|| config.data.clone());
        let database = database(args.store.as_deref().unwrap_or(config.store.secret()))?;
        // The command line accepts only known networks.
        let named = args.network.as_deref().and_then(setup);
        let (network, reserve) = (named.unwrap_or(&setups()[0]).network, reserve(&data));
        Ok(Self { network, data, database, config, is_named, reserve })
    }

    /// Returns the location of another network's shelf in the same archive.
    pub(crate) fn of(&self, network: &'static dyn Network) -> Self {
        let (data, database) = (self.data.clone(), self.database.clone());
        let (reserve, is_named) = (Arc::clone(&self.reserve), self.is_named);
        Self { network, data, database, config: self.config.clone(), is_named, reserve }
    }

    /// Returns the location of an archive in files in another directory, with the same settings.
    pub(crate) fn in_directory(&self, data: &Path) -> Self {
        let (data, reserve) = (data.to_path_buf(), reserve(data));
        let (network, config) = (self.network, self.config.clone());
        Self { network, data, database: None, config, is_named: true, reserve }
    }

    /// The directory of the shelf.
    pub(crate) fn shelf(&self) -> PathBuf {
        self.data.join(self.network.name())
    }

    /// The socket on which a running server accepts writes.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.data.join(CONTROL_SOCKET)
    }

    /// The settings of the shelf.
    pub(crate) fn shelf_config(&self) -> ShelfConfig {
        let setup = setup(self.network.name()).unwrap_or(&setups()[0]);
        (setup.shelf)(&self.config)
    }

    /// The indexed texts of records; `None` without search.
    pub(crate) fn texts(&self) -> Option<Arc<dyn TextSource>> {
        self.shelf_config().texts
    }

    /// The options with which the embedded store is opened.
    pub(crate) fn options(&self) -> EmbeddedOptions {
        let bounds = space_bounds(&self.config, &self.shelf_config().retention);
        EmbeddedOptions {
            seal_records: self.config.seal_records,
            log_bytes_max: bounds.log_bytes_max,
            head_bytes_max: self.config.head_bytes_max,
            dead_bytes_max: bounds.dead_bytes_max,
            scrub_within: Some(Duration::from_secs(self.config.scrub_days.saturating_mul(86_400))),
            listed_labels: self.network.nature().listed_labels,
            texts: self.texts(),
            erase_within: bounds.erase_within,
            free_bytes_min: bounds.free_bytes_min,
            reserve: Some(Arc::clone(&self.reserve)),
            ..EmbeddedOptions::default()
        }
    }

    /// Whether the archive exists. An archive in a database always counts as existing.
    pub(crate) fn exists(&self) -> bool {
        self.database.is_some() || self.shelf().is_dir()
    }

    /// Whether the archive has the shelf of any network.
    fn is_begun(&self) -> bool {
        setups().iter().any(|setup| self.of(setup.network).exists())
    }

    /// Fails, with advice, if a server would begin a second archive beside the archive of a service.
    pub(crate) fn must_be_meant_to_serve(&self) -> anyhow::Result<()> {
        if self.is_begun() { Ok(()) } else { self.must_be_meant(&SERVICES) }
    }

    /// The options with which the database is opened.
    pub(crate) fn database_options(&self) -> hark_store_postgres::PostgresOptions {
        let config = &self.config.postgres;
        let nature = self.network.nature();
        hark_store_postgres::PostgresOptions {
            read_url: config.read_url.as_ref().map(|url| url.secret().to_owned()),
            pool_max: config.connections_max,
            statement_timeout: config.statement_timeout,
            part_s: self.shelf_config().part_days.saturating_mul(86_400),
            shards: config.shards,
            units_per_s: nature.units_per_s,
            one_kind: nature.one_kind,
            common_labels: nature.common_labels,
            listed_labels: nature.listed_labels,
            texts: self.texts(),
            ..hark_store_postgres::PostgresOptions::default()
        }
    }

    /// Opens the shelf in the database at `url`.
    pub(crate) fn postgres(&self, url: &str, migrate: bool) -> anyhow::Result<PostgresStore> {
        let options = hark_store_postgres::PostgresOptions { migrate, ..self.database_options() };
        let (shelf, rules) = (self.network.name(), self.network.rules());
        PostgresStore::open(url, shelf, rules, &options).with_context(|| {
            format!("the archive in the database could not be opened; {LOOK_AT_DATABASE}")
        })
    }

    /// Fails if the archive is in a database. `command` is the name of a command that works only on
    /// files.
    pub(crate) fn must_be_files(&self, command: &str) -> anyhow::Result<()> {
        if self.database.is_none() {
            return Ok(());
        }
        let advice = match command {
            "check" => {
                ". PostgreSQL's pg_amcheck checks its tables and indices, data_checksums its pages; \
                 `hark export` reads every record"
            }
            _ => "",
        };
        bail!(
            "`hark {command}` is for archives in files; this one is in a database, which maintains \
             its files itself{advice}"
        )
    }

    /// Fails, with advice, if the directory contains a backup or an incomplete archive.
    fn must_be_an_archive(&self) -> anyhow::Result<()> {
        let data = self.data.display();
        if BackupCatalog::path(&self.data).exists() {
            bail!(
                "{data} holds a backup, which is not written or served; restore it to another \
                 directory: hark --data NEW restore {data}"
            );
        }
        for Making { command, unfinished, finished } in [RESTORE, SALVAGE] {
            if [unfinished, finished].iter().any(|part| self.data.join(part).exists()) {
                bail!(
                    "a {command} into {data} was interrupted; run `hark {command}` again to finish it"
                );
            }
        }
        Ok(())
    }

    /// Fails, with advice, if the archive does not exist.
    pub(crate) fn must_exist(&self) -> anyhow::Result<()> {
        if self.database.is_none() {
            self.must_be_an_archive()?;
        }
        if self.exists() {
            return Ok(());
        }
        let looked = std::fs::metadata(self.shelf());
        if looked.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            bail!("{}", owner::denied(&self.shelf()));
        }
        let (data, records) = (self.data.display(), self.network.records());
        if self.is_begun() {
            bail!(
                "the archive in {data} has no {records}: nothing of the network {} was ever kept in it",
                self.network.name()
            );
        }
        bail!(
            "there is no archive in {data}; name the directory of one (--data), or begin one with \
             `hark serve` or `hark import`"
        )
    }

    /// Opens the archive for reading, also beside a running server.
    pub(crate) fn read(&self) -> anyhow::Result<Arc<dyn Store>> {
        self.must_exist()?;
        if let Some(url) = &self.database {
            return Ok(Arc::new(self.postgres(url, false)?));
        }
        let shelf = self.shelf();
        let store = EmbeddedStore::open_read_only(&shelf, self.options()).map_err(|error| {
            self.not_opened(error, |shelf| {
                format!(
                    "the archive in {shelf} could not be opened for reading; nothing was changed. \
                     `hark check` says what is wrong with it"
                )
            })
        })?;
        Ok(Arc::new(store))
    }

    /// Takes the lock and opens the shelf for writing.
    pub(crate) fn own(&self) -> anyhow::Result<OwnedStore> {
        let lock = self.lock()?;
        Ok(OwnedStore { store: Arc::new(self.open_store()?), _lock: lock })
    }

    /// Opens the store for writing. The caller must hold the archive's lock.
    pub(crate) fn open_store(&self) -> anyhow::Result<EmbeddedStore> {
        let shelf = self.shelf();
        EmbeddedStore::open(&shelf, self.network.rules(), self.options()).map_err(|error| {
            let advice = if error.is_damaged_log() {
                ". Restore the file from a backup, or bring all that is whole into a new archive with \
                 `hark salvage`"
            } else if error.is_unexplained() {
                ". `hark check` says what is wrong with it, `hark rebuild` rebuilds its indices"
            } else {
                ""
            };
            self.not_opened(error, |shelf| {
                format!("the archive in {shelf} could not be opened; nothing was changed{advice}")
            })
        })
    }

    /// Adds to `error` why the shelf could not be opened. A full disk and files of another user
    /// have messages of their own. `words` returns the message for all other faults.
    pub(crate) fn not_opened(
        &self,
        error: ShelfOpenError,
        words: impl Fn(std::path::Display<'_>) -> String,
    ) -> anyhow::Error {
        let shelf = self.shelf();
        let words = if error.is_disk_full() {
            disk_is_full(&shelf)
        } else if error.is_denied() {
            owner::denied(&shelf)
        } else {
            words(shelf.display())
        };
        anyhow::Error::new(error).context(words)
    }

    /// Opens the shelf for reading only after opening it for writing has failed with `error`.
    /// Returns `error` unless the cause is a full disk. The returned store refuses writes with the
    /// reason.
    pub(crate) fn open_refusing(&self, error: anyhow::Error) -> anyhow::Result<EmbeddedStore> {
        match error.downcast_ref::<ShelfOpenError>() {
            Some(cause) if cause.is_disk_full() => {}
            _ => return Err(error),
        }
        let shelf = self.shelf();
        let why = format!(
            "the disk is full, so the archive was opened for reading only; make room on the disk of \
             {}, then start Hark again",
            shelf.display()
        );
        let store = EmbeddedStore::open_refusing(&shelf, self.options(), why);
        store.with_context(|| disk_is_full(&shelf))
    }

    /// Returns the location of another archive, with the same settings.
    pub(crate) fn other(&self, address: &str) -> anyhow::Result<Self> {
        let (data, database) = if address.contains("://") || is_database(address) {
            (self.data.clone(), database(address)?)
        } else {
            (address.into(), None)
        };
        let mut config = self.config.clone();
        // The read replica belongs to this archive, not to the other.
        config.postgres.read_url = None;
        let (network, reserve) = (self.network, reserve(&data));
        Ok(Self { network, data, database, config, is_named: true, reserve })
    }

    /// Returns a function that opens another archive's shelf as this shelf's mirror. The function
    /// can be retried until the other archive is available. `lock` is that archive's lock,
    /// which its shelves share.
    pub(crate) fn mirror(
        &self,
        address: &str,
        lock: &MirrorLock,
    ) -> anyhow::Result<hark_archive::mirror::StoreOpener> {
        let location = self.other(address)?;
        if location.data == self.data && location.database == self.database {
            bail!("[mirror] `store` names the archive itself; name another one");
        }
        if let Some(url) = location.database.clone() {
            return Ok(Box::new(move || {
                let store = location.postgres(&url, true).map_err(|error| format!("{error:#}"))?;
                Ok(Arc::new(store) as Arc<dyn Store>)
            }));
        }
        let lock = Arc::clone(lock);
        Ok(Box::new(move || {
            let mut lock = lock.lock();
            if lock.is_none() {
                *lock = Some(location.lock().map_err(|error| format!("{error:#}"))?);
            }
            let store = location.open_store().map_err(|error| format!("{error:#}"))?;
            Ok(Arc::new(store) as Arc<dyn Store>)
        }))
    }

    /// Takes over the archive's lock from the running server, to serve these shelves in its stead.
    /// If this process fails to start serving, the old server continues. If no server runs, the
    /// lock is acquired like in [`ArchiveLocation::lock`].
    pub(crate) fn take_over(
        &self,
        shelves: &[&str],
    ) -> anyhow::Result<(DirectoryLock, Option<Takeover>)> {
        let mut taking = match Takeover::ask(&self.control_socket(), shelves, &mut |line| {
            tracing::info!("the running server: {line}");
        }) {
            Ok(taking) => taking,
            Err(ControlError::Absent) => {
                tracing::info!(
                    "no server runs on this archive, so there is none to take over from"
                );
                return Ok((self.lock()?, None));
            }
            Err(error) => {
                return Err(anyhow::Error::new(error)
                    .context("the running server was not taken over, and continues"));
            }
        };
        let lock = taking.lock().context("the running server handed no lock over")?;
        let lock = DirectoryLock::inherit(lock, &self.data, taking.turn())
            .context("the running server was not taken over, and continues")?;
        Ok((lock, Some(taking)))
    }

    /// Opens a shelf that the old server has released to this process in a takeover.
    pub(crate) fn open_released(&self) -> anyhow::Result<EmbeddedStore> {
        let shelf = self.shelf();
        let store = EmbeddedStore::open_released(&shelf, self.network.rules(), self.options());
        store.map_err(|error| {
            self.not_opened(error, |shelf| {
                format!(
                    "the archive in {shelf} could not be opened beside the running server, which \
                     continues. `hark check` says what is wrong with the archive"
                )
            })
        })
    }

    /// Acquires the archive's lock, which only one process can hold.
    pub(crate) fn lock(&self) -> anyhow::Result<DirectoryLock> {
        self.must_be_an_archive()?;
        make_dir(&RealDisk, &self.data).with_context(|| {
            format!(
                "the archive's directory {} could not be made; name a writable one with --data",
                self.data.display()
            )
        })?;
        let mut lock = DirectoryLock::acquire(&self.data);
        if lock.as_ref().is_err_and(LockError::is_disk_full) && self.reserve.give_up()? {
            lock = DirectoryLock::acquire(&self.data);
        }
        lock.map_err(|error| match error {
            LockError::Held { pid, .. } => ArchiveHeld { pid, data: self.data.clone() }.into(),
            other @ LockError::Io { .. } if other.is_disk_full() => {
                anyhow::Error::new(other).context(disk_is_full(&self.data))
            }
            other @ LockError::Io { .. } if other.is_denied() => {
                anyhow::Error::new(other).context(owner::denied(&self.data))
            }
            other @ LockError::Io { .. } => anyhow::Error::new(other).context(format!(
                "the archive in {} could not be locked; its directory must be writable, or name \
                 another with --data",
                self.data.display()
            )),
        })
    }

    /// Returns a writer: the running server if a server holds the archive, otherwise this process.
    /// An archive in a database is always written by this process.
    pub(crate) fn write(&self) -> anyhow::Result<WriterHandle> {
        if let Some(url) = &self.database {
            return Ok(WriterHandle::Database(Arc::new(self.postgres(url, true)?)));
        }
        if let Some(client) = self.server()? {
            return Ok(WriterHandle::Server(client));
        }
        if !self.is_begun() {
            self.must_be_meant(&SERVICES)?;
            print::note!("hark: there was no archive in {}; one is begun", self.data.display());
        }
        self.own().map(WriterHandle::Own)
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
             Name the service's with --data {service}, or begin another with --data ./{data}"
        ))
        .into())
    }

    /// Like [`ArchiveLocation::write`], for records from another store.
    pub(crate) fn bring(&self) -> anyhow::Result<HistoryWriter> {
        Ok(HistoryWriter {
            writer: self.write()?,
            policy: self.shelf_config().retention,
            state: RetentionState::default(),
            records: self.network.records(),
            held: 0,
        })
    }

    /// Connects to the running server of this archive, for this shelf. Returns `None` if no server
    /// runs, or if the archive is in a database, since this process writes to a database itself.
    pub(crate) fn server(&self) -> anyhow::Result<Option<ControlClient>> {
        if self.database.is_some() {
            return Ok(None);
        }
        self.control()
    }

    /// Connects to the server that uses this data directory, even if its archive is in a database.
    /// Returns `None` if no server runs.
    pub(crate) fn control(&self) -> anyhow::Result<Option<ControlClient>> {
        connect(&self.control_socket(), self.network.name())
    }
}

/// Returns the bounds of the files of a shelf in which `retention` is in force.
pub(crate) fn space_bounds(config: &Config, retention: &RetentionPolicy) -> SpaceBounds {
    let bytes_max = retention.bytes_max;
    // Disk space is freed in units of whole logs, so the archive may exceed its bound by the size
    // of a log.
    let share = bytes_max.map_or(u64::MAX, |bytes| (bytes / LOGS_MIN).max(LOG_BYTES_MIN));
    SpaceBounds {
        log_bytes_max: config.log_bytes_max.min(share),
        // Space occupied by deleted records is not available to other records.
        dead_bytes_max: bytes_max.map_or(u64::MAX, |bytes| bytes / DEAD_SHARE),
        free_bytes_min: retention.free_bytes_min.unwrap_or(0),
        erase_within: config.erase_within.0.map(Duration::from_secs),
    }
}

/// Another process holds the archive's lock.
#[derive(Debug)]
pub(crate) struct ArchiveHeld {
    pub(crate) pid: String,
    data: PathBuf,
}

impl std::error::Error for ArchiveHeld {}

impl std::fmt::Display for ArchiveHeld {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pid, data) = (&self.pid, self.data.display());
        write!(
            out,
            "another process ({pid}) holds the archive in {data}; stop it first, let `hark serve \
             --takeover` take its place, or name another directory with --data"
        )?;
        // The server's socket is tried before the lock, so a server with a socket would have been
        // found.
        let socket = self.data.join(CONTROL_SOCKET);
        if !socket.exists() {
            write!(
                out,
                ". If it is a server, no command reaches it, as {} is not there: its log says why",
                socket.display()
            )?;
        }
        Ok(())
    }
}

/// Returns the error message for a disk so full that nothing can be written.
fn disk_is_full(path: &Path) -> String {
    format!(
        "the disk is full; nothing was changed, and the archive is whole. Make room on the disk of \
         {}, then run this again",
        path.display()
    )
}

fn connect(socket: &Path, shelf: &str) -> anyhow::Result<Option<ControlClient>> {
    match ControlClient::connect(socket, shelf) {
        Ok(client) => Ok(Some(client)),
        Err(ControlError::Absent) => Ok(None),
        Err(ControlError::Broken(error)) if error.kind() == ErrorKind::PermissionDenied => {
            Err(anyhow::Error::new(error).context(owner::denied(socket)))
        }
        Err(error) => Err(anyhow::Error::new(error).context(format!(
            "a server runs on this archive, but does not answer on {}; nothing was written. Try \
             again, or stop the server first",
            socket.display()
        ))),
    }
}

/// A store opened for writing, and the archive's lock, which is held while the store is open.
pub(crate) struct OwnedStore {
    pub(crate) store: Arc<EmbeddedStore>,
    // Dropped after the store.
    _lock: DirectoryLock,
}

/// The lock of a mirror. The lock is held between attempts to open the mirror, and outlives every
/// store opened under this lock.
pub(crate) type MirrorLock = Arc<Mutex<Option<DirectoryLock>>>;

/// The writer of an archive: this process, the running server, or a database.
pub(crate) enum WriterHandle {
    Own(OwnedStore),
    Server(ControlClient),
    /// A database, to which several processes may write.
    Database(Arc<PostgresStore>),
}

impl WriterHandle {
    /// Returns a store for reading the archive of `location`, which this handle writes. This is the
    /// writer's own store or, beside a running server, a store opened on the same files.
    pub(crate) fn read(&self, location: &ArchiveLocation) -> anyhow::Result<Arc<dyn Store>> {
        match self {
            Self::Own(owned) => Ok(Arc::clone(&owned.store) as _),
            Self::Server(_) => location.read(),
            Self::Database(store) => Ok(Arc::clone(store) as _),
        }
    }

    /// Returns the store if this process writes to it; `None` if a running server writes.
    pub(crate) fn own_store(&self) -> Option<&dyn Store> {
        match self {
            Self::Own(owned) => Some(&*owned.store),
            Self::Database(store) => Some(&**store),
            Self::Server(_) => None,
        }
    }

    /// Puts records. Returns the outcome of each record, or the server's reason for a failure. The
    /// records are durable on return.
    pub(crate) fn put(
        &mut self,
        records: Vec<Box<[u8]>>,
    ) -> anyhow::Result<Vec<Result<Outcome, String>>> {
        match self {
            Self::Own(owned) => put(&*owned.store, records),
            Self::Database(store) => put(&**store, records),
            Self::Server(client) => {
                let records: Vec<Vec<u8>> = records.into_iter().map(Vec::from).collect();
                client.put_many(&records).context(SERVER_IS_GONE)
            }
        }
    }

    /// Deletes the records with these ids, and returns how many existed. The deletions are durable
    /// on return.
    pub(crate) fn erase(&mut self, ids: &[hark_archive::Id]) -> anyhow::Result<u64> {
        match self {
            Self::Own(owned) => erase(&*owned.store, ids),
            Self::Database(store) => erase(&**store, ids),
            Self::Server(client) => client.erase(ids).map_err(|error| {
                let words = match error {
                    ControlError::Refused(_) => {
                        "not all was deleted; run the command again once the server does it"
                    }
                    _ => "the server stopped answering; run the command again",
                };
                anyhow::Error::new(error).context(words)
            }),
        }
    }
}

/// The writer of records from another store: an import, an adoption, or a copy. Retention does not
/// delete records older than its rules allow until the operator decides.
pub(crate) struct HistoryWriter {
    writer: WriterHandle,
    policy: RetentionPolicy,
    state: RetentionState,
    /// The network's word for its records.
    records: &'static str,
    /// Number of stored records that retention would delete at once.
    held: u64,
}

impl Deref for HistoryWriter {
    type Target = WriterHandle;

    fn deref(&self) -> &WriterHandle {
        &self.writer
    }
}

impl HistoryWriter {
    /// Like [`WriterHandle::put`].
    pub(crate) fn put(
        &mut self,
        records: Vec<Box<[u8]>>,
    ) -> anyhow::Result<Vec<Result<Outcome, String>>> {
        let (policy, clock) = (&self.policy, Clock::System);
        let mut is_old = Vec::with_capacity(records.len());
        for record in &records {
            let record = Record::new(record).context("a record that was made is none")?;
            is_old.push(policy.would_delete(&record, clock.now_s()).is_some());
            if let Some(store) = self.writer.own_store() {
                self.state
                    .bring(policy, store, &clock, &record)
                    .context("the archive could not be written to")?;
            }
        }
        let outcomes = match &mut self.writer {
            WriterHandle::Server(client) => client.bring_many(&records).context(SERVER_IS_GONE)?,
            writer => writer.put(records)?,
        };
        let stored =
            |outcome: &Result<Outcome, String>| matches!(outcome, Ok(Outcome::Stored { .. }));
        let held = outcomes.iter().zip(is_old).filter(|(outcome, old)| *old && stored(outcome));
        self.held += held.count() as u64;
        Ok(outcomes)
    }

    /// Like [`WriterHandle::erase`].
    pub(crate) fn erase(&mut self, ids: &[hark_archive::Id]) -> anyhow::Result<u64> {
        self.writer.erase(ids)
    }

    /// Reports the effect of retention on the written records, if any.
    pub(crate) fn tell_held(&self) {
        let Self { held, records, .. } = self;
        if *held == 0 {
            return;
        }
        let held = print::number(*held);
        if self.policy.delete_brought {
            print::note!(
                "hark: {held} of the {records} are older than retention allows, and a server deletes \
                 them, as retention.delete_brought is true"
            );
        } else {
            print::note!(
                "hark: {held} of the {records} are older than retention allows. They are kept until you \
                 decide: set retention.delete_brought to true to delete them, or let retention allow \
                 their age to keep them"
            );
        }
    }
}

fn put(store: &dyn Store, records: Vec<Box<[u8]>>) -> anyhow::Result<Vec<Result<Outcome, String>>> {
    let writes: Vec<Write> = records.into_iter().map(Write::Put).collect();
    let committed = store
        .commit(&writes)
        .context("the archive could not be written to; what was reported as stored is safe")?;
    Ok(committed.outcomes.into_iter().map(Ok).collect())
}

fn erase(store: &dyn Store, ids: &[hark_archive::Id]) -> anyhow::Result<u64> {
    let query = Query { ids: Some(ids.to_vec()), ..Query::default() };
    let committed = store
        .commit(&[Write::Erase(Box::new(query))])
        .context("the archive could not be written to; run the command again")?;
    match committed.outcomes.first() {
        Some(Outcome::Erased(count)) => Ok(*count),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use hark_testkit::disk::scratch;

    use super::*;

    #[test]
    fn an_archive_without_a_name_is_not_begun_beside_that_of_a_service() {
        let folder = scratch("service");
        std::fs::create_dir(&folder).unwrap();
        let service = folder.to_str().unwrap();
        let missing = format!("{service}/missing");
        let missing = missing.as_str();
        let location = |is_named| ArchiveLocation {
            network: setups()[0].network,
            data: "data".into(),
            database: None,
            config: Config::default(),
            is_named,
            reserve: reserve(Path::new("data")),
        };
        let refusal = location(false).must_be_meant(&[missing, service]).unwrap_err();
        assert!(refusal.is::<WrongUse>());
        let said = refusal.to_string();
        for part in [
            format!("a service has one in {service}. "),
            format!("with --data {service}, or begin another with --data ./data"),
        ] {
            assert!(said.contains(&part), "{part}: {said}");
        }
        assert!(location(false).must_be_meant(&[missing]).is_ok());
        assert!(location(true).must_be_meant(&[service]).is_ok());
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn no_archive_is_moved_into_place_through_a_symbolic_link() {
        let folder = scratch("finished");
        let (data, elsewhere) = (folder.join("data"), folder.join("elsewhere"));
        for dir in [&data, &elsewhere] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(elsewhere.join("file"), "").unwrap();
        let finished = data.join(RESTORE.finished);
        for name in [RESTORE.unfinished, RESTORE.finished] {
            symlink(&elsewhere, data.join(name)).unwrap();
            let refusal = format!("{:#}", RESTORE.finish(&data).unwrap_err());
            assert!(refusal.contains("it is no directory, but a link"), "{name}: {refusal}");
            assert!(elsewhere.join("file").exists() && !data.join("file").exists(), "{name}");
            // The link has the second name in either case.
            std::fs::remove_file(&finished).unwrap();
        }
        std::fs::rename(&elsewhere, &finished).unwrap();
        RESTORE.finish(&data).unwrap();
        assert!(data.join("file").exists() && !finished.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
