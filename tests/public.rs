//! A public relay among hostile clients: memory stays bounded, and other clients are served.
//! `HARK_LONG=1` runs with realistic numbers; `--nocapture` prints the results.

mod attack;
mod memory;
mod reload;
mod together;

use std::io::{self, BufRead as _, BufReader};
use std::net::TcpStream;

fn long() -> bool {
    std::env::var_os("HARK_LONG").is_some()
}

/// Requests a WebSocket with additional headers, each with its line break. Returns the status and
/// the connection.
fn upgrade(address: &str, headers: &str) -> io::Result<(u16, BufReader<TcpStream>)> {
    use std::io::Write as _;
    let mut to = TcpStream::connect(address)?;
    to.set_nodelay(true)?;
    to.set_read_timeout(Some(crate::served::PATIENCE))?;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    to.write_all(request.as_bytes())?;
    // The buffer is small, as there are thousands of connections.
    let mut from = BufReader::with_capacity(256, to);
    let mut line = String::new();
    from.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    while line != "\r\n" && !line.is_empty() {
        line.clear();
        from.read_line(&mut line)?;
    }
    Ok((status.ok_or(io::ErrorKind::UnexpectedEof)?, from))
}

/// Reads a frame, and returns its first byte and its payload.
fn frame(from: &mut BufReader<TcpStream>) -> io::Result<(u8, Vec<u8>)> {
    use std::io::Read as _;
    let mut head = [0; 2];
    from.read_exact(&mut head)?;
    let len = match head[1] & 0x7f {
        126 => {
            let mut len = [0; 2];
            from.read_exact(&mut len)?;
            u64::from(u16::from_be_bytes(len))
        }
        127 => {
            let mut len = [0; 8];
            from.read_exact(&mut len)?;
            u64::from_be_bytes(len)
        }
        len => u64::from(len),
    };
    let mut payload = vec![0; usize::try_from(len).expect("fits")];
    from.read_exact(&mut payload)?;
    Ok((head[0], payload))
}

/// A frame in the form of clients, with a mask of zeros.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        len @ 0..126 => out.push(0x80 | len as u8),
        len @ 126..65_536 => {
            out.push(0xfe);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0xff);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}
