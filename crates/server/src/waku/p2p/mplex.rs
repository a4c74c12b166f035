//! mplex with a bound for the unread bytes of a connection.
//!
//! The library bounds the number of unread frames of a stream, but a frame may have 1 MiB. So this
//! module splits received data frames before the library reads the frames. The library's bound then
//! limits the unread bytes of each stream to [`STREAM_UNREAD_MAX`]. Once a stream has reached the
//! bound, the library does not read from the connection until the stream is read.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{AsyncRead, AsyncWrite};
use hark_codec::waku::protobuf::put_varint;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p_mplex::Config;

/// Maximum number of bytes of data in a frame that the library reads.
const DATA_MAX: u64 = 16 << 10;
/// Maximum unread bytes of a stream, as with yamux.
const STREAM_UNREAD_MAX: usize = 256 << 10;
/// The library stops reading from the connection when the unread frames of a stream exceed this
/// number. With the frame that exceeds this number, the stream has [`STREAM_UNREAD_MAX`] unread
/// bytes.
const FRAMES_MAX: usize = STREAM_UNREAD_MAX / DATA_MAX as usize - 1;
/// Maximum length of a frame. A longer frame is not split, and the library refuses the connection.
const FRAME_MAX: u64 = 1 << 20;
/// Number of bytes that are read from the socket at once.
const AHEAD: usize = 8 << 10;

/// Upgrades a connection to mplex, with the bound for unread bytes.
#[derive(Clone)]
pub(super) struct BoundedMplex(Config);

impl BoundedMplex {
    /// Allows `streams_max` streams on a connection.
    pub(super) fn new(streams_max: usize) -> Self {
        let mut config = Config::default();
        config.set_max_num_streams(streams_max).set_max_buffer_size(FRAMES_MAX);
        Self(config)
    }
}

impl UpgradeInfo for BoundedMplex {
    type Info = <Config as UpgradeInfo>::Info;
    type InfoIter = <Config as UpgradeInfo>::InfoIter;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.protocol_info()
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> InboundConnectionUpgrade<C> for BoundedMplex {
    type Output = <Config as InboundConnectionUpgrade<SplitFrames<C>>>::Output;
    type Error = <Config as InboundConnectionUpgrade<SplitFrames<C>>>::Error;
    type Future = <Config as InboundConnectionUpgrade<SplitFrames<C>>>::Future;

    fn upgrade_inbound(self, socket: C, info: Self::Info) -> Self::Future {
        self.0.upgrade_inbound(SplitFrames::new(socket), info)
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> OutboundConnectionUpgrade<C> for BoundedMplex {
    type Output = <Config as OutboundConnectionUpgrade<SplitFrames<C>>>::Output;
    type Error = <Config as OutboundConnectionUpgrade<SplitFrames<C>>>::Error;
    type Future = <Config as OutboundConnectionUpgrade<SplitFrames<C>>>::Future;

    fn upgrade_outbound(self, socket: C, info: Self::Info) -> Self::Future {
        self.0.upgrade_outbound(SplitFrames::new(socket), info)
    }
}

/// A connection whose arriving frames are split.
pub(super) struct SplitFrames<C> {
    socket: C,
    /// Bytes read from the socket. The bytes in the range `unsplit` have not been split.
    ahead: Box<[u8]>,
    unsplit: Range<usize>,
    splitter: FrameSplitter,
}

impl<C> SplitFrames<C> {
    fn new(socket: C) -> Self {
        let ahead = vec![0; AHEAD].into_boxed_slice();
        Self { socket, ahead, unsplit: 0..0, splitter: FrameSplitter::default() }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for SplitFrames<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            let mut input = &this.ahead[this.unsplit.clone()];
            let written = this.splitter.split(&mut input, into)?;
            this.unsplit.start = this.unsplit.end - input.len();
            if written > 0 {
                return Poll::Ready(Ok(written));
            }
            let read = ready!(Pin::new(&mut this.socket).poll_read(cx, &mut this.ahead))?;
            if read == 0 {
                return Poll::Ready(Ok(0));
            }
            this.unsplit = 0..read;
        }
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for SplitFrames<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

/// Splits the data frames that a connection receives. A frame is a header (the stream's number
/// times 8, plus the type), a length, and data of this length.
#[derive(Debug, Default)]
struct FrameSplitter {
    /// The varint that is being read: its value so far, and the number of bits so far.
    value: u64,
    bits: u32,
    /// The header of the frame whose length is being read.
    next: Option<u64>,
    /// The header of the current frame.
    header: u64,
    /// Maximum number of data bytes in a part of the current frame.
    part_max: u64,
    /// Number of bytes that have yet to arrive: of the current part, and of the rest of the frame.
    part_left: u64,
    frame_left: u64,
    /// The encoded header and length of the current part. The first `passed` bytes are written
    /// already.
    head: Vec<u8>,
    passed: usize,
}

impl FrameSplitter {
    /// Moves bytes from `input` to `out`, and adds the headers of parts. Ends once `input` is empty
    /// or `out` is full, and returns the number of bytes in `out`.
    fn split(&mut self, input: &mut &[u8], out: &mut [u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < out.len() {
            let rest = &mut out[written..];
            let head = &self.head[self.passed..];
            if !head.is_empty() {
                let count = head.len().min(rest.len());
                rest[..count].copy_from_slice(&head[..count]);
                self.passed += count;
                written += count;
            } else if self.part_left > 0 {
                let count = rest.len().min(input.len());
                let count = count.min(usize::try_from(self.part_left).unwrap_or(usize::MAX));
                if count == 0 {
                    break;
                }
                let (arrived, behind) = input.split_at(count);
                rest[..count].copy_from_slice(arrived);
                *input = behind;
                self.part_left -= count as u64;
                written += count;
            } else if self.frame_left > 0 {
                self.begin_part();
            } else {
                let Some((&byte, behind)) = input.split_first() else { break };
                *input = behind;
                self.read_head(byte)?;
            }
        }
        Ok(written)
    }

    /// Reads a byte of a frame's header or length.
    fn read_head(&mut self, byte: u8) -> io::Result<()> {
        if self.bits >= u64::BITS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a number is too long"));
        }
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        if byte & 0x80 != 0 {
            return Ok(());
        }
        let value = std::mem::take(&mut self.value);
        self.bits = 0;
        let Some(header) = self.next.take() else {
            self.next = Some(value);
            return Ok(());
        };
        let has_data = matches!(header & 7, 1 | 2);
        self.header = header;
        self.frame_left = value;
        self.part_max = if has_data && value <= FRAME_MAX { DATA_MAX } else { u64::MAX };
        self.begin_part();
        Ok(())
    }

    fn begin_part(&mut self) {
        self.part_left = self.frame_left.min(self.part_max);
        self.frame_left -= self.part_left;
        self.head.clear();
        self.passed = 0;
        put_varint(&mut self.head, self.header);
        put_varint(&mut self.head, self.part_left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use hark_codec::waku::protobuf::varint;
    use hark_testkit::random::Random;
    use libp2p::core::StreamMuxer as _;

    use super::*;

    /// A frame: its header and its bytes.
    type Frame = (u64, Vec<u8>);

    fn write_frame((header, bytes): &Frame, out: &mut Vec<u8>) {
        put_varint(out, *header);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }

    fn frames(mut bytes: &[u8]) -> Vec<Frame> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let header = varint(&mut bytes).unwrap();
            let len = varint(&mut bytes).unwrap() as usize;
            found.push((header, bytes[..len].to_vec()));
            bytes = &bytes[len..];
        }
        found
    }

    /// Returns the frames that the library receives for one sent frame: a long frame of data
    /// arrives in parts.
    fn parts((header, bytes): &Frame) -> Vec<Frame> {
        let has_data = matches!(header & 7, 1 | 2);
        if !has_data || bytes.len() <= DATA_MAX as usize || bytes.len() > 1 << 20 {
            return vec![(*header, bytes.clone())];
        }
        bytes.chunks(DATA_MAX as usize).map(|part| (*header, part.to_vec())).collect()
    }

    #[test]
    fn frames_of_data_are_split_wherever_the_bytes_are_cut() {
        let mut random = Random::new(5);
        let lens = [0, 1, 200, DATA_MAX - 1, DATA_MAX, DATA_MAX + 1, 5 * DATA_MAX + 7, 1 << 20];
        for pieces in [7, 1_000, 1 << 20] {
            let mut sent: Vec<Frame> = Vec::new();
            for _ in 0..16 {
                let (header, len) = (random.below(1 << 12) as u64, *random.pick(&lens));
                sent.push((header, (0..len).map(|at| (at ^ header) as u8).collect()));
            }
            sent.push((u64::MAX - 6, vec![7; 40_000]));
            sent.push((2, vec![8; (1 << 20) + 1]));
            let (mut bytes, mut received) = (Vec::new(), Vec::new());
            for frame in &sent {
                write_frame(frame, &mut bytes);
            }
            let mut splitter = FrameSplitter::default();
            let mut input = bytes.as_slice();
            while !input.is_empty() {
                let (mut piece, behind) = input.split_at(input.len().min(pieces));
                input = behind;
                loop {
                    let mut out = vec![0; 1 + random.below(2 * pieces)];
                    let written = splitter.split(&mut piece, &mut out).unwrap();
                    received.extend_from_slice(&out[..written]);
                    if written == 0 {
                        break;
                    }
                }
                assert!(piece.is_empty(), "all bytes are passed on");
            }
            let expected: Vec<Frame> = sent.iter().flat_map(parts).collect();
            assert!(frames(&received) == expected, "in pieces of {pieces}");
        }
    }

    #[test]
    fn a_number_that_never_ends_is_refused() {
        let mut splitter = FrameSplitter::default();
        assert!(splitter.split(&mut [0xff; 11].as_slice(), &mut [0; 64]).is_err());
    }

    /// A peer that opens streams and sends data on all of them, without an end.
    struct Flood {
        streams: u64,
        /// Number of the next frame.
        next: u64,
        frame: Vec<u8>,
        /// Bytes that the node has read.
        read: Arc<AtomicUsize>,
    }

    impl AsyncRead for Flood {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            if self.frame.is_empty() {
                let (number, next) = (self.next % self.streams, self.next);
                let is_open = next < self.streams;
                // The most bytes that a stream can leave unread without blocking the connection.
                let len = if is_open { 0 } else { FRAMES_MAX * DATA_MAX as usize };
                let header = number * 8 + if is_open { 0 } else { 2 };
                write_frame(&(header, vec![1; len]), &mut self.frame);
                self.next += 1;
            }
            let count = self.frame.len().min(into.len());
            into[..count].copy_from_slice(&self.frame[..count]);
            self.frame.drain(..count);
            self.read.fetch_add(count, Ordering::Relaxed);
            Poll::Ready(Ok(count))
        }
    }

    impl AsyncWrite for Flood {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn of_a_connection_whose_streams_are_not_read_a_bounded_number_of_bytes_is_held() {
        const STREAMS: usize = 96;
        let read = Arc::new(AtomicUsize::new(0));
        let flood =
            Flood { streams: STREAMS as u64, next: 0, frame: Vec::new(), read: Arc::clone(&read) };
        let upgrade = BoundedMplex::new(STREAMS);
        let mut muxer = upgrade.upgrade_inbound(flood, "/mplex/6.7.0").await.unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let (mut streams, mut idle) = (Vec::new(), 0);
        while idle < 1_000 {
            let before = read.load(Ordering::Relaxed);
            if let Poll::Ready(stream) = Pin::new(&mut muxer).poll_inbound(&mut cx) {
                streams.push(stream.unwrap());
            }
            idle = if read.load(Ordering::Relaxed) == before { idle + 1 } else { 0 };
        }
        assert_eq!(streams.len(), STREAMS);
        let held = read.load(Ordering::Relaxed);
        // Space for the headers of frames, and for the bytes that the two readers have read ahead.
        let slack = 64 << 10;
        assert!(held <= STREAMS * STREAM_UNREAD_MAX + slack, "{held} bytes are held");
        // The node reads from the connection again once the streams are read.
        let mut bytes = vec![0; STREAM_UNREAD_MAX];
        for stream in &mut streams {
            for _ in 0..4 {
                let read = Pin::new(&mut *stream).poll_read(&mut cx, &mut bytes);
                assert!(matches!(read, Poll::Ready(Ok(1..))), "{read:?}");
            }
        }
        for _ in 0..100 {
            assert!(Pin::new(&mut muxer).poll_inbound(&mut cx).is_pending(), "no more streams");
        }
        assert!(read.load(Ordering::Relaxed) > held);
    }
}
