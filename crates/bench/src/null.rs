//! `hark bench null`: a relay that does nothing. It answers a REQ with as many events and bytes as the
//! subscription's id says, from memory, and so costs what reading a question and writing its answer
//! cost at least on this machine. `hark bench query` starts one and measures it beside the relay.
//!
//! A thread for each connection, blocking: two system calls a question, fewer than any relay can do with that
//! serves many connections.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::Context as _;

use crate::args::NullArgs;
use crate::requests::{RequestFrames, request_named};
use crate::websocket::{TEXT, Url, head, put_server_text};

/// The longest question that is read, and the longest answer.
const BYTES_MAX: usize = 64 << 20;

pub(crate) fn run(args: &NullArgs) -> anyhow::Result<ExitCode> {
    let listener = TcpListener::bind(("127.0.0.1", args.port))
        .with_context(|| format!("port {} is not free", args.port))?;
    println!("ws://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            // The driver reports a connection that breaks.
            let _ = serve(stream);
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers one connection, until it ends.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::with_capacity(64 << 10);
    let mut buffer = vec![0; 64 << 10];
    let is_whole = |read: &[u8]| read.windows(4).any(|four| four == b"\r\n\r\n");
    while !is_whole(&read) {
        let count = stream.read(&mut buffer)?;
        if count == 0 || read.len() > BYTES_MAX {
            return Ok(());
        }
        read.extend_from_slice(&buffer[..count]);
    }
    // The driver sends nothing before this answer, and does not check the key.
    read.clear();
    stream.write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    )?;
    let mut answers: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    loop {
        let mut at = 0;
        while let Some(frame) = head(&read[at..]) {
            let end = at + frame.len + frame.payload;
            if frame.payload > BYTES_MAX || frame.opcode != TEXT {
                return Ok(());
            }
            let Some(text) = read.get(at + frame.len..end) else { break };
            if let Some(sub) = subscription(text) {
                let sub = sub.to_vec();
                let answer = answers.entry(sub).or_insert_with_key(|sub| answer(sub));
                stream.write_all(answer)?;
            }
            at = end;
        }
        read.drain(..at);
        let count = stream.read(&mut buffer)?;
        if count == 0 || read.len() > BYTES_MAX {
            return Ok(());
        }
        read.extend_from_slice(&buffer[..count]);
    }
}

/// The subscription's id of a REQ; `None` for any other message.
fn subscription(text: &[u8]) -> Option<&[u8]> {
    let rest = text.strip_prefix(b"[\"REQ\",\"")?;
    rest.get(..rest.iter().position(|byte| *byte == b'"')?)
}

/// The id of a question to which so many events and bytes are the answer.
fn name(events: u64, bytes: u64) -> String {
    format!("n{events}x{bytes}")
}

/// Makes the frames that answer a question of this id: events of equal length, then EOSE.
fn answer(sub: &[u8]) -> Vec<u8> {
    let sub = String::from_utf8_lossy(sub);
    let numbers = sub.strip_prefix('n').and_then(|rest| rest.split_once('x'));
    let (events, bytes) = numbers.map_or((0, 0), |(events, bytes)| {
        (events.parse().unwrap_or(0), bytes.parse::<usize>().unwrap_or(0).min(BYTES_MAX))
    });
    let mut out = Vec::new();
    let eose = format!("[\"EOSE\",\"{sub}\"]");
    let mut left = bytes.saturating_sub(eose.len() + 2);
    for event in (1..=events).rev() {
        let each = left / event;
        let frame_head = if each < 128 { 2 } else { 4 };
        let mut text = format!("[\"EVENT\",\"{sub}\",\"");
        let filler = each.saturating_sub(frame_head + text.len() + 2);
        let _ = write!(text, "{:x<filler$}\"]", "");
        put_server_text(&mut out, text.as_bytes());
        left = left.saturating_sub(each);
    }
    put_server_text(&mut out, eose.as_bytes());
    out
}

/// A relay that does nothing, started for a measurement. Dropping it ends the process.
pub(crate) struct NullRelay {
    child: Child,
    pub(crate) url: Url,
}

impl NullRelay {
    /// Starts this program as a relay that does nothing.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "null", "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("`hark bench null` could not be started")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("it has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let url = line.trim().parse().map_err(anyhow::Error::msg)?;
        Ok(Self { child, url })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for NullRelay {
    fn drop(&mut self) {
        // It holds nothing, and may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a question as long as `asked`, to which so many events and bytes are the answer.
pub(crate) fn question_like(asked: &RequestFrames, events: u64, bytes: u64) -> RequestFrames {
    let sub = name(events, bytes);
    let bare = request_named(sub.clone(), "\"\"").req.len();
    let filler = asked.req.len().saturating_sub(bare);
    request_named(sub, &format!("\"{:x<filler$}\"", ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::request;

    #[test]
    fn an_answer_has_the_events_and_bytes_that_are_asked_for() {
        for (events, bytes) in [(0, 24), (1, 700), (38, 41_000), (500, 527_000), (100, 12_000)] {
            let frames = answer(name(events, bytes).as_bytes());
            assert!(
                frames.len().abs_diff(bytes as usize) <= 2 * events as usize + 8,
                "{events}, {bytes}"
            );
            let (mut at, mut seen) = (0, 0);
            while let Some(frame) = head(&frames[at..]) {
                let text = &frames[at + frame.len..at + frame.len + frame.payload];
                seen += u64::from(text.starts_with(b"[\"EVENT\""));
                at += frame.len + frame.payload;
                assert_eq!(at == frames.len(), text.starts_with(b"[\"EOSE\""));
            }
            assert_eq!(seen, events);
        }
    }

    #[test]
    fn a_question_is_as_long_as_the_one_that_it_stands_for() {
        for filters in ["{}", r#"{"kinds":[1],"limit":100,"authors":["0123456789"]}"#] {
            let asked = request(7, &format!("{filters}{}", " ".repeat(40)));
            assert_eq!(question_like(&asked, 3, 900).req.len(), asked.req.len());
        }
        assert_eq!(subscription(b"[\"REQ\",\"n1x2\",{}]"), Some(&b"n1x2"[..]));
        assert_eq!(subscription(b"[\"CLOSE\",\"n1x2\"]"), None);
    }
}
