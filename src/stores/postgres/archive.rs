//! An archive in a PostgreSQL database: the ways to open its shelves.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use hark_archive::Store;
use hark_server::StoreLocation;
use hark_store_embedded::backup::PutSource;
use hark_store_postgres::{
    DatabaseOpenError, PostgresOptions, PostgresStore, SnapshotError, migrations, shown,
};

use super::backup::put_source;
use super::check::check;
use super::rebuild::rebuild;
use crate::stores::{
    ArchiveCheck, ArchiveRebuild, ArchiveStore, CheckMeter, ServedShelf, ServedStore, ShelfPlace,
    StoreAddress, StoreFacts,
};

/// Advice in errors about a database that could not be reached.
pub(crate) const LOOK_AT_DATABASE: &str =
    "check the address, and that the database runs and accepts this user";

/// An archive in a database. Several processes may write to a database.
pub(crate) struct DatabaseArchive {
    pub(crate) url: String,
}

impl DatabaseArchive {
    /// The options with which a shelf is opened.
    pub(crate) fn options(place: &ShelfPlace<'_>) -> PostgresOptions {
        let (config, settings) = (&place.config.postgres, place.settings());
        let nature = place.network.nature();
        PostgresOptions {
            read_url: config.read_url.as_ref().map(StoreAddress::secret).map(str::to_owned),
            pool_max: config.connections_max,
            statement_timeout: config.statement_timeout,
            part_s: settings.part_days.saturating_mul(86_400),
            shards: config.shards,
            units_per_s: nature.units_per_s,
            one_kind: nature.one_kind,
            one_label: nature.one_label,
            common_labels: nature.common_labels,
            listed_labels: nature.listed_labels,
            texts: settings.texts,
            ..PostgresOptions::default()
        }
    }

    /// Opens a shelf, with or without applying missing migrations.
    pub(crate) fn connect(
        &self,
        place: &ShelfPlace<'_>,
        migrate: bool,
    ) -> anyhow::Result<PostgresStore> {
        let options = PostgresOptions { migrate, ..Self::options(place) };
        let (shelf, rules) = (place.network.name(), place.network.rules());
        PostgresStore::open(&self.url, shelf, rules, &options).with_context(|| {
            format!("the archive in the database could not be opened; {LOOK_AT_DATABASE}")
        })
    }

    /// Opens a shelf to be served.
    fn open_served(&self, place: &ShelfPlace<'_>) -> anyhow::Result<ServedShelf> {
        let store = self.connect(place, place.config.postgres.migrate)?;
        let settings = place.settings();
        let (shelf, database) = (place.network.name(), store.database());
        if store.is_cluster() && settings.texts.is_some() {
            bail!(
                "full-text search works on archives in files and on one PostgreSQL server, and the \
                 database is a Citus cluster; set enabled = false in [search]"
            );
        }
        tracing::info!(shelf, database, "the archive is in a database");
        let is_bounded = settings.retention.bytes_max.is_some();
        // `None` means that the database does not index these texts yet, so this server will index
        // the texts.
        if settings.texts.is_some()
            && is_bounded
            && store.word_progress()?.is_none_or(|at| at.indexed < at.newest)
        {
            tracing::warn!(
                shelf,
                "words are being indexed, and count towards bytes_max of retention: if the archive is \
                 near that bound, its oldest records are deleted; raise it to keep them"
            );
        }
        let connections = place.config.postgres.connections_max;
        let at = if store.is_near() {
            StoreLocation::Machine(connections)
        } else {
            StoreLocation::Elsewhere(connections)
        };
        let store = Arc::new(store);
        Ok(ServedShelf { store, at, refuses_writes: false, compact: None, handover: None })
    }
}

impl ArchiveStore for DatabaseArchive {
    fn facts(&self) -> StoreFacts {
        StoreFacts {
            name: "postgres",
            is_in_directory: false,
            is_remote: true,
            // The number is large, because transactions take longer to begin and to end than
            // batches of a log.
            batch_records: 4_096,
        }
    }

    fn shown(&self, _: &ShelfPlace<'_>) -> String {
        shown(&self.url).into_owned()
    }

    fn refuses(&self, command: &str) -> String {
        format!(
            "`hark {command}` is for archives in files; this one is in a database, which maintains \
             its files itself"
        )
    }

    fn open(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Arc<dyn Store>> {
        Ok(Arc::new(self.connect(shelf, true)?))
    }

    fn open_read_only(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Arc<dyn Store>> {
        Ok(Arc::new(self.connect(shelf, false)?))
    }

    fn check(&self, shelf: &ShelfPlace<'_>, steps: CheckMeter<'_>) -> anyhow::Result<ArchiveCheck> {
        check(&self.url, shelf, &Self::options(shelf), steps).with_context(|| {
            format!(
                "the archive in the database could not be checked to its end; nothing was changed; \
                 {LOOK_AT_DATABASE}"
            )
        })
    }

    fn put_source(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Option<Box<dyn PutSource>>> {
        match put_source(&self.url, shelf.network.name(), &Self::options(shelf)) {
            Err(SnapshotError::Cluster) => bail!(
                "`hark backup` works on archives in files and on one PostgreSQL server, and the \
                 database is a Citus cluster, whose nodes have no common snapshot. Copy the archive \
                 into a directory with `hark copy --from postgres://… --to DIR --delete`, and back that \
                 up with `hark --data DIR backup`"
            ),
            opened => opened.with_context(|| {
                format!("the archive in the database could not be opened; {LOOK_AT_DATABASE}")
            }),
        }
    }

    fn rebuild(
        &self,
        shelf: &ShelfPlace<'_>,
        steps: CheckMeter<'_>,
    ) -> anyhow::Result<ArchiveRebuild> {
        rebuild(&self.url, shelf, &Self::options(shelf), steps)
    }

    fn serve(self: Arc<Self>, takeover: Option<&[&str]>) -> anyhow::Result<ServedStore> {
        if takeover.is_some() {
            bail!(
                "there is nothing to take over from: several servers can work on one database. Start \
                 this one beside the other, on another address, and stop that one"
            );
        }
        let open = Box::new(move |place: &ShelfPlace<'_>| self.open_served(place));
        Ok(ServedStore { lock: None, taking: None, open })
    }

    fn lacks(&self, shelf: &ShelfPlace<'_>, _: &anyhow::Error) -> bool {
        // The shelf is lacking only if no migration was applied. If just the newest migrations are
        // missing, the shelf exists, and may have entries.
        migrations(&self.url, shelf.network.name(), &Self::options(shelf), false)
            .is_ok_and(|all| all.iter().all(|one| one.applied.is_none()))
    }

    fn is_away(&self, error: &anyhow::Error) -> bool {
        matches!(error.downcast_ref(), Some(DatabaseOpenError::Away(_)))
    }
}
