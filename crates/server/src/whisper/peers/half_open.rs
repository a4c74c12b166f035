//! Bounds the connections with unfinished handshakes. Clients that open connections and send
//! nothing cannot exclude other clients: the oldest handshakes are ended to admit new connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::address::ClientAddress;

/// Maximum number of unfinished handshakes.
const HALF_OPEN_MAX: usize = 256;
/// Maximum number of unfinished handshakes of one address.
const OF_ADDRESS_MAX: usize = 32;

/// The connections with unfinished handshakes.
#[derive(Debug, Default)]
pub(super) struct HalfOpenConnections(Mutex<HalfOpenList>);

#[derive(Debug, Default)]
struct HalfOpenList {
    /// The connections in the order of their beginning.
    open: BTreeMap<u64, HalfOpen>,
    next: u64,
}

#[derive(Debug)]
struct HalfOpen {
    of: ClientAddress,
    /// The sender that is dropped to end the connection.
    _keep: oneshot::Sender<()>,
}

/// The permit of a connection during its handshake.
#[derive(Debug)]
pub(super) struct HandshakePermit {
    list: Arc<HalfOpenConnections>,
    number: u64,
    dropped: oneshot::Receiver<()>,
}

impl HalfOpenConnections {
    /// Begins a handshake. If the address already has its maximum number of handshakes, the oldest
    /// handshake of the address ends. Otherwise, if this node has its maximum number, the oldest of
    /// all handshakes ends.
    pub(super) fn begin(self: &Arc<Self>, of: ClientAddress) -> HandshakePermit {
        let (keep, dropped) = oneshot::channel();
        let mut list = self.0.lock();
        let of_address = list.open.iter().filter(|(_, open)| open.of == of);
        let oldest = if of_address.clone().count() >= OF_ADDRESS_MAX {
            of_address.map(|(number, _)| *number).next()
        } else if list.open.len() >= HALF_OPEN_MAX {
            list.open.keys().next().copied()
        } else {
            None
        };
        oldest.and_then(|oldest| list.open.remove(&oldest));
        let number = list.next;
        list.next += 1;
        list.open.insert(number, HalfOpen { of, _keep: keep });
        HandshakePermit { list: Arc::clone(self), number, dropped }
    }
}

impl HandshakePermit {
    /// Returns once this connection must end to admit another connection.
    pub(super) async fn dropped(&mut self) {
        // No message is ever sent. The wait ends once the list drops its end of the channel.
        let _ = (&mut self.dropped).await;
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.list.0.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(number: usize) -> ClientAddress {
        IpAddr::from([10, 0, (number >> 8) as u8, number as u8]).into()
    }

    fn is_dropped(permit: &mut HandshakePermit) -> bool {
        permit.dropped.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn the_oldest_of_an_address_makes_room_and_others_stay() {
        let list = Arc::<HalfOpenConnections>::default();
        let mut other = list.begin(address(1));
        let mut of_one: Vec<_> = (0..OF_ADDRESS_MAX + 3).map(|_| list.begin(address(2))).collect();
        let dropped: Vec<bool> = of_one.iter_mut().map(is_dropped).collect();
        assert!(dropped[..3].iter().all(|dropped| *dropped) && !dropped[3..].contains(&true));
        assert!(!is_dropped(&mut other));
        drop(of_one);
        assert_eq!(list.0.lock().open.len(), 1);
    }

    #[test]
    fn the_oldest_of_all_makes_room() {
        let list = Arc::<HalfOpenConnections>::default();
        let mut all: Vec<_> = (0..HALF_OPEN_MAX + 2).map(|n| list.begin(address(n))).collect();
        assert!(is_dropped(&mut all[0]) && is_dropped(&mut all[1]) && !is_dropped(&mut all[2]));
        // A finished handshake frees its permit.
        drop(all.pop());
        let _more = list.begin(address(9_000));
        assert!(!is_dropped(&mut all[2]));
        assert_eq!(list.0.lock().open.len(), HALF_OPEN_MAX);
    }
}
