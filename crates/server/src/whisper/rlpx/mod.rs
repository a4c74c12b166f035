//! RLPx, the encrypted connections of Ethereum's nodes, and the base protocol of devp2p on top of
//! RLPx.
//!
//! A connection begins with the key exchange of [`handshake`]. All later data is sent in frames
//! ([`frame`]). Both sides first send a hello ([`hello`]). If both hellos have version 5 or higher,
//! all later messages are compressed with Snappy (EIP-706). A frame has one message: the message's
//! code as an RLP number, and the message's content.
//!
//! Hark has its own implementation, because every crate for RLPx is a part of an Ethereum node. The
//! cryptography comes from RustCrypto and libsecp256k1. Memory for a frame is reserved only as
//! the frame's bytes arrive, in steps of [`READ_BYTES`].

use std::io;

use hark_codec::whisper::RlpError;
use hark_codec::whisper::keys::{PublicKey, SecretKey};
use hark_codec::whisper::rlp::{RlpItems, put_number};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use frame::{FrameOpener, FrameSealer, HEADER_BYTES, RlpxFrameError};
use handshake::{
    ACK_BYTES, AUTH_BYTES, OpenedPacket, PacketProgress, RandomSource, RlpxHandshakeError,
    RlpxInitiator, RlpxSecrets,
};
use hello::{DisconnectReason, Hello, HelloError};

pub mod frame;
pub mod handshake;
pub mod hello;

/// Maximum number of bytes of a frame for which memory is reserved at a time.
pub const READ_BYTES: usize = 64 << 10;
/// Capacity that a buffer keeps between two messages, in bytes.
const KEPT_BYTES: usize = 16 << 10;
/// Maximum length of a message's code, in bytes.
const CODE_BYTES_MAX: usize = 9;
/// Maximum expansion of Snappy data, rounded up: three bytes become 64.
const SNAPPY_RATIO_MAX: usize = 22;

/// Why a connection cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum RlpxError {
    /// The peer has closed the connection, or the connection broke.
    #[error("the connection has ended: {0}")]
    Io(#[from] io::Error),
    /// See [`RlpxHandshakeError`].
    #[error(transparent)]
    Handshake(#[from] RlpxHandshakeError),
    /// See [`RlpxFrameError`].
    #[error(transparent)]
    Frame(#[from] RlpxFrameError),
    /// A message is longer than the reader accepts.
    #[error("a message of {0} bytes is longer than {1}")]
    TooLong(usize, usize),
    /// The memory for messages that are being read is used up.
    #[error("there is no memory for a message of this peer")]
    Memory,
    /// A message does not begin with a code.
    #[error("a message has no code: {0}")]
    Code(RlpError),
    /// A message is not valid Snappy data.
    #[error("a message cannot be decompressed: {0}")]
    Snappy(#[from] snap::Error),
    /// See [`HelloError`].
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer sent another message instead of the hello.
    #[error("message {0} came before the hello")]
    NoHello(u64),
    /// The id in the hello differs from the id of the key exchange.
    #[error("the peer's hello has another id than its key")]
    OtherId,
    /// The peer ends the connection.
    #[error("the peer disconnects: {0}")]
    Disconnected(DisconnectReason),
}

/// Accounts for the memory of messages that are being read.
pub trait ReadAllowance: Send {
    /// Changes the number of bytes in use. Returns false if the new number is not allowed.
    fn resize(&mut self, bytes: usize) -> bool;
}

/// Allows any message.
impl ReadAllowance for () {
    fn resize(&mut self, _: usize) -> bool {
        true
    }
}

/// A message from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RlpxMessage<'a> {
    /// The code. See [`hello::SharedProtocol::offset`].
    pub code: u64,
    /// The content, usually an RLP list.
    pub payload: &'a [u8],
}

/// Reads messages.
pub struct RlpxReader<R, A> {
    stream: R,
    opener: FrameOpener,
    is_snappy: bool,
    message_bytes_max: usize,
    allowance: A,
    frame: Vec<u8>,
    plain: Vec<u8>,
}

/// Writes messages.
pub struct RlpxWriter<W> {
    stream: W,
    sealer: FrameSealer,
    is_snappy: bool,
    /// Whether a message was only sent in part. The flag is set while a message is being sent, and
    /// stays set if sending is cancelled or fails.
    is_cut: bool,
    plain: Vec<u8>,
    out: Vec<u8>,
}

/// A connection after both hellos.
pub struct RlpxConnection<R, W, A> {
    /// Reads messages.
    pub reader: RlpxReader<R, A>,
    /// Writes messages.
    pub writer: RlpxWriter<W>,
    /// The peer's hello, with its id.
    pub peer: Hello,
}

/// Both directions of a stream, and the bounds for reading.
pub struct RlpxStream<R, W, A> {
    /// The data from the peer.
    pub read: R,
    /// The data to the peer.
    pub write: W,
    /// Maximum length of an uncompressed message, in bytes.
    pub message_bytes_max: usize,
    /// Accounts for the memory of messages.
    pub allowance: A,
}

/// Reads and decrypts a packet of the key exchange.
async fn packet<R: AsyncRead + Unpin>(
    key: &SecretKey,
    stream: &mut R,
    fixed_bytes: usize,
) -> Result<(Vec<u8>, OpenedPacket), RlpxError> {
    let mut packet = vec![0; fixed_bytes];
    stream.read_exact(&mut packet).await?;
    loop {
        match handshake::open(key, &packet, fixed_bytes)? {
            PacketProgress::Whole(opened) => return Ok((packet, opened)),
            PacketProgress::Needs(bytes) => {
                let there = packet.len();
                packet.resize(bytes, 0);
                if let Some(missing) = packet.get_mut(there..) {
                    stream.read_exact(missing).await?;
                }
            }
        }
    }
}

impl<R, W, A> RlpxStream<R, W, A>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    A: ReadAllowance,
{
    /// Accepts a connection: performs the key exchange as the listener, and exchanges hellos.
    pub async fn accept(
        mut self,
        key: &SecretKey,
        hello: &Hello,
        random: impl FnMut(&mut [u8]),
    ) -> Result<RlpxConnection<R, W, A>, RlpxError> {
        let mut random = random;
        let (auth, opened) = packet(key, &mut self.read, AUTH_BYTES).await?;
        let answer = handshake::answer(key, &auth, &opened, &mut random)?;
        self.write.write_all(&answer.ack).await?;
        self.greet(answer.secrets, hello, &answer.initiator).await
    }

    /// Opens a connection to the node with this key: performs the key exchange as the initiator,
    /// and exchanges hellos.
    pub async fn connect(
        mut self,
        key: &SecretKey,
        peer: &PublicKey,
        hello: &Hello,
        random: RandomSource<'_>,
    ) -> Result<RlpxConnection<R, W, A>, RlpxError> {
        let initiator = RlpxInitiator::new(key, peer, random);
        self.write.write_all(initiator.auth()).await?;
        let (ack, opened) = packet(key, &mut self.read, ACK_BYTES).await?;
        let secrets = initiator.finish(&ack, &opened)?;
        self.greet(secrets, hello, peer).await
    }

    /// Sends a hello, and reads the peer's hello.
    async fn greet(
        self,
        secrets: RlpxSecrets,
        own: &Hello,
        peer: &PublicKey,
    ) -> Result<RlpxConnection<R, W, A>, RlpxError> {
        let (sealer, opener) = frame::directions(secrets);
        let mut writer = RlpxWriter {
            stream: self.write,
            sealer,
            is_snappy: false,
            is_cut: false,
            plain: Vec::new(),
            out: Vec::new(),
        };
        let hello_bytes_max = hello::HELLO_BYTES_MAX;
        let mut reader = RlpxReader::new(self.read, opener, false, hello_bytes_max, self.allowance);
        let mut written = Vec::new();
        own.write(&mut written);
        writer.write(hello::code::HELLO, &[&written]).await?;
        let message = reader.read().await?;
        let theirs = match message.code {
            hello::code::HELLO => Hello::read(message.payload),
            hello::code::DISCONNECT => {
                return Err(RlpxError::Disconnected(DisconnectReason::read(message.payload)));
            }
            other => return Err(RlpxError::NoHello(other)),
        };
        let fault = match &theirs {
            Ok(theirs) if theirs.id != *peer => Some(DisconnectReason::Unexpected),
            Ok(_) => None,
            Err(HelloError::Id) => Some(DisconnectReason::Identity),
            Err(HelloError::Rlp(_)) => Some(DisconnectReason::Protocol),
        };
        if let Some(reason) = fault {
            writer.disconnect(reason).await?;
        }
        let theirs = theirs?;
        if theirs.id != *peer {
            return Err(RlpxError::OtherId);
        }
        let is_snappy = own.version.min(theirs.version) >= hello::VERSION;
        (reader.is_snappy, writer.is_snappy) = (is_snappy, is_snappy);
        reader.message_bytes_max = self.message_bytes_max;
        Ok(RlpxConnection { reader, writer, peer: theirs })
    }
}

impl<R: AsyncRead + Unpin, A: ReadAllowance> RlpxReader<R, A> {
    /// Reads the frames of `stream`. A message has at most `message_bytes_max` bytes uncompressed.
    pub fn new(
        stream: R,
        opener: FrameOpener,
        is_snappy: bool,
        message_bytes_max: usize,
        allowance: A,
    ) -> Self {
        let (frame, plain) = (Vec::new(), Vec::new());
        Self { stream, opener, is_snappy, message_bytes_max, allowance, frame, plain }
    }

    /// Reads the next message. If the future is dropped before it completes, the connection cannot
    /// continue.
    pub async fn read(&mut self) -> Result<RlpxMessage<'_>, RlpxError> {
        for buffer in [&mut self.frame, &mut self.plain] {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES);
        }
        self.allowance.resize(0);
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).await?;
        let header = self.opener.header(&header)?;
        let message_bytes_max = self.message_bytes_max;
        let content_bytes_max = CODE_BYTES_MAX
            + if self.is_snappy {
                snap::raw::max_compress_len(message_bytes_max)
            } else {
                message_bytes_max
            };
        if header.content > content_bytes_max {
            return Err(RlpxError::TooLong(header.content, message_bytes_max));
        }
        while self.frame.len() < header.bytes() {
            let step = READ_BYTES.min(header.bytes() - self.frame.len());
            self.allow(self.frame.len() + step)?;
            let there = self.frame.len();
            self.frame.reserve(step);
            let mut rest = (&mut self.stream).take(step as u64);
            while self.frame.len() < there + step {
                if rest.read_buf(&mut self.frame).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
        }
        let content = self.opener.content(header, &mut self.frame)?;
        let mut items = RlpItems::of_sequence(content);
        let code = items.uint64().map_err(RlpxError::Code)?;
        let payload = items.remaining();
        if !self.is_snappy {
            let fits = payload.len() <= message_bytes_max;
            let too_long = || RlpxError::TooLong(payload.len(), message_bytes_max);
            return fits.then_some(RlpxMessage { code, payload }).ok_or_else(too_long);
        }
        let bytes = snap::raw::decompress_len(payload)?;
        let bytes_max = message_bytes_max.min(payload.len().saturating_mul(SNAPPY_RATIO_MAX));
        if bytes > bytes_max {
            return Err(RlpxError::TooLong(bytes, bytes_max));
        }
        if bytes > READ_BYTES && !self.allowance.resize(header.bytes() + bytes) {
            return Err(RlpxError::Memory);
        }
        self.plain.resize(bytes, 0);
        let bytes = snap::raw::Decoder::new().decompress(payload, &mut self.plain)?;
        let payload = self.plain.get(..bytes).unwrap_or_default();
        Ok(RlpxMessage { code, payload })
    }

    /// Accounts for the received bytes of a frame. Small frames are not accounted for.
    fn allow(&mut self, bytes: usize) -> Result<(), RlpxError> {
        let is_allowed = bytes <= READ_BYTES || self.allowance.resize(bytes);
        if is_allowed { Ok(()) } else { Err(RlpxError::Memory) }
    }
}

impl<W: AsyncWrite + Unpin> RlpxWriter<W> {
    /// Adds a message for the next [`RlpxWriter::flush`]. `parts` are the parts of the message's
    /// content.
    pub fn push(&mut self, code: u64, parts: &[&[u8]]) -> Result<(), RlpxError> {
        let is_snappy = self.is_snappy;
        self.plain.clear();
        if is_snappy {
            append(&mut self.plain, parts);
        }
        let plain = &self.plain;
        let mut compressed = Ok(());
        self.sealer.seal(&mut self.out, |out| {
            put_number(out, code);
            if is_snappy {
                compressed = compress(plain, out);
            } else {
                append(out, parts);
            }
        })?;
        Ok(compressed?)
    }

    /// Sends the added messages. If the future is dropped before it completes, the connection
    /// cannot continue, and later calls fail.
    pub async fn flush(&mut self) -> Result<(), RlpxError> {
        if self.is_cut {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        self.is_cut = true;
        self.stream.write_all(&self.out).await?;
        self.stream.flush().await?;
        self.is_cut = false;
        for buffer in [&mut self.plain, &mut self.out] {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES);
        }
        Ok(())
    }

    /// Sends a message.
    pub async fn write(&mut self, code: u64, parts: &[&[u8]]) -> Result<(), RlpxError> {
        self.push(code, parts)?;
        self.flush().await
    }

    /// Sends the peer the reason for ending the connection.
    pub async fn disconnect(&mut self, reason: DisconnectReason) -> Result<(), RlpxError> {
        let mut payload = Vec::new();
        reason.write(&mut payload);
        self.write(hello::code::DISCONNECT, &[&payload]).await
    }
}

fn append(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends compressed bytes.
fn compress(plain: &[u8], out: &mut Vec<u8>) -> Result<(), snap::Error> {
    let start = out.len();
    out.resize(start + snap::raw::max_compress_len(plain.len()), 0);
    let bytes = snap::raw::Encoder::new().compress(plain, out.get_mut(start..).unwrap_or_default());
    out.truncate(start + bytes.as_ref().copied().unwrap_or_default());
    bytes.map(drop)
}

#[cfg(test)]
mod tests;
