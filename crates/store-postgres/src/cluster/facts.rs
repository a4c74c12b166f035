//! The settings and the state of a node.

use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Settings and state of a node.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Version of PostgreSQL as the server writes it: `15.4 (Debian …)`.
    pub version: String,
    /// Major version of PostgreSQL.
    pub major: i32,
    /// Version of the extension in the database. `None` if the extension is not in the database.
    pub citus: Option<String>,
    /// Version of the extension that the server would install. `None` if the files of the extension
    /// are missing.
    pub citus_available: Option<String>,
    /// Whether the server has loaded the library of Citus.
    pub is_loaded: bool,
    /// Whether the node is a standby that was not promoted.
    pub in_recovery: bool,
    /// The setting `wal_level`: `replica`, `logical` or `minimal`.
    pub wal_level: String,
    /// Maximum number of prepared transactions. Each commit over several nodes needs a prepared
    /// transaction until the commit is done.
    pub prepared_max: i64,
    /// Maximum number of replication slots, and number of existing slots.
    pub slots: (i64, i64),
    /// Maximum number of connections for standbys and subscriptions, and number of existing
    /// connections.
    pub senders: (i64, i64),
    /// Maximum number of workers that apply the changes of other nodes.
    pub apply_workers_max: i64,
}

impl NodeFacts {
    /// Reads the settings and the state of a node.
    pub(crate) fn read(session: &mut DatabaseSession) -> Result<Self, StatementError> {
        let rows = session.query_once(
            "SELECT current_setting('server_version'), \
                    current_setting('server_version_num')::int / 10000, \
                    (SELECT extversion FROM pg_extension WHERE extname = 'citus'), \
                    (SELECT default_version FROM pg_available_extensions WHERE name = 'citus'), \
                    current_setting('citus.node_connection_timeout', true) IS NOT NULL, \
                    pg_is_in_recovery(), \
                    current_setting('wal_level'), \
                    current_setting('max_prepared_transactions')::bigint, \
                    current_setting('max_replication_slots')::bigint, \
                    (SELECT count(*) FROM pg_replication_slots), \
                    current_setting('max_wal_senders')::bigint, \
                    (SELECT count(*) FROM pg_stat_replication), \
                    current_setting('max_logical_replication_workers')::bigint",
            &[],
        )?;
        let row = rows.first().ok_or_else(|| StatementError::Away("no row came".into()))?;
        Ok(Self {
            version: row.get(0),
            major: row.get(1),
            citus: row.get(2),
            citus_available: row.get(3),
            is_loaded: row.get(4),
            in_recovery: row.get(5),
            wal_level: row.get(6),
            prepared_max: row.get(7),
            slots: (row.get(8), row.get(9)),
            senders: (row.get(10), row.get(11)),
            apply_workers_max: row.get(12),
        })
    }

    /// Version of PostgreSQL without the addition of the packager.
    pub fn short_version(&self) -> &str {
        self.version.split_whitespace().next().unwrap_or_default()
    }
}

/// Returns the free bytes of the file system that has a node's data. Citus reports this number.
pub(crate) fn free_bytes(session: &mut DatabaseSession) -> Result<u64, StatementError> {
    let rows = session
        .query_once("SELECT available_disk_size FROM citus_local_disk_space_stats()", &[])?;
    Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0)).max(0).unsigned_abs())
}
