//! Runs the binary as a server, and opens WebSockets to it, for tests that kill servers, hold
//! thousands of connections, or check every frame.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use hark_archive::Id;
use hark_codec::crypto::KeyPair;
use hark_codec::hex;
use hark_codec::nostr::EventDraft;
use hark_testkit::program::{Process, Program};

/// The longest wait. No step of a test takes this long, even on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A server process, which is killed if the test fails.
pub(crate) struct Server {
    pub(crate) child: Process,
    pub(crate) address: String,
}

/// Returns a command that runs the binary on this archive.
pub(crate) fn hark(data: &Path) -> Program {
    let mut command = Program::new(env!("CARGO_BIN_EXE_hark"));
    command.arg("--data").arg(data).stdout(Stdio::piped());
    command
}

/// Changes a bit of the only stored record of the shelf that has these bytes.
pub(crate) fn damage(shelf: &Path, bytes: &[u8]) {
    for entry in std::fs::read_dir(shelf.join("log")).expect("is there") {
        let path = entry.expect("is there").path();
        let mut log = std::fs::read(&path).expect("is there");
        if let Some(at) = log.windows(bytes.len()).position(|part| part == bytes) {
            log[at] ^= 0x20;
            return std::fs::write(&path, log).expect("is written");
        }
    }
    panic!("no record has these bytes");
}

impl Server {
    pub(crate) fn start(data: &Path, config: &Path) -> Self {
        Self::start_at(data, config, "127.0.0.1:0")
    }

    /// Starts a server that listens on this address.
    pub(crate) fn start_at(data: &Path, config: &Path, listen: &str) -> Self {
        Self::begin(data, config, listen, &["--unlimited"])
    }

    /// Starts a server that enforces its rates.
    pub(crate) fn start_with_rates(data: &Path, config: &Path) -> Self {
        Self::begin(data, config, "127.0.0.1:0", &[])
    }

    /// Starts a server that takes over from the running server.
    pub(crate) fn take_over(data: &Path, config: &Path) -> Self {
        Self::begin(data, config, "127.0.0.1:0", &["--unlimited", "--takeover"])
    }

    fn begin(data: &Path, config: &Path, listen: &str, more: &[&str]) -> Self {
        let mut command = hark(data);
        command.args(["serve", "--listen", listen, "--config"]).arg(config);
        command.args(more);
        let mut child = command.spawn().expect("the binary runs");
        let mut first = String::new();
        let stdout = child.stdout.take().expect("is piped");
        BufReader::new(stdout).read_line(&mut first).expect("it says something");
        let address = first.trim().strip_prefix("listening on ws://").unwrap_or_default().into();
        let server = Self { child, address };
        assert!(!server.address.is_empty(), "the server does not start: {first:?}");
        server
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("is killed");
        self.child.wait().expect("has ended");
    }
}

/// A WebSocket, after its handshake.
pub(crate) struct Socket {
    from: BufReader<TcpStream>,
    to: TcpStream,
}

impl Socket {
    pub(crate) fn connect(address: &str) -> Self {
        Self::try_connect(address).expect("is answered")
    }

    pub(crate) fn try_connect(address: &str) -> io::Result<Self> {
        let mut to = TcpStream::connect(address)?;
        to.set_read_timeout(Some(PATIENCE))?;
        to.set_nodelay(true)?;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        to.write_all(request.as_bytes())?;
        let mut from = BufReader::new(to.try_clone()?);
        let mut line = String::new();
        from.read_line(&mut line)?;
        if !line.starts_with("HTTP/1.1 101") {
            return Err(io::Error::other(format!("answered with {line:?}")));
        }
        while line != "\r\n" && !line.is_empty() {
            line.clear();
            from.read_line(&mut line)?;
        }
        Ok(Self { from, to })
    }

    /// Returns another handle of the same connection, for a thread that only sends.
    pub(crate) fn mouth(&self) -> Mouth {
        Mouth(self.to.try_clone().expect("is cloned"))
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.to.write_all(&frame(0x81, text.as_bytes())).expect("is sent");
    }

    /// Returns the next message, except AUTH challenges. `None` once the connection has ended.
    /// Answers pings.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut head = [0; 2];
            self.exact(&mut head)?;
            let len = match head[1] & 0x7f {
                126 => {
                    let mut len = [0; 2];
                    self.exact(&mut len)?;
                    usize::from(u16::from_be_bytes(len))
                }
                127 => {
                    let mut len = [0; 8];
                    self.exact(&mut len)?;
                    u64::from_be_bytes(len) as usize
                }
                len => usize::from(len),
            };
            let mut text = vec![0; len];
            self.exact(&mut text)?;
            match head[0] & 0xf {
                1 if text.starts_with(b"[\"AUTH\"") => {}
                1 => return Some(text),
                9 => self.to.write_all(&frame(0x8a, &text)).ok()?,
                10 => {}
                _ => return None,
            }
        }
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.from.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                panic!("nothing was received for {PATIENCE:?}");
            }
            read => read.ok(),
        }
    }

    /// The next message as JSON.
    pub(crate) fn json(&mut self) -> serde_json::Value {
        let text = self.receive().expect("the connection holds");
        serde_json::from_slice(&text).expect("is JSON")
    }
}

/// The sending end of a connection.
pub(crate) struct Mouth(TcpStream);

impl Mouth {
    pub(crate) fn say(&mut self, text: &[u8]) -> io::Result<()> {
        self.0.write_all(&frame(0x81, text))
    }
}

/// Returns a frame in the form of clients, with a mask of zeros.
fn frame(first: u8, text: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let len = u16::try_from(text.len()).expect("nothing here is longer");
    if len < 126 {
        out.push(0x80 | len as u8);
    } else {
        out.push(0xfe);
        out.extend_from_slice(&len.to_be_bytes());
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(text);
    out
}

/// An EVENT message, and the event's id.
pub(crate) fn publication(
    who: &KeyPair,
    created_at: u64,
    kind: u16,
    tags: &[&[&str]],
    content: &str,
) -> (Vec<u8>, Id) {
    let mut message = b"[\"EVENT\",".to_vec();
    let id = EventDraft { created_at, kind, tags, content }.sign(who, &mut message);
    message.push(b']');
    (message, id)
}

/// Publishes the messages of `next`, with at most `window` unacknowledged messages, until `next`
/// returns `None` or the connection ends. `answered` gets each OK's id and the rest of the OK.
pub(crate) fn publish(
    mut socket: Socket,
    window: usize,
    mut next: impl FnMut() -> Option<Vec<u8>>,
    mut answered: impl FnMut(Id, &[u8]) + Send,
) {
    let mut mouth = socket.mouth();
    let (sent, unanswered) = mpsc::sync_channel::<()>(window);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The channel has one entry for each message without an answer.
            while unanswered.recv().is_ok() {
                let Some(text) = socket.receive() else { return };
                let reply = text.strip_prefix(b"[\"OK\",\"").unwrap_or_else(|| {
                    panic!("received {}", String::from_utf8_lossy(&text));
                });
                let (id, rest) = reply.split_at(64);
                answered(hex::decode_32(id).expect("an id"), rest);
            }
        });
        while let Some(message) = next() {
            if mouth.say(&message).is_err() || sent.send(()).is_err() {
                return;
            }
        }
        drop(sent);
    });
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs()
}
