//! A client's frames. For any division of the stream into pieces, the same messages are received
//! and the same answers are sent. No message is longer than agreed, and every answer is a frame
//! that a server may send.
//!
//! The first byte of the input selects whether compression was agreed on, and the size of the
//! pieces.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use hark_server::websocket::{ClientInput, DeflateOptions, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of bytes of a message.
const MESSAGE_MAX: usize = 4_000;

/// A connection that delivers pieces of one size.
struct Wire<'a> {
    coming: &'a [u8],
    piece: usize,
    sent: Vec<u8>,
}

impl AsyncRead for Wire<'_> {
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

impl AsyncWrite for Wire<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.sent.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let [how, frames @ ..] = bytes else { return };
    let compressed = how & 1 == 1;
    let whole = receive(frames, compressed, usize::MAX);
    for piece in [1, usize::from(how >> 1) + 2] {
        assert_eq!(receive(frames, compressed, piece), whole, "in pieces of {piece}");
    }
    is_a_server(&whole.1);
}

/// Returns the received messages, and the bytes that were sent back.
fn receive(frames: &[u8], compressed: bool, piece: usize) -> (Vec<String>, Vec<u8>) {
    let deflate = DeflateOptions::new(usize::from(compressed)).compressors();
    let wire = Wire { coming: frames, piece, sent: Vec::new() };
    let mut socket = Socket::new(wire, &[], deflate, MESSAGE_MAX);
    let mut cx = Context::from_waker(Waker::noop());
    let mut inputs = Vec::new();
    loop {
        // The socket may return `Pending` only to let other tasks run, so it is polled again.
        let Poll::Ready(received) = socket.poll_recv(&mut cx) else { continue };
        let is_end = matches!(received, ClientInput::End | ClientInput::Broken);
        if let ClientInput::Text(text) = &received {
            assert!(text.len() <= MESSAGE_MAX, "{} bytes", text.len());
        }
        inputs.push(format!("{received:?}"));
        if is_end {
            let Poll::Ready(flushed) = socket.poll_flush(&mut cx) else { panic!("it waits") };
            flushed.expect("is written");
            return (inputs, socket.stream().sent.clone());
        }
        socket.shrink_buffers();
    }
}

/// Asserts that only pongs and then at most one close frame were sent, all complete and none
/// masked.
fn is_a_server(mut sent: &[u8]) {
    while let [first, len, rest @ ..] = sent {
        assert!(matches!(first, 0x88 | 0x8a), "{first:x}");
        assert!(*len <= 125, "{len:x}");
        let (_, behind) = rest.split_at(usize::from(*len));
        assert!(*first == 0x8a || behind.is_empty(), "something follows the end");
        sent = behind;
    }
    assert!(sent.is_empty());
}
