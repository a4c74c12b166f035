//! The server itself, killed under load: every event that got its OK is there afterwards.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use hark_archive::{Id, Store as _};
use hark_codec::crypto::Keys;
use hark_codec::hex;
use hark_codec::nostr::Draft;
use hark_store_embedded::{Embedded, Options};
use hark_testkit::disk::scratch;
use hark_testkit::random::Random;

/// A server, ended by its own id if the test fails.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary on this archive, with nothing of ours in its environment.
fn hark(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hark"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HARK_") {
            command.env_remove(name);
        }
    }
    command.arg("--data").arg(data).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl Server {
    fn start(data: &Path, config: &Path) -> Self {
        let mut command = hark(data);
        command.args(["serve", "--listen", "127.0.0.1:0", "--unlimited", "--config"]).arg(config);
        let mut child = command.stderr(Stdio::null()).spawn().expect("the binary runs");
        let mut first = String::new();
        let stdout = child.stdout.take().expect("is piped");
        BufReader::new(stdout).read_line(&mut first).expect("it says something");
        let address = first.trim().strip_prefix("listening on ws://").unwrap_or_default().into();
        let server = Self { child, address };
        assert!(!server.address.is_empty(), "the server does not start: {first:?}");
        server
    }
}

/// A WebSocket, after its handshake.
fn connect(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connects");
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("asks");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("is answered");
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    stream
}

/// A text frame as clients send it, with a mask of zeros.
fn frame(text: &[u8]) -> Vec<u8> {
    let mut out = vec![0x81];
    let len = u16::try_from(text.len()).expect("no event here is longer");
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

/// The text of the next frame; `None` once the server is gone.
fn read(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    let len = match head[1] & 0x7f {
        126 => {
            let mut len = [0; 2];
            stream.read_exact(&mut len).ok()?;
            usize::from(u16::from_be_bytes(len))
        }
        127 => {
            let mut len = [0; 8];
            stream.read_exact(&mut len).ok()?;
            u64::from_be_bytes(len) as usize
        }
        len => usize::from(len),
    };
    let mut text = vec![0; len];
    stream.read_exact(&mut text).ok()?;
    Some(text)
}

/// Publishes until the server is killed; the ids that got their OK.
fn load(address: &str, round: u64, now: u64) -> Vec<Id> {
    let mut stream = connect(address);
    let mut replies = BufReader::new(stream.try_clone().expect("is cloned"));
    let (sent, unanswered) = mpsc::sync_channel::<()>(400);
    let replies = std::thread::spawn(move || {
        let mut acknowledged = Vec::new();
        while let Some(text) = read(&mut replies) {
            let Some(reply) = text.strip_prefix(b"[\"OK\",\"") else { continue };
            let (id, verdict) = reply.split_at(64);
            assert!(verdict.starts_with(b"\",true"), "{}", String::from_utf8_lossy(&text));
            acknowledged.push(hex::decode_32(id).expect("an id"));
            let _ = unanswered.recv();
        }
        acknowledged
    });
    let keys = Keys::from_secret([9; 32]).expect("a key");
    for n in 0u64.. {
        let content = format!("round {round}, note {n} {}", "x".repeat((n % 200) as usize));
        let mut message = b"[\"EVENT\",".to_vec();
        let created_at = now - n % 1_000;
        Draft { created_at, kind: 1, tags: &[&["t", "load"]], content: &content }
            .sign(&keys, &mut message);
        message.push(b']');
        if stream.write_all(&frame(&message)).is_err() || sent.send(()).is_err() {
            break;
        }
    }
    drop((stream, sent));
    replies.join().expect("replies were read")
}

#[test]
fn every_event_that_got_its_ok_is_there_after_kill_9() {
    let root = scratch("kill");
    let data: PathBuf = root.join("data");
    std::fs::create_dir_all(&root).expect("is made");
    let config = root.join("hark.toml");
    // Small heads, so that sealing and merging are killed as well.
    std::fs::write(&config, "[archive]\nseal_records = 1000\n").expect("is written");
    let mut random = Random::new(2);
    let mut acknowledged: Vec<Id> = Vec::new();
    let rounds = if super::long() { 20 } else { 5 };
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    for round in 0..rounds {
        let mut server = Server::start(&data, &config);
        let address = server.address.clone();
        let loading = std::thread::spawn(move || load(&address, round, now));
        std::thread::sleep(Duration::from_millis(300 + random.below(700) as u64));
        server.child.kill().expect("is killed");
        server.child.wait().expect("has ended");
        let fresh = loading.join().expect("the client goes on to the end");
        assert!(!fresh.is_empty(), "no event was acknowledged");
        acknowledged.extend(fresh);

        let server = Server::start(&data, &config);
        let reader = Embedded::open_read_only(&data.join("nostr"), Options::default())
            .expect("opens beside the server");
        let known = |id: &&Id| !reader.knows(id).expect("answers");
        let lost = acknowledged.iter().filter(known).count();
        assert_eq!(lost, 0, "of {} events with an OK, round {round}", acknowledged.len());
        let checked = hark(&data).arg("check").output().expect("runs");
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && said.contains("no faults"), "{said}");
        drop(server);
    }
    println!("{rounds} kills, {} events acknowledged", acknowledged.len());
    // What is left behind in the temporary directory harms nobody.
    let _ = std::fs::remove_dir_all(&root);
}
