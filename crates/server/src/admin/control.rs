//! `control.sock`: how other processes hand a running server what they would write, as only one
//! process writes an archive. [`Client`] is their end; the server's is in `served`.
//!
//! Whoever can open the socket may write anything: it belongs to the server's user alone.

use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use hark_archive::{Id, Outcome};
use hark_codec::hex;

pub(crate) use super::give::Giving;
pub use super::handover::{Claim, Handover};
use super::protocol::{self, COMPACT, ERASE, FAILED, OUTCOME, PROGRESS, PUT, STATS, TEXT};
pub(crate) use super::served::Control;
pub use super::take::Taking;

/// Records that a client sends before it reads the first answer. Their answers fit into the
/// socket's buffer, so neither side can wait for the other.
const WINDOW: usize = 512;
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Why a running server did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No server runs on this archive.
    #[error("no server answers on control.sock")]
    Absent,
    /// The server said no.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The connection broke.
    #[error("the server's control socket broke: {0}; look at its log")]
    Broken(#[from] io::Error),
}

/// A connection to a running server.
pub struct Client {
    from: BufReader<UnixStream>,
    to: BufWriter<UnixStream>,
    body: Vec<u8>,
}

impl Client {
    /// Connects to the server whose socket lies at `path`.
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let stream = stream(path)?;
        let from = BufReader::new(stream.try_clone()?);
        Ok(Self { from, to: BufWriter::with_capacity(64 << 10, stream), body: Vec::new() })
    }

    /// Hands over records. What became of each comes back in their order, after all are durable;
    /// an error there is the server's word about that record.
    pub fn put_many<R: AsRef<[u8]>>(
        &mut self,
        records: &[R],
    ) -> Result<Vec<Result<Outcome, String>>, ControlError> {
        let mut answers = Vec::with_capacity(records.len());
        for (sent, record) in records.iter().enumerate() {
            if sent - answers.len() == WINDOW {
                self.to.flush()?;
                while sent - answers.len() > WINDOW / 2 {
                    answers.push(self.outcome()?);
                }
            }
            protocol::write(&mut self.to, PUT, record.as_ref())?;
        }
        self.to.flush()?;
        while answers.len() < records.len() {
            answers.push(self.outcome()?);
        }
        Ok(answers)
    }

    /// Deletes what matches a Nostr filter, and says how much that was.
    pub fn erase(&mut self, filter_json: &str) -> Result<u64, ControlError> {
        let answer = self.ask(ERASE, filter_json.as_bytes(), &mut |_| {})?;
        answer.parse().map_err(|_| broken("a count that is none"))
    }

    /// Compacts the archive, with lines of progress, and returns a summary.
    pub fn compact(&mut self, progress: &mut dyn FnMut(&str)) -> Result<String, ControlError> {
        self.ask(COMPACT, b"", progress)
    }

    /// The archive's size and state; fields are named as in [`hark_archive::store::Stats`].
    pub fn stats(&mut self) -> Result<serde_json::Value, ControlError> {
        let answer = self.ask(STATS, b"", &mut |_| {})?;
        serde_json::from_str(&answer).map_err(|_| broken("stats that are no JSON"))
    }

    fn ask(
        &mut self,
        what: u8,
        body: &[u8],
        progress: &mut dyn FnMut(&str),
    ) -> Result<String, ControlError> {
        protocol::write(&mut self.to, what, body)?;
        self.to.flush()?;
        loop {
            let what = self.read()?;
            let text = String::from_utf8_lossy(&self.body);
            match what {
                PROGRESS => progress(&text),
                TEXT => return Ok(text.into_owned()),
                FAILED => return Err(ControlError::Refused(text.into_owned())),
                _ => return Err(broken("an answer to something else")),
            }
        }
    }

    fn outcome(&mut self) -> Result<Result<Outcome, String>, ControlError> {
        match self.read()? {
            OUTCOME => protocol::outcome(&self.body)
                .map(Ok)
                .ok_or_else(|| broken("an outcome that is none")),
            FAILED => Ok(Err(String::from_utf8_lossy(&self.body).into_owned())),
            _ => Err(broken("an answer to something else")),
        }
    }

    fn read(&mut self) -> Result<u8, ControlError> {
        let what = protocol::read(&mut self.from, &mut self.body, ANSWER_BYTES_MAX)?;
        what.ok_or_else(|| broken("the end, before an answer"))
    }
}

/// A connection to the server whose socket lies at `path`.
pub(super) fn stream(path: &Path) -> Result<UnixStream, ControlError> {
    UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::Absent,
        _ => ControlError::Broken(error),
    })
}

/// The filter that [`Client::erase`] takes for these ids.
pub fn ids_filter(ids: &[Id]) -> String {
    let mut filter = String::from("{\"ids\":[");
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            filter.push(',');
        }
        filter.push('"');
        filter.extend(hex::encode_32(id).map(char::from));
        filter.push('"');
    }
    filter.push_str("]}");
    filter
}

pub(super) fn broken(came: &str) -> ControlError {
    io::Error::new(io::ErrorKind::InvalidData, format!("there came {came}")).into()
}
