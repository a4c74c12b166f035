//! The bytes of a WebSocket, for frames that no client library sends.

use hark_testkit::websocket::upgrade_request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::kit::Relay;

/// A connection with a small receive buffer.
pub(crate) async fn narrow(relay: &Relay) -> TcpStream {
    connect_with_buffer(relay, 4_096).await
}

/// A connection with a receive buffer of this size in bytes.
pub(crate) async fn connect_with_buffer(relay: &Relay, bytes: u32) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(bytes).unwrap();
    let addr = relay.url.strip_prefix("ws://").unwrap();
    socket.connect(addr.parse().unwrap()).await.unwrap()
}

/// Requests a WebSocket with further headers. Returns the answer's head and the connection.
pub(crate) async fn upgrade(relay: &Relay, headers: &str) -> (String, TcpStream) {
    let addr = relay.url.strip_prefix("ws://").unwrap();
    upgrade_on(TcpStream::connect(addr).await.unwrap(), headers).await
}

/// Does the same as [`upgrade`] on an open connection.
pub(crate) async fn upgrade_on(mut stream: TcpStream, headers: &str) -> (String, TcpStream) {
    let addr = stream.peer_addr().unwrap();
    let request = upgrade_request(addr, headers);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    (String::from_utf8_lossy(&answer).into_owned(), stream)
}

pub(crate) fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The first byte and the payload of the server's next frame.
pub(crate) async fn next_frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let first = stream.read_u8().await.unwrap();
    let len = match stream.read_u8().await.unwrap() {
        126 => usize::from(stream.read_u16().await.unwrap()),
        127 => stream.read_u64().await.unwrap() as usize,
        len => usize::from(len),
    };
    let mut payload = vec![0; len];
    stream.read_exact(&mut payload).await.unwrap();
    (first, payload)
}

/// The first byte and the payload of the server's next frame, without pings.
pub(crate) async fn answer(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    loop {
        let frame = next_frame(stream).await;
        if frame.0 != 0x89 {
            return frame;
        }
    }
}
