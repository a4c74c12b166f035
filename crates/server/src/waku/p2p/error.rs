//! Why the network does not start, and why a peer gave no answer.

use std::io;

use hark_codec::waku::ProtobufError;
use hark_codec::waku::store::PAGE_MAX;
use libp2p::Multiaddr;

use super::key::KeyError;
use super::outgoing::OpenFault;

/// Why the network does not start.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// See [`KeyError`].
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The node cannot listen on an address.
    #[error("cannot listen on {0}: {1}; choose another with `listen` in [waku]")]
    Listen(Multiaddr, String),
    /// An address to announce ends with the id of another node.
    #[error("{0}, in `announce` in [waku], ends with the id of another node; leave /p2p/ out")]
    Announce(Multiaddr),
    /// The server has no certificate for a secure WebSocket.
    #[error(
        "cannot listen on {0}: there is no certificate; set `certificate` and `key`, or \
         `acme_domains`, in [tls], or listen on /ws, and let a proxy have the certificate"
    )]
    NoCertificate(Multiaddr),
    /// The address of a peer lacks the peer's id.
    #[error("the address of a peer ends with /p2p/ and its id, but {0} does not")]
    Peer(Multiaddr),
    /// A transport or the gossip protocol cannot be set up.
    #[error("{0}")]
    Start(String),
}

/// Why browsers do not reach this node. The texts are for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::waku) enum WebFault {
    /// The node has no secure WebSocket.
    #[error(
        "browsers need a secure WebSocket: set [tls], and add an address such as \
         /ip4/0.0.0.0/tcp/8000/wss to `listen` in [waku], or put the address of a proxy into \
         `announce`"
    )]
    NoAddress,
    /// The certificate has no name that can be announced.
    #[error(
        "the certificate in [tls] has no name of a single host that leads to this node: get a \
         certificate for the node's name, or put the address that browsers use into `announce` in \
         [waku]"
    )]
    NoName,
    /// The names of the certificate do not lead to loopback addresses.
    #[error(
        "the secure WebSocket listens on loopback addresses only, and the names of the certificate \
         do not lead there: change `listen` in [waku], or put the address that browsers use into \
         `announce`"
    )]
    Loopback,
    /// The certificate is ordered, but not issued yet.
    #[error("the first certificate has not been issued yet; the log has the reason")]
    NotIssued,
    /// Clients refuse the certificate.
    #[error("the certificate in [tls] has expired: renew the certificate")]
    Expired,
}

/// Why a peer is not connected. The texts are for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::waku) enum ConnectFault {
    /// The address lacks the peer's id.
    #[error("the address must end with /p2p/ and the peer's id")]
    NoId,
    /// The node is shutting down.
    #[error("the node is going down")]
    Down,
    /// This node must not dial the peer's addresses.
    #[error("the peer has no address that may be dialled")]
    NoAddress,
    /// No address of the peer answers. The reason is a text, because each waiting caller gets a
    /// copy.
    #[error("the peer cannot be reached: {0}")]
    Unreached(String),
}

/// Why a peer's store gave no valid answer. The texts are for operators and clients.
#[derive(Debug, thiserror::Error)]
pub(in crate::waku) enum AskFault {
    /// See [`ConnectFault`].
    #[error(transparent)]
    Connect(#[from] ConnectFault),
    /// No stream of the protocol could be opened to the peer.
    #[error(transparent)]
    Stream(#[from] OpenFault),
    /// The stream broke.
    #[error("the peer did not answer: {0}")]
    Broken(#[from] io::Error),
    /// The peer ended the stream.
    #[error("the peer did not answer")]
    Silent,
    /// The peer took more than this number of seconds.
    #[error("the peer took more than {0} s")]
    Slow(u64),
    /// The bytes are not an answer.
    #[error("the peer's answer is invalid: {0}")]
    Malformed(#[from] ProtobufError),
    /// The answer has too many messages.
    #[error("the peer's answer has more than {PAGE_MAX} messages")]
    TooLong,
}
