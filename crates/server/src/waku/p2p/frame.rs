//! The frames on streams: messages, each preceded by its length as a varint.

use std::io;
use std::time::Duration;

use futures_util::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use hark_codec::waku::protobuf::{put_varint, varint};
use libp2p::Stream;

use super::incoming::StreamPeer;

/// Maximum time to read a message after its first byte, and to write a message.
const MESSAGE_MAX: Duration = Duration::from_secs(30);

/// Reads one message of at most `bytes_max` bytes. Returns `None` if the stream ends before a
/// message.
pub(super) async fn read(stream: &mut Stream, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    read_if(stream, bytes_max, |_| Some(())).await.map(|read| read.map(|(message, ())| message))
}

/// A message that was read, or the length of a message that was discarded.
pub(super) enum ReadFrame {
    Message(Vec<u8>),
    /// The message was too long, and was discarded. It had this number of bytes.
    Discarded(usize),
}

/// Reads one message like [`read`]. A longer message of at most `discarded_max` bytes is read to
/// its end and discarded, so that the messages behind it can be read.
pub(super) async fn read_or_discard(
    stream: &mut Stream,
    bytes_max: usize,
    discarded_max: usize,
) -> io::Result<Option<ReadFrame>> {
    let Some(first) = read_first(stream).await? else { return Ok(None) };
    in_time(async {
        let len = read_len(stream, first, discarded_max.max(bytes_max)).await?;
        if len <= bytes_max {
            return Ok(Some(ReadFrame::Message(read_body(stream, len).await?)));
        }
        let (mut rest, mut bytes) = (len, [0; 4_096]);
        while rest > 0 {
            let part = rest.min(bytes.len());
            stream.read_exact(&mut bytes[..part]).await?;
            rest -= part;
        }
        Ok(Some(ReadFrame::Discarded(len)))
    })
    .await
}

/// Waits until the peer's connection has ended, or the peer sends unrequested data. The end of the
/// stream does not show that the peer has left: yamux reports it both for a reset and for a peer
/// that has only finished sending. No received data accumulates in memory, because this function
/// reads the stream.
pub(super) async fn wait_until_left(reader: &mut (impl AsyncRead + Unpin), peer: &mut StreamPeer) {
    if let Ok(0) = reader.read(&mut [0]).await {
        // The peer has sent its whole request, and may still read the answer.
        peer.disconnected().await;
    }
}

/// Reads one message like [`read`], if `room` returns a permit for the message's length. Returns
/// the permit with the message.
pub(super) async fn read_if<R>(
    stream: &mut Stream,
    bytes_max: usize,
    room: impl FnOnce(usize) -> Option<R>,
) -> io::Result<Option<(Vec<u8>, R)>> {
    let Some(first) = read_first(stream).await? else { return Ok(None) };
    in_time(async {
        let len = read_len(stream, first, bytes_max).await?;
        let room = room(len).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "too many long messages at a time; try again",
            )
        })?;
        Ok(Some((read_body(stream, len).await?, room)))
    })
    .await
}

/// Waits for the first byte of a message. Returns `None` if the stream ends before a message.
async fn read_first(stream: &mut Stream) -> io::Result<Option<u8>> {
    let mut first = [0];
    let read = stream.read(&mut first).await?;
    Ok((read > 0).then_some(first[0]))
}

/// Reads the length of a message, which begins with the byte `first`.
async fn read_len(stream: &mut Stream, first: u8, bytes_max: usize) -> io::Result<usize> {
    let (mut head, mut used) = ([first, 0, 0, 0, 0], 1);
    while head[used - 1] >= 0x80 {
        let Some(next) = head.get_mut(used..=used) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a length too long"));
        };
        stream.read_exact(next).await?;
        used += 1;
    }
    let len = varint(&mut &head[..used]).map_err(io::Error::other)?;
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len > bytes_max {
        let words = format!("a message of {len} bytes, where {bytes_max} are allowed");
        return Err(io::Error::new(io::ErrorKind::InvalidData, words));
    }
    Ok(len)
}

/// Reads the bytes of a message behind its length.
async fn read_body(stream: &mut Stream, len: usize) -> io::Result<Vec<u8>> {
    // The buffer grows as bytes arrive, so a claimed length alone allocates no memory.
    let mut message = Vec::with_capacity(len.min(512));
    let read = stream.take(len as u64).read_to_end(&mut message).await?;
    if read < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(message) }
}

/// Writes one message.
pub(super) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &[u8],
) -> io::Result<()> {
    let mut len = Vec::with_capacity(5);
    put_varint(&mut len, message.len() as u64);
    in_time(async {
        stream.write_all(&len).await?;
        stream.write_all(message).await?;
        stream.flush().await
    })
    .await
}

/// Reads and discards all further data of a stream while `work` runs, so that no data accumulates
/// in memory.
pub(super) async fn discarding(
    reader: &mut (impl AsyncRead + Unpin),
    work: impl Future<Output = ()>,
) {
    let discard = async {
        let mut bytes = [0; 4_096];
        while !matches!(reader.read(&mut bytes).await, Ok(0) | Err(_)) {}
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = work => {}
        () = discard => {}
    }
}

/// Closes the sending side of a stream.
pub(super) async fn end(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    in_time(stream.close()).await
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(MESSAGE_MAX, work).await {
        Ok(done) => done,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn data_behind_a_request_is_read_while_the_answer_waits() {
        let mut behind = Cursor::new(vec![0; 1 << 20]);
        let waits = async {
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
        };
        discarding(&mut behind, waits).await;
        assert_eq!(behind.position(), 1 << 20);
    }
}
