//! Encodes messages as frames. The thread that finds a page of messages also frames the page. So
//! the bytes from the archive are copied once, into the buffer that is written to the connection.

use std::sync::Arc;

use super::buffers;
use super::deflate::Compressors;
use super::frame::{self, Opcode};

/// Minimum size of frames that keep their buffer, in bytes. Shorter frames are copied to memory of
/// their exact size.
const FEW_BYTES: usize = 4 << 10;

/// Encodes the messages of a connection as frames, compressed if its client agreed to compression.
#[derive(Clone, Debug, Default)]
pub(crate) struct Framing(pub(super) Option<Arc<Compressors>>);

impl Framing {
    /// Appends a message, given in pieces, to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>, pieces: &[&[u8]]) {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        if let Some(deflate) = self.0.as_ref().filter(|deflate| len >= deflate.from_bytes) {
            let mut compressed = Vec::with_capacity(len / 2);
            if deflate.compress(pieces, &mut compressed).is_some() {
                frame::write_head(out, Opcode::Text, true, compressed.len());
                out.extend_from_slice(&compressed);
                return;
            }
        }
        out.reserve(frame::HEAD_BYTES_MAX + len);
        frame::write_head(out, Opcode::Text, false, len);
        for piece in pieces {
            out.extend_from_slice(piece);
        }
    }
}

/// Messages in one buffer, as frames that are ready to be sent.
#[derive(Debug, Default)]
pub(crate) struct FramedMessages {
    pub(super) bytes: Vec<u8>,
    messages: u64,
    text_bytes: u64,
}

impl FramedMessages {
    /// An empty list of messages, in the thread's spare buffer.
    pub(crate) fn new() -> Self {
        Self { bytes: buffers::reuse_spare(), messages: 0, text_bytes: 0 }
    }

    /// Adds a message, given in pieces.
    pub(crate) fn add(&mut self, framing: &Framing, pieces: &[&[u8]]) {
        framing.write(&mut self.bytes, pieces);
        self.messages += 1;
        self.text_bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
    }

    /// The number of messages.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// Total size of the messages in bytes, without frames and before compression.
    pub(crate) fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// Total size of the frames in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Frees memory that the frames do not fill. Frames that are sent `at_once` keep their buffer
    /// if they have at least [`FEW_BYTES`] bytes.
    pub(crate) fn shrink_buffers(&mut self, at_once: bool) {
        let is_kept = at_once && self.bytes.len() >= FEW_BYTES;
        if !is_kept && self.bytes.len() < self.bytes.capacity() / 2 {
            let bytes = self.bytes.as_slice().to_vec();
            buffers::cache_spare(std::mem::replace(&mut self.bytes, bytes));
        }
    }
}

#[cfg(test)]
impl FramedMessages {
    /// One message, of `len` bytes with its frame.
    pub(crate) fn of_len(len: usize) -> Self {
        Self { bytes: vec![0; len], messages: 1, text_bytes: len as u64 }
    }
}
