//! A connected peer: the state of the session, and the packets that are sent to the peer.

use std::sync::atomic::{AtomicBool, AtomicU64};

use hark_codec::crypto::keccak256;
use hark_codec::record::{Id, Key};
use hark_codec::whisper::keys::PublicKey;
use tokio::io::AsyncWrite;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::code;
use super::end::PeerSessionEnd;
use super::form::PeerForm;
use super::state::PeersState;
use crate::address::ClientAddress;
use crate::whisper::rlpx::hello::{NOTHING, SharedProtocol};
use crate::whisper::rlpx::{RlpxError, RlpxWriter};

/// A connected peer. Both sides have sent their hellos.
pub(super) struct PeerSession<'a, W> {
    pub(super) state: &'a PeersState,
    pub(super) form: PeerForm,
    pub(super) shared: Vec<SharedProtocol>,
    pub(super) offset: u64,
    pub(super) peer: PublicKey,
    pub(super) address: ClientAddress,
    /// Whether the peer wants the outcomes of its envelopes.
    pub(super) confirms: AtomicBool,
    /// The minimum proof of work that was last sent to the peer, as the bits of a 64-bit float.
    pub(super) told_pow: AtomicU64,
    pub(super) writer: Mutex<RlpxWriter<W>>,
}

impl<W: AsyncWrite + Unpin> PeerSession<'_, W> {
    /// Sends a packet.
    pub(super) async fn send(&self, code: u64, parts: &[&[u8]]) -> Result<(), PeerSessionEnd> {
        self.send_with(|packets| packets.add(code, parts)).await
    }

    /// Sends the packets that `write` adds, in one write.
    pub(super) async fn send_with(
        &self,
        write: impl FnOnce(&mut PeerPackets<'_, W>) -> Result<(), RlpxError>,
    ) -> Result<(), PeerSessionEnd> {
        let sending = async {
            let mut writer = self.writer.lock().await;
            write(&mut PeerPackets { writer: &mut writer, offset: self.offset })?;
            writer.flush().await
        };
        match timeout(self.state.times.write, sending).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(PeerSessionEnd::Timeout),
        }
    }

    /// Sends a message of the base protocol, without content.
    pub(super) async fn send_base(&self, code: u64) -> Result<(), PeerSessionEnd> {
        let sending = async { self.writer.lock().await.write(code, &[&NOTHING]).await };
        match timeout(self.state.times.write, sending).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(PeerSessionEnd::Timeout),
        }
    }

    /// Whether the peer may request all envelopes.
    pub(super) fn is_trusted(&self) -> bool {
        self.state.trusted.contains(&self.peer)
    }

    /// Returns the hash of the peer's key, which identifies the peer for the pause between
    /// requests.
    pub(super) fn key(&self) -> Key {
        keccak256(&self.peer.bytes())
    }

    /// Reports to the peer that a request is refused.
    pub(super) async fn fail(&self, request: &Id, why: &str) -> Result<(), PeerSessionEnd> {
        let mut packet = Vec::new();
        hark_codec::whisper::Completion::Failed { request: *request, text: why }.write(&mut packet);
        self.send(code::COMPLETE, &[&packet]).await
    }
}

/// Packets that are sent in one write.
pub(super) struct PeerPackets<'a, W> {
    writer: &'a mut RlpxWriter<W>,
    offset: u64,
}

impl<W: AsyncWrite + Unpin> PeerPackets<'_, W> {
    /// Adds a packet. `parts` are the parts of the packet's content.
    pub(super) fn add(&mut self, code: u64, parts: &[&[u8]]) -> Result<(), RlpxError> {
        self.writer.push(self.offset + code, parts)
    }
}
