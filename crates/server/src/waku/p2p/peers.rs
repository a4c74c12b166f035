//! Whom this node looks for.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use libp2p::multiaddr::Protocol;
use libp2p::swarm::DialError;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId, Swarm};
use tokio::sync::oneshot;

use super::Behaviour;

/// Time to the next try after the first failure, and at most: it doubles each time.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_mins(1);

/// The id that an address ends with.
pub(super) fn id(addr: &Multiaddr) -> Option<PeerId> {
    match addr.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

/// Dials a peer, unless that is under way already.
fn dial(
    swarm: &mut Swarm<Behaviour>,
    peer: PeerId,
    addrs: Vec<Multiaddr>,
) -> Result<(), DialError> {
    let opts = DialOpts::peer_id(peer).addresses(addrs);
    swarm.dial(opts.condition(PeerCondition::DisconnectedAndNotDialing).build())
}

/// Peers to stay connected with, and those that somebody wants to ask.
#[derive(Default)]
pub(super) struct Peers {
    wanted: HashMap<PeerId, Wanted>,
    asked: HashMap<PeerId, Vec<Tell>>,
}

type Tell = oneshot::Sender<Result<(), String>>;

struct Wanted {
    addrs: Vec<Multiaddr>,
    next: Option<Instant>,
    pause: Duration,
    /// Why the last try failed; said once.
    trouble: Option<String>,
}

impl Peers {
    /// Of these addresses. The first without an id comes back.
    pub(super) fn new(addrs: Vec<Multiaddr>) -> Result<Self, Multiaddr> {
        let mut wanted: HashMap<PeerId, Wanted> = HashMap::new();
        for addr in addrs {
            let Some(peer) = id(&addr) else { return Err(addr) };
            let new = || Wanted {
                addrs: Vec::new(),
                next: Some(Instant::now()),
                pause: RETRY_FIRST,
                trouble: None,
            };
            wanted.entry(peer).or_insert_with(new).addrs.push(addr);
        }
        Ok(Self { wanted, asked: HashMap::new() })
    }

    /// The peers to stay connected with: an address of each, and whether the last try failed.
    pub(super) fn all(&self) -> impl Iterator<Item = (PeerId, &Multiaddr, bool)> {
        self.wanted.iter().filter_map(|(&peer, wanted)| {
            Some((peer, wanted.addrs.first()?, wanted.trouble.is_some()))
        })
    }

    /// Tries those that are due.
    pub(super) fn look(&mut self, swarm: &mut Swarm<Behaviour>) {
        let now = Instant::now();
        for (&peer, wanted) in &mut self.wanted {
            if swarm.is_connected(&peer) || wanted.next.is_none_or(|next| next > now) {
                continue;
            }
            wanted.next = None;
            // A failure comes as an event.
            let _ = dial(swarm, peer, wanted.addrs.clone());
        }
    }

    /// Connects to a peer that somebody wants to ask. Without an address it has to be connected.
    pub(super) fn connect(
        &mut self,
        swarm: &mut Swarm<Behaviour>,
        peer: PeerId,
        addrs: Vec<Multiaddr>,
        tell: Tell,
    ) {
        if swarm.is_connected(&peer) {
            // Who has asked may be gone.
            let _ = tell.send(Ok(()));
            return;
        }
        if addrs.is_empty() {
            let _ = tell.send(Err("the peer has no address that may be dialled".into()));
            return;
        }
        self.asked.entry(peer).or_default().push(tell);
        if let Err(error) = dial(swarm, peer, addrs)
            && !matches!(error, DialError::DialPeerConditionFalse(_))
        {
            self.tell(peer, &Err(format!("the peer cannot be reached: {error}")));
        }
    }

    fn tell(&mut self, peer: PeerId, what: &Result<(), String>) {
        for tell in self.asked.remove(&peer).into_iter().flatten() {
            // Who has asked may be gone.
            let _ = tell.send(what.clone());
        }
    }

    /// A peer is there.
    pub(super) fn connected(&mut self, peer: PeerId) {
        self.tell(peer, &Ok(()));
        if let Some(wanted) = self.wanted.get_mut(&peer) {
            wanted.pause = RETRY_FIRST;
            wanted.trouble = None;
            tracing::info!(%peer, "connected");
        }
    }

    /// A peer has gone.
    pub(super) fn gone(&mut self, peer: PeerId, why: Option<&impl Display>) {
        if let Some(wanted) = self.wanted.get_mut(&peer) {
            wanted.next = Some(Instant::now() + wanted.pause);
            let why = why.map(ToString::to_string);
            tracing::info!(%peer, why, "the connection has ended; trying again");
        }
    }

    /// A peer could not be reached.
    pub(super) fn failed(&mut self, peer: PeerId, error: &impl Display) {
        let error = error.to_string();
        self.tell(peer, &Err(format!("the peer cannot be reached: {error}")));
        if let Some(wanted) = self.wanted.get_mut(&peer) {
            wanted.next = Some(Instant::now() + wanted.pause);
            wanted.pause = (wanted.pause * 2).min(RETRY_MAX);
            if wanted.trouble.as_ref() != Some(&error) {
                tracing::warn!(%peer, error, "a peer cannot be reached; trying on");
                wanted.trouble = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_an_id_comes_back() {
        let addr: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        assert_eq!(Peers::new(vec![addr.clone()]).err(), Some(addr.clone()));
        let whole = addr.with(Protocol::P2p(PeerId::random()));
        assert!(Peers::new(vec![whole]).is_ok());
    }
}
