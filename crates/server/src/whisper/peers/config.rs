//! The configuration of the devp2p interface.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hark_codec::whisper::keys::PublicKey;

use super::mail::RequestRules;

/// The configuration of the devp2p interface.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The file with the node's key. A missing file is created.
    pub key: PathBuf,
    /// The rules for requests for history.
    pub rules: RequestRules,
    /// Minimum pause between two requests of a peer. Zero disables the pause.
    pub request_pause: Duration,
    /// Mail servers that may fetch all envelopes, to copy this archive (`sync` of status-go).
    pub trusted: Vec<PublicKey>,
    /// The time limits of peers.
    pub times: PeerTimes,
}

/// Time limits for a peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerTimes {
    /// Maximum time for the key exchange and the hellos.
    pub handshake: Duration,
    /// Maximum time until the next message has arrived completely.
    pub read: Duration,
    /// Maximum time in which the peer must read a message, or a page of an answer.
    pub write: Duration,
    /// The interval between two pings. The peer's answers show that the peer is alive.
    pub ping: Duration,
    /// Maximum time to send a peer the reason for the end of its connection.
    pub farewell: Duration,
}

impl Default for PeerTimes {
    /// The values of go-ethereum and of status-go's mail servers.
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            read: Duration::from_secs(30),
            write: Duration::from_mins(1),
            ping: Duration::from_secs(15),
            farewell: Duration::from_secs(1),
        }
    }
}
