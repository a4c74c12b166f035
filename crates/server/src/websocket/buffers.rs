//! The read and write buffers between a connection and its session. An idle connection has no
//! buffers: each thread keeps one buffer of each kind for the connection that it currently serves.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Number of bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Size of a new write buffer, with room for a page and the event that completes the page.
const PAGE_BYTES: usize = 72 << 10;
/// The largest buffer that a thread keeps.
const KEPT_BYTES_MAX: usize = 128 << 10;

thread_local! {
    /// The spare read buffer. A read may fill its whole length.
    static TO_READ: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// The spare write buffer, which is empty.
    static TO_WRITE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Takes the thread's spare write buffer, which is empty and has room for a page.
pub(super) fn reuse_spare() -> Vec<u8> {
    let spare = TO_WRITE.take();
    if spare.capacity() < PAGE_BYTES { Vec::with_capacity(PAGE_BYTES) } else { spare }
}

/// Keeps a buffer as the thread's spare write buffer, unless the present spare is larger or the
/// buffer is too large.
pub(super) fn cache_spare(mut bytes: Vec<u8>) {
    if bytes.capacity() <= KEPT_BYTES_MAX {
        let spare = TO_WRITE.take();
        if spare.capacity() > bytes.capacity() {
            bytes = spare;
        }
        bytes.clear();
        TO_WRITE.set(bytes);
    }
}

/// Bytes that were read from the connection and are not consumed yet.
#[derive(Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    /// The range of `bytes` that is not consumed yet.
    from: usize,
    to: usize,
    /// Number of bytes that were ever read from the connection.
    pub(super) received: u64,
}

impl ReadBuffer {
    /// A buffer that holds the bytes read `before`.
    pub(super) fn new(before: &[u8]) -> Self {
        let received = before.len() as u64;
        Self { bytes: before.to_vec(), from: 0, to: before.len(), received }
    }

    /// All bytes not consumed yet.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// Consumes a frame with a head of `head` bytes and a payload of `len` bytes, and returns the
    /// payload. `None` if the frame has not been read completely.
    pub(super) fn take(&mut self, head: usize, len: usize) -> Option<&mut [u8]> {
        let payload = self.from + head;
        let end = payload.checked_add(len).filter(|end| *end <= self.to)?;
        self.from = end;
        Some(&mut self.bytes[payload..end])
    }

    /// Reads more bytes. Returns true at the end of the stream.
    pub(super) fn poll_fill(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        self.make_room();
        let mut room = ReadBuf::new(&mut self.bytes[self.to..]);
        let read = Pin::new(stream).poll_read(cx, &mut room);
        let count = room.filled().len();
        self.to += count;
        self.received += count as u64;
        ready!(read)?;
        Poll::Ready(Ok(count == 0))
    }

    fn make_room(&mut self) {
        let waiting = self.to - self.from;
        if waiting == 0 {
            (self.from, self.to) = (0, 0);
        }
        if waiting < READ_BYTES / 2 && self.bytes.len() < READ_BYTES {
            let mut bytes = TO_READ.take();
            bytes.resize(READ_BYTES, 0);
            bytes[..waiting].copy_from_slice(self.unread());
            (self.bytes, self.from, self.to) = (bytes, 0, waiting);
        } else if self.to == self.bytes.len() {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, waiting);
            if waiting > self.bytes.len() / 2 {
                self.bytes.resize(waiting * 2, 0);
            }
        }
    }

    /// Drops the bytes that are not consumed yet. Returns how many were dropped.
    pub(super) fn clear(&mut self) -> usize {
        let waiting = self.to - self.from;
        self.from = self.to;
        waiting
    }

    /// The size of the buffer in memory, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Shrinks the buffer to the bytes not consumed yet, because nothing is read for now. A buffer
    /// that is at least half full is not shrunk. Otherwise each poll would copy the beginning of a
    /// long message to a smaller buffer and back.
    pub(super) fn shrink_buffers(&mut self) {
        if self.bytes.len() <= 2 * (self.to - self.from) {
            return;
        }
        let rest = self.unread().to_vec();
        (self.from, self.to) = (0, rest.len());
        let bytes = std::mem::replace(&mut self.bytes, rest);
        if bytes.len() == READ_BYTES {
            TO_READ.set(bytes);
        }
    }
}

/// Bytes that are buffered and not sent yet.
#[derive(Default)]
pub(super) struct WriteBuffer {
    bytes: Vec<u8>,
    sent: usize,
    /// Number of bytes that were ever sent.
    pub(super) sent_before: u64,
    /// The time since which the connection accepts no bytes.
    stalled: Option<Instant>,
    /// Whether the stream may hold bytes that it has accepted and not sent, as TLS does.
    needs_flush: bool,
}

impl WriteBuffer {
    /// Number of bytes not sent yet.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether bytes wait here or in the stream.
    pub(super) fn is_pending(&self) -> bool {
        self.len() > 0 || self.needs_flush
    }

    /// The time since which the connection accepts nothing although bytes wait to be sent.
    pub(super) fn stalled(&self) -> Option<Instant> {
        self.stalled
    }

    /// Returns the buffer for appending bytes.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = TO_WRITE.take();
        }
        &mut self.bytes
    }

    /// Appends bytes. If the buffer is empty, `bytes` becomes the buffer without a copy.
    pub(super) fn append(&mut self, bytes: Vec<u8>) {
        if self.len() == 0 {
            self.sent = 0;
            cache_spare(std::mem::replace(&mut self.bytes, bytes));
        } else {
            self.bytes.extend_from_slice(&bytes);
            cache_spare(bytes);
        }
    }

    /// Frees the memory of the sent bytes. The unsent bytes stay.
    fn shrink_buffers(&mut self) {
        if self.len() < self.bytes.capacity() / 2 {
            let rest = self.bytes[self.sent..].to_vec();
            self.sent = 0;
            cache_spare(std::mem::replace(&mut self.bytes, rest));
        }
    }

    /// Sends all buffered bytes, and the bytes that the stream has buffered.
    pub(super) fn poll_send(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            let rest = &self.bytes[self.sent..];
            let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(cx, rest) else {
                self.stalled.get_or_insert_with(Instant::now);
                self.shrink_buffers();
                return Poll::Pending;
            };
            self.stalled = None;
            match written? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => {
                    self.sent += count;
                    self.sent_before += count as u64;
                    self.needs_flush = true;
                }
            }
        }
        if !self.bytes.is_empty() {
            self.sent = 0;
            cache_spare(std::mem::take(&mut self.bytes));
        }
        if self.needs_flush {
            let Poll::Ready(flushed) = Pin::new(stream).poll_flush(cx) else {
                self.stalled.get_or_insert_with(Instant::now);
                return Poll::Pending;
            };
            self.stalled = None;
            flushed?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }
}
