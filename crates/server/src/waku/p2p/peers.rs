//! The peers that this node dials.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use libp2p::swarm::DialError;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId, Swarm};
use tokio::sync::oneshot;

use super::addr::id;
use super::behaviour::NodeBehaviour;
use super::error::ConnectFault;

/// The pause after the first failure, and the longest pause. Each failure doubles the pause.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_mins(1);

/// Dials a peer, unless it is connected or being dialled.
fn dial(
    swarm: &mut Swarm<NodeBehaviour>,
    peer: PeerId,
    addrs: Vec<Multiaddr>,
    condition: PeerCondition,
) -> Result<(), DialError> {
    let opts = DialOpts::peer_id(peer).addresses(addrs);
    swarm.dial(opts.condition(condition).build())
}

/// Peers to stay connected to, and peers that callers are waiting for.
#[derive(Default)]
pub(super) struct Peers {
    wanted: HashMap<PeerId, WantedPeer>,
    asked: HashMap<PeerId, Vec<ConnectReply>>,
}

type ConnectReply = oneshot::Sender<Result<(), ConnectFault>>;

struct WantedPeer {
    addrs: Vec<Multiaddr>,
    next: Option<Instant>,
    pause: Duration,
    /// Why the last attempt failed. A reason is logged only when it changes.
    trouble: Option<String>,
}

impl Peers {
    /// Creates the list of the peers at these addresses. Fails with the first address that has no
    /// id.
    pub(super) fn new(addrs: Vec<Multiaddr>) -> Result<Self, Multiaddr> {
        let mut wanted: HashMap<PeerId, WantedPeer> = HashMap::new();
        for addr in addrs {
            let Some(peer) = id(&addr) else { return Err(addr) };
            let new = || WantedPeer {
                addrs: Vec::new(),
                next: Some(Instant::now()),
                pause: RETRY_FIRST,
                trouble: None,
            };
            let addrs = &mut wanted.entry(peer).or_insert_with(new).addrs;
            if !addrs.contains(&addr) {
                addrs.push(addr);
            }
        }
        Ok(Self { wanted, asked: HashMap::new() })
    }

    /// Returns the peers to stay connected to: an address of each, and why the last attempt failed.
    pub(super) fn all(&self) -> impl Iterator<Item = (PeerId, &Multiaddr, Option<&str>)> {
        self.wanted.iter().filter_map(|(&peer, wanted)| {
            Some((peer, wanted.addrs.first()?, wanted.trouble.as_deref()))
        })
    }

    /// Dials the peers whose next attempt is due.
    pub(super) fn dial_due(&mut self, swarm: &mut Swarm<NodeBehaviour>) {
        let now = Instant::now();
        for (&peer, wanted) in &mut self.wanted {
            if swarm.is_connected(&peer) || wanted.next.is_none_or(|next| next > now) {
                continue;
            }
            wanted.next = None;
            // A caller may be dialling the peer at another address. A failure is reported as an event.
            let _ = dial(swarm, peer, wanted.addrs.clone(), PeerCondition::Disconnected);
        }
    }

    /// Connects to a peer for a caller. Without addresses, the peer must be connected already.
    pub(super) fn connect(
        &mut self,
        swarm: &mut Swarm<NodeBehaviour>,
        peer: PeerId,
        addrs: Vec<Multiaddr>,
        reply: ConnectReply,
    ) {
        if swarm.is_connected(&peer) {
            // The caller may be gone.
            let _ = reply.send(Ok(()));
            return;
        }
        if addrs.is_empty() {
            let _ = reply.send(Err(ConnectFault::NoAddress));
            return;
        }
        self.asked.entry(peer).or_default().push(reply);
        if let Err(error) = dial(swarm, peer, addrs, PeerCondition::DisconnectedAndNotDialing)
            && !matches!(error, DialError::DialPeerConditionFalse(_))
        {
            self.answer(peer, &Err(ConnectFault::Unreached(error.to_string())));
        }
    }

    fn answer(&mut self, peer: PeerId, what: &Result<(), ConnectFault>) {
        for reply in self.asked.remove(&peer).into_iter().flatten() {
            // The caller may be gone.
            let _ = reply.send(what.clone());
        }
    }

    /// Handles a new connection with a peer.
    pub(super) fn connected(&mut self, peer: PeerId) {
        self.answer(peer, &Ok(()));
        if let Some(wanted) = self.wanted.get_mut(&peer) {
            wanted.pause = RETRY_FIRST;
            wanted.trouble = None;
            tracing::info!(%peer, "connected");
        }
    }

    /// Handles the end of a peer's last connection.
    pub(super) fn disconnected(&mut self, peer: PeerId, why: Option<&impl Display>) {
        // The failure of a caller, perhaps at another address, does not delay the next attempt of
        // this node.
        if let Some(wanted) = self.wanted.get_mut(&peer).filter(|wanted| wanted.next.is_none()) {
            wanted.next = Some(Instant::now() + wanted.pause);
            let why = why.map(ToString::to_string);
            tracing::info!(%peer, why, "the connection has ended; trying again");
        }
    }

    /// Handles a failure to reach a peer.
    pub(super) fn failed(&mut self, peer: PeerId, error: &impl Display) {
        let error = error.to_string();
        self.answer(peer, &Err(ConnectFault::Unreached(error.clone())));
        // The failure of a caller, perhaps at another address, does not delay the next attempt of
        // this node.
        if let Some(wanted) = self.wanted.get_mut(&peer).filter(|wanted| wanted.next.is_none()) {
            wanted.next = Some(Instant::now() + wanted.pause);
            wanted.pause = (wanted.pause * 2).min(RETRY_MAX);
            if wanted.trouble.as_ref() != Some(&error) {
                tracing::warn!(%peer, error, "a peer cannot be reached; trying again");
                wanted.trouble = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use libp2p::multiaddr::Protocol;

    use super::*;

    #[test]
    fn an_address_without_an_id_comes_back() {
        let addr: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        assert_eq!(Peers::new(vec![addr.clone()]).err(), Some(addr.clone()));
        let whole = addr.with(Protocol::P2p(PeerId::random()));
        assert!(Peers::new(vec![whole]).is_ok());
    }
}
