//! Remembers the messages that were sent to a peer after comparisons, so that no message is soon
//! sent again over the same connection. A store may report a message as missing although it has
//! received the message, because the store has refused the message or could not write.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use hark_codec::waku::sync::MessagePosition;
use libp2p::PeerId;
use parking_lot::Mutex;

/// Maximum number of remembered messages in total, of some 60 bytes each. Messages beyond this
/// number may be sent again.
const SENT_MAX: usize = 200_000;
/// Maximum number of remembered messages for one peer.
const SENT_TO_PEER_MAX: usize = 50_000;

/// Time after which messages may be sent to a peer again.
const REMEMBERED: Duration = Duration::from_mins(15);

/// The messages that were sent, by peer; see the module.
#[derive(Debug, Default)]
pub(super) struct SentMessages(Mutex<HashMap<PeerId, SentToPeer>>);

/// The messages that were sent to one peer.
#[derive(Debug)]
struct SentToPeer {
    positions: BTreeSet<MessagePosition>,
    /// When the first of these messages could have been sent.
    since: Instant,
}

impl Default for SentToPeer {
    fn default() -> Self {
        Self { positions: BTreeSet::new(), since: Instant::now() }
    }
}

impl SentMessages {
    /// Starts remembering the messages sent to a peer, which has just connected.
    pub(super) fn begin(&self, peer: PeerId) {
        self.0.lock().entry(peer).or_default();
    }

    /// Removes from `lacks` the messages that were already sent to the peer. Forgets messages
    /// before `start`, the beginning of the compared time span, because they are not compared any
    /// more.
    pub(super) fn remove_sent(&self, peer: PeerId, start: u64, lacks: &mut Vec<MessagePosition>) {
        if let Some(sent) = self.0.lock().get_mut(&peer) {
            if sent.since.elapsed() >= REMEMBERED {
                *sent = SentToPeer::default();
            }
            sent.positions = sent.positions.split_off(&(start, [0; 32]));
            lacks.retain(|position| !sent.positions.contains(position));
        }
    }

    /// Remembers messages that were sent to a peer.
    pub(super) fn note(&self, peer: PeerId, positions: impl Iterator<Item = MessagePosition>) {
        let mut peers = self.0.lock();
        let of_all: usize = peers.values().map(|sent| sent.positions.len()).sum();
        // The peer may have disconnected in the meantime.
        let Some(of_peer) = peers.get_mut(&peer) else { return };
        let of_peer = &mut of_peer.positions;
        let room =
            SENT_MAX.saturating_sub(of_all).min(SENT_TO_PEER_MAX.saturating_sub(of_peer.len()));
        of_peer.extend(positions.take(room));
    }

    /// Forgets the messages sent to a peer. To be called when a connection of the peer has ended,
    /// because the last messages may be lost.
    pub(super) fn forget(&self, peer: PeerId, has_gone: bool) {
        let mut peers = self.0.lock();
        if has_gone {
            peers.remove(&peer);
        } else if let Some(sent) = peers.get_mut(&peer) {
            *sent = SentToPeer::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_over_a_connection_does_not_go_over_it_again() {
        let (sent, peer) = (SentMessages::default(), PeerId::random());
        let all: Vec<MessagePosition> = (0..10).map(|at| (at, [7; 32])).collect();
        let lacked = |peer, start| {
            let mut lacks = all.clone();
            sent.remove_sent(peer, start, &mut lacks);
            lacks.len()
        };
        assert_eq!(lacked(peer, 0), 10);
        sent.begin(peer);
        sent.note(peer, all.iter().copied().take(6));
        assert_eq!((lacked(peer, 0), lacked(PeerId::random(), 0)), (4, 10));
        // Messages before the time span are forgotten.
        assert_eq!((lacked(peer, 4), lacked(peer, 0)), (8, 8));
        sent.forget(peer, false);
        assert_eq!(lacked(peer, 0), 10);
        sent.note(peer, all.iter().copied());
        assert_eq!(lacked(peer, 0), 0);
        // A peer that could not store the messages gets them again later.
        sent.0.lock().get_mut(&peer).unwrap().since =
            Instant::now().checked_sub(REMEMBERED).unwrap();
        assert_eq!(lacked(peer, 0), 10);
        sent.forget(peer, true);
        sent.note(peer, all.iter().copied());
        assert_eq!(lacked(peer, 0), 10);
        // The number of messages is bounded, in total and for each peer.
        let many = |peer| sent.note(peer, (0..SENT_MAX as u64).map(|at| (at, [0; 32])));
        for peer in [(); 5].map(|()| PeerId::random()) {
            sent.begin(peer);
            many(peer);
        }
        let remembered: Vec<usize> =
            sent.0.lock().values().map(|sent| sent.positions.len()).collect();
        assert_eq!(remembered.iter().sum::<usize>(), SENT_MAX);
        assert!(remembered.iter().all(|one| *one <= SENT_TO_PEER_MAX));
    }
}
