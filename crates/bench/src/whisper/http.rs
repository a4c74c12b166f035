//! Queries a server of Hark over HTTP (`POST /whisper/messages`).

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hark_codec::hex;

use super::answer::AnswerBuffer;
use super::questions::QuestionForm;
use super::store::{StoreQuestion, WantedTopics};
use super::ways::{AnswerWay, EnvelopeAsker};

/// Maximum time without a byte from the server.
const SILENCE_MAX: Duration = Duration::from_mins(2);
/// Number of bytes read from a connection at a time.
const READ_BYTES: usize = 256 << 10;
/// Maximum length of a line of HTTP.
const LINE_MAX: u64 = 16 << 10;
/// Maximum length of an envelope.
const ENVELOPE_MAX: usize = 16 << 20;

/// Returns the ways that query the server at this URL: by topics, and by bloom filter.
pub(super) fn ways<'a>(url: &str) -> anyhow::Result<[AnswerWay<'a>; 2]> {
    let host = url.strip_prefix("http://").with_context(|| {
        format!("{url} is not the address of a server; it looks like http://127.0.0.1:8548")
    })?;
    let host = host.trim_end_matches('/').to_owned();
    let way = |name, form| {
        let host = host.clone();
        AnswerWay {
            name,
            form,
            is_own: true,
            open: Box::new(move || Ok(Box::new(HttpAsker::connect(&host)?))),
        }
    };
    Ok([
        way("Hark over HTTP, topics", QuestionForm::Topics),
        way("Hark over HTTP, bloom", QuestionForm::Bloom),
    ])
}

/// A persistent connection.
struct HttpAsker {
    host: String,
    stream: BufReader<TcpStream>,
    rlp: Vec<u8>,
}

impl HttpAsker {
    fn connect(host: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(host)
            .with_context(|| format!("the server at {host} could not be reached"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        Ok(Self { host: host.into(), stream, rlp: Vec::new() })
    }
}

impl EnvelopeAsker for HttpAsker {
    fn ask(&mut self, question: &StoreQuestion, answer: &mut AnswerBuffer) -> anyhow::Result<()> {
        let (order, body) =
            (if question.newest_first { "newest" } else { "oldest" }, json(question));
        let request = format!(
            "POST /whisper/messages?order={order} HTTP/1.1\r\nHost: {}\r\nContent-Type: \
             application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let status = line(&mut self.stream)?;
        while !line(&mut self.stream)?.is_empty() {}
        ensure!(status.starts_with("HTTP/1.1 200"), "the server answers {status}");
        let mut body = ChunkedBody { stream: &mut self.stream, left: 0, is_done: false };
        loop {
            let mut head = [0; 4];
            body.read_exact(&mut head).context("the answer has no end")?;
            let len = u32::from_be_bytes(head) as usize;
            if len == 0 {
                break;
            }
            ensure!(len <= ENVELOPE_MAX, "an envelope of {len} bytes");
            self.rlp.resize(len, 0);
            body.read_exact(&mut self.rlp)?;
            answer.push(&self.rlp);
        }
        let mut end = Vec::new();
        body.read_to_end(&mut end)?;
        if end.windows(6).any(|six| six == b"ERROR=") {
            bail!("the server ends the answer with {}", String::from_utf8_lossy(&end));
        }
        Ok(())
    }
}

/// The body of a request.
fn json(question: &StoreQuestion) -> String {
    let digits = |bytes: &[u8]| {
        let mut out = Vec::new();
        hex::encode_into(bytes, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    };
    let (from, to) = question.times_s;
    let mut body = format!("{{\"from\":{from},\"to\":{to}");
    // Writing to a string does not fail.
    let _ = match &question.wanted {
        WantedTopics::Topics(topics) => {
            let topics: Vec<_> =
                topics.iter().map(|topic| format!("\"{}\"", digits(topic))).collect();
            write!(body, ",\"topics\":[{}]", topics.join(","))
        }
        WantedTopics::Bloom(bloom) => write!(body, ",\"bloom\":\"{}\"", digits(&bloom.0)),
    };
    if let Some(limit) = question.limit {
        let _ = write!(body, ",\"limit\":{limit}");
    }
    body + "}"
}

/// Reads a line without its line break.
fn line(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    stream.take(LINE_MAX).read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.into()),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// The content of a body in chunks (RFC 9112, 7.1).
struct ChunkedBody<'a> {
    stream: &'a mut BufReader<TcpStream>,
    /// Number of bytes left of the current chunk.
    left: usize,
    is_done: bool,
}

impl Read for ChunkedBody<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && !self.is_done {
            let size = line(self.stream)?;
            let wrong = |_| std::io::Error::other(format!("{size:?} is no length of a chunk"));
            self.left = usize::from_str_radix(&size, 16).map_err(wrong)?;
            self.is_done = self.left == 0;
            if self.is_done {
                line(self.stream)?;
            }
        }
        if self.is_done || out.is_empty() {
            return Ok(0);
        }
        let len = out.len().min(self.left);
        let read = self.stream.read(&mut out[..len])?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= read;
        if self.left == 0 {
            line(self.stream)?;
        }
        Ok(read)
    }
}
