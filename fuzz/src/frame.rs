//! Frames of a connection between Ethereum nodes (RLPx). Sealed messages are read unchanged, for
//! any division of the stream into pieces. A message with changed bytes is refused, and no message
//! exceeds the bound.
//!
//! The first byte of the input selects whether messages are compressed, and the size of the pieces.
//! The second byte selects the position of a flipped bit, or none. Then come the contents of
//! frames, each after its length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use hark_codec::whisper::keys::SecretKey;
use hark_codec::whisper::rlp::put_number;
use hark_server::whisper::rlpx::frame::{FrameOpener, FrameSealer, directions};
use hark_server::whisper::rlpx::handshake::{
    ACK_BYTES, AUTH_BYTES, OpenedPacket, PacketProgress, RlpxInitiator, answer, open,
};
use hark_server::whisper::rlpx::{RlpxError, RlpxReader};
use tokio::io::{AsyncRead, ReadBuf};

/// Maximum number of bytes of a message.
const MESSAGE_MAX: usize = 4_000;

/// A connection that delivers pieces of one size.
struct Pieces<'a> {
    coming: &'a [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.piece.min(self.coming.len()).min(room.remaining());
        let (now, later) = self.coming.split_at(count);
        room.put_slice(now);
        self.coming = later;
        Poll::Ready(Ok(()))
    }
}

/// Makes the two ends of a connection. One end seals frames, and the other opens the same frames.
fn ends() -> (FrameSealer, FrameOpener) {
    let mut count = 0u8;
    let mut random = |out: &mut [u8]| {
        count = count.wrapping_add(1);
        out.fill(count);
    };
    let whole = |key: &SecretKey, packet: &[u8], fixed_bytes| -> OpenedPacket {
        match open(key, packet, fixed_bytes).expect("a packet") {
            PacketProgress::Whole(opened) => opened,
            PacketProgress::Needs(bytes) => panic!("{bytes} bytes"),
        }
    };
    let key = SecretKey::draw(&mut random);
    let initiator = RlpxInitiator::new(&key, &key.public(), &mut random);
    let auth = whole(&key, initiator.auth(), AUTH_BYTES);
    let listener = answer(&key, initiator.auth(), &auth, &mut random).expect("an answer");
    let ack = whole(&key, &listener.ack, ACK_BYTES);
    let secrets = initiator.finish(&listener.ack, &ack).expect("secrets");
    (directions(secrets).0, directions(listener.secrets).1)
}

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let [how, flip, rest @ ..] = bytes else { return };
    let (is_snappy, piece) = (how & 1 == 1, usize::from(how / 2) + 1);
    let (mut sealer, opener) = ends();
    let (mut wire, mut contents, mut rest) = (Vec::new(), Vec::new(), rest);
    while let [len, behind @ ..] = rest {
        let (content, behind) = behind.split_at(usize::from(*len).min(behind.len()));
        sealer.seal(&mut wire, |out| out.extend_from_slice(content)).expect("it is short");
        contents.push(content);
        rest = behind;
    }
    let flipped = usize::from(*flip);
    let is_flipped = flipped > 0 && flipped <= wire.len();
    if is_flipped {
        wire[flipped - 1] ^= 1;
    }
    let pieces = Pieces { coming: &wire, piece };
    let mut reader = RlpxReader::new(pieces, opener, is_snappy, MESSAGE_MAX, ());
    let mut sent = contents.iter();
    let end = loop {
        let mut reading = std::pin::pin!(reader.read());
        let Poll::Ready(read) = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it waits for nothing");
        };
        match read {
            Ok(message) => {
                assert!(message.payload.len() <= MESSAGE_MAX);
                let content = sent.next().expect("it was sent");
                let mut written = Vec::new();
                put_number(&mut written, message.code);
                assert!(content.starts_with(&written));
                written.extend_from_slice(message.payload);
                assert!(is_snappy || written == *content);
            }
            Err(error) => break error,
        }
    };
    let is_wrong = matches!(
        end,
        RlpxError::Frame(_) | RlpxError::Code(_) | RlpxError::Snappy(_) | RlpxError::TooLong(..)
    );
    assert!(is_wrong || (matches!(end, RlpxError::Io(_)) && !is_flipped && sent.next().is_none()));
}
