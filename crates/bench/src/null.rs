//! `hark bench null`: a relay that does nothing. The relay answers a REQ from memory: the
//! subscription's id gives the number of events and bytes. The relay copies an EVENT to all
//! subscriptions to the event's author. The cost of this relay is therefore the minimum on this
//! machine for reading a question and writing the answer, or for delivering an event. `hark bench
//! query` and `hark bench fanout` start such a relay and measure it beside the target.
//!
//! Each connection has a blocking thread. A question takes two system calls, and an event takes one
//! for each receiving connection. A relay that serves many connections with few threads needs more
//! system calls.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::RwLock;

use crate::args::NullArgs;
use crate::requests::{RequestFrames, request_named};
use crate::websocket::{TEXT, Url, head, put_server_text};

/// Maximum length of a question and of an answer, in bytes.
const BYTES_MAX: usize = 64 << 20;

pub(crate) fn run(args: &NullArgs) -> anyhow::Result<ExitCode> {
    let listener = TcpListener::bind(("127.0.0.1", args.port))
        .with_context(|| format!("port {} is not free", args.port))?;
    let listeners = Arc::new(ListeningStreams::default());
    println!("ws://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    for stream in listener.incoming() {
        let stream = Arc::new(stream?);
        let listeners = Arc::clone(&listeners);
        std::thread::spawn(move || {
            // The bench that sends the load reports a broken connection.
            let _ = serve(&stream, &listeners);
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// The connections that subscribe to each author.
#[derive(Default)]
struct ListeningStreams(RwLock<HashMap<Vec<u8>, Vec<ListeningStream>>>);

struct ListeningStream {
    stream: Arc<TcpStream>,
    subscriptions: Vec<Vec<u8>>,
}

impl ListeningStreams {
    fn add(&self, stream: &Arc<TcpStream>, author: &[u8], subscription: &[u8]) {
        let mut all = self.0.write();
        let of = all.entry(author.to_vec()).or_default();
        let at = of.iter().position(|listener| Arc::ptr_eq(&listener.stream, stream));
        let at = at.unwrap_or_else(|| {
            of.push(ListeningStream { stream: Arc::clone(stream), subscriptions: Vec::new() });
            of.len() - 1
        });
        of[at].subscriptions.push(subscription.to_vec());
    }

    /// Copies an event to the subscriptions to its author.
    fn deliver(&self, author: &[u8], event: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
        let all = self.0.read();
        for listener in all.get(author).into_iter().flatten() {
            out.clear();
            for subscription in &listener.subscriptions {
                let parts = [&b"[\"EVENT\",\""[..], subscription, b"\",", event, b"]"];
                put_server_text(out, &parts);
            }
            (&*listener.stream).write_all(out)?;
        }
        Ok(())
    }
}

/// Answers one connection, until it ends.
fn serve(stream: &Arc<TcpStream>, listeners: &ListeningStreams) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::with_capacity(64 << 10);
    let mut buffer = vec![0; 64 << 10];
    let is_whole = |read: &[u8]| read.windows(4).any(|four| four == b"\r\n\r\n");
    while !is_whole(&read) {
        let count = (&**stream).read(&mut buffer)?;
        if count == 0 || read.len() > BYTES_MAX {
            return Ok(());
        }
        read.extend_from_slice(&buffer[..count]);
    }
    // The bench sends nothing before this answer, and does not check the key.
    read.clear();
    (&**stream).write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    )?;
    let mut answers: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut out = Vec::new();
    loop {
        let mut at = 0;
        while let Some(frame) = head(&read[at..]) {
            let end = at + frame.len + frame.payload;
            if frame.payload > BYTES_MAX || frame.opcode != TEXT {
                return Ok(());
            }
            let Some(text) = read.get(at + frame.len..end) else { break };
            if let Some(sub) = subscription(text) {
                if let Some(author) = value_after(text, b"\"authors\":[\"") {
                    listeners.add(stream, author, sub);
                }
                let sub = sub.to_vec();
                let answer = answers.entry(sub).or_insert_with_key(|sub| answer(sub));
                (&**stream).write_all(answer)?;
            } else if let Some(event) = event(text)
                && let Some(author) = value_after(event, b"\"pubkey\":\"")
                && let Some(id) = value_after(event, b"\"id\":\"")
            {
                listeners.deliver(author, event, &mut out)?;
                out.clear();
                put_server_text(&mut out, &[b"[\"OK\",\"", id, b"\",true,\"\"]"]);
                (&**stream).write_all(&out)?;
            }
            at = end;
        }
        read.drain(..at);
        let count = (&**stream).read(&mut buffer)?;
        if count == 0 || read.len() > BYTES_MAX {
            return Ok(());
        }
        read.extend_from_slice(&buffer[..count]);
    }
}

/// Returns the subscription id of a REQ; `None` for any other message.
fn subscription(text: &[u8]) -> Option<&[u8]> {
    let rest = text.strip_prefix(b"[\"REQ\",\"")?;
    rest.get(..rest.iter().position(|byte| *byte == b'"')?)
}

/// Returns the event of an EVENT; `None` for any other message.
fn event(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"[\"EVENT\",")?.strip_suffix(b"]")
}

/// Returns the text between the first `key` and the next quotation mark.
fn value_after<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(key.len()).position(|part| part == key)? + key.len();
    let rest = &text[at..];
    rest.get(..rest.iter().position(|byte| *byte == b'"')?)
}

/// Returns the subscription id that asks the null relay for an answer of this many events and
/// bytes: the id contains both numbers.
fn name(events: u64, bytes: u64) -> String {
    format!("n{events}x{bytes}")
}

/// Makes the answer to a REQ with this subscription id, as frames: events of equal length, then
/// EOSE.
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
        put_server_text(&mut out, &[text.as_bytes()]);
        left = left.saturating_sub(each);
    }
    put_server_text(&mut out, &[eose.as_bytes()]);
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
            .args(["null", "--port", "0"])
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
        // The process has no data to lose, and may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a question of the same length as `asked`. The answer has this number of events and bytes.
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

    #[test]
    fn an_event_is_copied_to_each_subscription_to_its_author() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Arc::new(listener.accept().unwrap().0);
        let listeners = ListeningStreams::default();
        let text = br#"["REQ","s1",{"authors":["aa"],"kinds":[1]}]"#;
        for sub in [subscription(text).unwrap(), b"s2"] {
            listeners.add(&stream, value_after(text, b"\"authors\":[\"").unwrap(), sub);
        }
        let event = event(br#"["EVENT",{"id":"01","pubkey":"aa"}]"#).unwrap();
        listeners.deliver(b"bb", event, &mut Vec::new()).unwrap();
        listeners
            .deliver(value_after(event, b"\"pubkey\":\"").unwrap(), event, &mut Vec::new())
            .unwrap();
        let mut expected = Vec::new();
        for text in [
            r#"["EVENT","s1",{"id":"01","pubkey":"aa"}]"#,
            r#"["EVENT","s2",{"id":"01","pubkey":"aa"}]"#,
        ] {
            put_server_text(&mut expected, &[text.as_bytes()]);
        }
        let mut seen = vec![0; expected.len()];
        near.read_exact(&mut seen).unwrap();
        assert_eq!(seen, expected);
    }
}
