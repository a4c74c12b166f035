//! The bytes of a WebSocket, for frames that no client library sends.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::kit::Relay;

/// A connection with a small receive buffer.
pub(crate) async fn narrow(relay: &Relay) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
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
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {addr}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
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

/// A client's frame.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..65_536 => {
            bytes.push(0xfe);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0xff);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// The first byte and the payload of the server's next frame that is no ping.
pub(crate) async fn answer(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    loop {
        let first = stream.read_u8().await.unwrap();
        let len = match stream.read_u8().await.unwrap() {
            126 => usize::from(stream.read_u16().await.unwrap()),
            127 => stream.read_u64().await.unwrap() as usize,
            len => usize::from(len),
        };
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload).await.unwrap();
        if first != 0x89 {
            return (first, payload);
        }
    }
}
