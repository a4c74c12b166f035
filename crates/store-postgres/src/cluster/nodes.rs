//! The nodes of a cluster: the rows of Citus' table `pg_dist_node`.

use std::fmt;
use std::str::FromStr;

use tokio_postgres::Row;

/// PostgreSQL's default port, for addresses without a port.
const PORT: u16 = 5432;

/// Host and port at which other nodes reach a node. Citus distinguishes nodes by this text alone,
/// so it treats `localhost` and `127.0.0.1` as two nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAddress {
    /// Name or IP address, without brackets.
    pub host: String,
    /// Port of PostgreSQL.
    pub port: u16,
}

/// Why a text is not the address of a node.
#[derive(Clone, Debug, thiserror::Error)]
#[error("a node is HOST or HOST:PORT, like db1.example:5432 or [2001:db8::1]:5432")]
pub struct NodeAddressError;

impl FromStr for NodeAddress {
    type Err = NodeAddressError;

    fn from_str(text: &str) -> Result<Self, NodeAddressError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(NodeAddressError)?;
                let port = match rest {
                    "" => None,
                    rest => Some(rest.strip_prefix(':').ok_or(NodeAddressError)?),
                };
                (host, port)
            }
            // A text with more than one colon is an IPv6 address without a port.
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(NodeAddressError);
        }
        let port = match port {
            None => PORT,
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or(NodeAddressError)?,
        };
        Ok(Self { host: host.into(), port })
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl NodeAddress {
    /// Makes an address from Citus' columns. An out-of-range port becomes 0, to which no connection
    /// is possible.
    pub(crate) fn of_columns(host: String, port: i32) -> Self {
        Self { host, port: u16::try_from(port).unwrap_or(0) }
    }

    /// The port in the type of Citus' functions.
    pub(crate) fn port(&self) -> i32 {
        self.port.into()
    }
}

/// The role of a node in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// Plans queries and has the cluster's tables. The coordinator may also have shards.
    Coordinator,
    /// Has shards.
    Worker,
    /// A copy of another node, registered in the cluster (Citus' secondaries and clones).
    Standby,
}

impl NodeRole {
    /// The role's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Worker => "worker",
            Self::Standby => "standby",
        }
    }
}

/// A node of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterNode {
    /// Citus' number for the node. If a standby takes the node's place, it gets this number.
    pub id: i32,
    /// Citus' number for the group: the node and its standbys. Citus assigns shards to groups.
    pub group: i32,
    /// Host and port.
    pub address: NodeAddress,
    /// The role of the node.
    pub role: NodeRole,
    /// Whether Citus sends queries to the node.
    pub is_active: bool,
    /// Whether new shards may be placed on the node; false while the node is drained.
    pub may_have_shards: bool,
    /// Whether the node's copy of the cluster's tables is up to date.
    pub is_synced: bool,
}

impl ClusterNode {
    /// Reads all nodes, the coordinator first.
    pub(crate) const QUERY: &'static str = "\
        SELECT nodeid, groupid, nodename, nodeport, noderole::text, isactive, shouldhaveshards, \
               metadatasynced, nodeisclone \
        FROM pg_dist_node ORDER BY groupid, noderole, nodeid";

    /// Reads a row of [`Self::QUERY`].
    pub(crate) fn of_row(row: &Row) -> Self {
        let (group, role, is_clone): (i32, String, bool) = (row.get(1), row.get(4), row.get(8));
        let role = match (role.as_str(), group) {
            ("primary", 0) => NodeRole::Coordinator,
            ("primary", _) if !is_clone => NodeRole::Worker,
            _ => NodeRole::Standby,
        };
        Self {
            id: row.get(0),
            group,
            address: NodeAddress::of_columns(row.get(2), row.get(3)),
            role,
            is_active: row.get(5),
            may_have_shards: row.get(6),
            is_synced: row.get::<_, Option<bool>>(7).unwrap_or(false),
        }
    }

    /// Whether the node can have shards: a coordinator or a worker.
    pub fn is_primary(&self) -> bool {
        self.role != NodeRole::Standby
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nodes_are_read_and_written() {
        for (text, host, port) in [
            ("db1", "db1", 5432),
            ("db1.example:5433", "db1.example", 5433),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[2001:db8::1]:5433", "2001:db8::1", 5433),
            ("[::1]", "::1", 5432),
            ("::1", "::1", 5432),
        ] {
            let address: NodeAddress = text.parse().unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port), "{text}");
            assert_eq!(address.to_string().parse::<NodeAddress>().unwrap(), address);
        }
        for wrong in ["", ":5432", "db1:", "db1:0", "db1:70000", "[::1", "[::1]5", "a b", "a'b:1"] {
            assert!(wrong.parse::<NodeAddress>().is_err(), "{wrong}");
        }
    }
}
