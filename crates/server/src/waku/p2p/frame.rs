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
    let mut first = [0];
    if stream.read(&mut first).await? == 0 {
        return Ok(None);
    }
    in_time(async {
        let (mut head, mut used) = ([first[0], 0, 0, 0, 0], 1);
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
        let room = room(len).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "too many long messages at a time; try again",
            )
        })?;
        // The buffer grows as bytes arrive, so a claimed length alone allocates no memory.
        let mut message = Vec::with_capacity(len.min(512));
        let read = stream.take(len as u64).read_to_end(&mut message).await?;
        if read < len {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Ok(Some((message, room)))
        }
    })
    .await
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
