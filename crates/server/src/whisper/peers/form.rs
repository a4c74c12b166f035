//! The sub-protocols that peers speak.

use crate::whisper::rlpx::hello::SubProtocol;

/// The sub-protocol that a peer speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerForm {
    /// `shh/6`: Whisper, as in go-ethereum.
    Shh,
    /// `waku/1`: Waku 1, as in status-go.
    Waku,
}

impl PeerForm {
    /// Both sub-protocols.
    pub(super) const PROTOCOLS: [SubProtocol; 2] = [
        SubProtocol { name: "shh", version: 6, codes: 128 },
        SubProtocol { name: "waku", version: 1, codes: 128 },
    ];

    pub(super) fn protocol(self) -> SubProtocol {
        let [shh, waku] = Self::PROTOCOLS;
        match self {
            Self::Shh => shh,
            Self::Waku => waku,
        }
    }

    pub(super) fn of(protocol: SubProtocol) -> Option<Self> {
        match protocol.name {
            "shh" => Some(Self::Shh),
            "waku" => Some(Self::Waku),
            _ => None,
        }
    }
}
