//! The state of discovery: the known nodes, the lists in the DNS, and this node's own record.

use libp2p::Multiaddr;
use parking_lot::Mutex;

use super::book::AddressBook;
use super::list::ListFault;
use super::own::OwnRecord;
use super::record::NodeRecord;
use super::sightings::Sightings;

/// The state of a list of nodes.
#[derive(Clone, Debug)]
pub(in crate::waku) struct ListStatus {
    /// The URL of the list.
    pub(in crate::waku) url: String,
    /// Number of records that the last attempt has found.
    pub(in crate::waku) records: usize,
    /// Whether an attempt has ended.
    pub(in crate::waku) is_read: bool,
    /// The first fault of the last attempt.
    pub(in crate::waku) fault: Option<ListFault>,
}

/// The state of discovery, which the network task, the finder and the doors share.
pub(in crate::waku) struct NodeDirectory {
    pub(in crate::waku) book: Mutex<AddressBook>,
    pub(in crate::waku) lists: Mutex<Vec<ListStatus>>,
    pub(in crate::waku) sightings: Mutex<Sightings>,
    own: Mutex<SignedOwnRecord>,
    /// The addresses that this node is configured to listen on.
    listen: Vec<Multiaddr>,
}

struct SignedOwnRecord {
    contents: OwnRecord,
    /// The addresses of `record`.
    addrs: Vec<Multiaddr>,
    record: Option<NodeRecord>,
}

impl NodeDirectory {
    pub(in crate::waku::p2p) fn new(contents: OwnRecord, listen: Vec<Multiaddr>) -> Self {
        let own = SignedOwnRecord { contents, addrs: Vec::new(), record: None };
        Self {
            book: Mutex::default(),
            lists: Mutex::default(),
            sightings: Mutex::default(),
            own: Mutex::new(own),
            listen,
        }
    }

    /// Sets the port of discv5 in this node's record.
    pub(super) fn serve_udp(&self, port: Option<u16>) {
        let mut own = self.own.lock();
        own.contents.udp = port;
        own.record = None;
    }

    /// Returns the node's secret key.
    pub(super) fn secret_key(&self) -> [u8; 32] {
        self.own.lock().contents.secret_key()
    }

    /// Returns the record of this node, which is reached at these addresses. The record is signed
    /// anew when the addresses have changed.
    pub(in crate::waku::p2p) fn own_record(
        &self,
        mut reached: Vec<Multiaddr>,
    ) -> Option<NodeRecord> {
        let confirmed = self.sightings.lock().confirmed_address(&self.listen);
        if let Some(confirmed) = confirmed.filter(|addr| !reached.contains(addr)) {
            reached.push(confirmed);
        }
        let mut own = self.own.lock();
        if own.record.is_none() || own.addrs != reached {
            own.record = own.contents.sign(&reached);
            own.addrs = reached;
        }
        own.record.clone()
    }
}
