//! The settings and the state of a node.

use super::watched::NodeSession;
use crate::error::StatementError;

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
    /// Whether every commit on the node waits for standbys that do not stream.
    pub waits_for_none: bool,
    /// The setting `citus.node_conninfo`; `None` if this user may not see the setting.
    pub node_conninfo: Option<String>,
}

/// Whether every commit on this node waits for standbys that do not stream. `ANY 2 (...)` and `2
/// (...)` need two standbys, a plain list needs one standby. The standbys of a node in recovery are
/// not ranked yet, so any standby counts. A user who may not see the standbys gets false.
const WAITS_FOR_NONE: &str = "\
    current_setting('synchronous_standby_names') <> '' \
    AND current_setting('synchronous_commit') NOT IN ('off', 'local') \
    AND (SELECT count(*) FROM pg_stat_replication \
         WHERE sync_state IS NULL OR sync_state IN ('sync', 'quorum') OR pg_is_in_recovery()) \
        < CASE WHEN pg_is_in_recovery() THEN 1 ELSE coalesce(substring( \
              current_setting('synchronous_standby_names') \
              FROM '^\\s*(?:[A-Za-z]+\\s+)?(\\d+)\\s*[(]')::int, 1) END";

impl NodeFacts {
    /// Reads the settings and the state of a node.
    pub(crate) fn read(session: &mut NodeSession) -> Result<Self, StatementError> {
        let text = format!(
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
                    current_setting('max_logical_replication_workers')::bigint, \
                    {WAITS_FOR_NONE}, \
                    (SELECT setting FROM pg_settings WHERE name = 'citus.node_conninfo')"
        );
        let rows = session.query_once(&text, &[])?;
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
            waits_for_none: row.get(13),
            node_conninfo: row.get(14),
        })
    }

    /// Version of PostgreSQL without the addition of the packager.
    pub fn short_version(&self) -> &str {
        self.version.split_whitespace().next().unwrap_or_default()
    }

    /// The time in milliseconds after which the node closes a connection to another node that does
    /// not acknowledge sent data. 0 if the time is not set, and `None` if it is unknown.
    pub fn tcp_user_timeout_ms(&self) -> Option<i64> {
        self.node_conninfo.as_deref().map(tcp_user_timeout_ms)
    }
}

/// Returns the value of `tcp_user_timeout` in the setting `citus.node_conninfo`; 0 if there is
/// none.
fn tcp_user_timeout_ms(conninfo: &str) -> i64 {
    let (_, after) = conninfo.split_once("tcp_user_timeout").unwrap_or_default();
    let value = after.trim_start().strip_prefix('=').unwrap_or_default().trim_start();
    let value = value.strip_prefix('\'').unwrap_or(value);
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    value[..end].parse().unwrap_or(0)
}

/// The file system that has a node's data.
#[derive(Clone, Copy, Debug)]
pub struct NodeDisk {
    /// Free bytes.
    pub free: u64,
    /// All bytes.
    pub size: u64,
}

impl NodeDisk {
    /// Reads the numbers that Citus reports.
    pub(crate) fn read(session: &mut NodeSession) -> Result<Self, StatementError> {
        let rows = session.query_once(
            "SELECT available_disk_size, total_disk_size FROM citus_local_disk_space_stats()",
            &[],
        )?;
        let (free, size) = rows.first().map_or((0, 0), |row| (row.get(0), row.get(1)));
        let bytes = |value: i64| value.max(0).unsigned_abs();
        Ok(Self { free: bytes(free), size: bytes(size) })
    }

    /// Whether less than a hundredth is free.
    pub fn is_full(&self) -> bool {
        self.free < self.size / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_of_connections_between_nodes_is_read() {
        for (conninfo, expected) in [
            ("", 0),
            ("sslmode=disable keepalives_idle=10", 0),
            ("sslmode=disable tcp_user_timeout=8000 keepalives_idle=10", 8_000),
            ("tcp_user_timeout = '5000'", 5_000),
            ("tcp_user_timeout=0", 0),
            ("tcp_user_timeout=x", 0),
        ] {
            assert_eq!(tcp_user_timeout_ms(conninfo), expected, "{conninfo}");
        }
    }
    #[test]
    fn a_disk_is_full_when_a_hundredth_is_free() {
        for (free, size, expected) in [(9, 1_000, true), (10, 1_000, false), (0, 0, false)] {
            assert_eq!(NodeDisk { free, size }.is_full(), expected, "{free} of {size}");
        }
    }
}
