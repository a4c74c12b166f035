//! Finds other nodes, and makes this node known to others.
//!
//! `record` reads the records of nodes (ENR), and `own` signs this node's record. `tree` and `list`
//! fetch lists of nodes from the DNS, and `discv5` queries the table of nodes by UDP. `book` holds
//! the known nodes, and `remembered` keeps a file of the nodes that were reached lately. `finder`
//! dials known nodes, and asks peers for further records by the peer exchange (module `exchange` of
//! the parent). `sightings` collects evidence on whether other nodes can reach this node.

mod add;
mod book;
mod config;
mod directory;
mod discv5;
mod finder;
mod list;
mod own;
mod record;
mod remembered;
mod sightings;
mod tree;

pub use config::DiscoveryConfig;
pub(in crate::waku) use directory::NodeDirectory;
pub(in crate::waku) use finder::run;
pub(super) use own::OwnRecord;
pub(in crate::waku) use record::NodeRecord;
pub(super) use record::RECORD_PREFIX;
pub use record::RecordFault;
pub(super) use tree::LIST_PREFIX;
pub use tree::{NodeListUrl, TreeFault};
