//! The client's end of `control.sock`. Only one process may write to an archive, so all other
//! processes send their writes to the running server. The server's end is in `served`.
//!
//! Any process that can open the socket can write to the archive, so only the server's user may
//! open the socket.

use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use hark_archive::store::StoreStats;
use hark_archive::{Id, Outcome};
use serde_json::{Map, Value, json};

use super::control_error::broken;
use super::protocol::{
    self, BRING, CLIENTS, COMPACT, ControlFrame, DOOR, ERASE, FAILED, FOLLOW, KICK, LINK, MODERATE,
    OUTCOME, PROGRESS, PUT, RELOAD, STATS, TEXT, ids_bytes,
};
use super::socket;
use crate::moderation::ModerationRequest;

pub use super::control_error::ControlError;
pub use super::subscribed::{FedRecord, RecordStream};

/// Maximum number of records of a client that wait for an answer. The answers to this number of
/// records fit into the socket's buffer, so client and server cannot block each other.
const WINDOW: usize = 512;
/// Maximum size of an answer, in bytes. The longest answer lists 200 changed bans or allows, each
/// with the longest possible reason before and after the change.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum number of ids in one ERASE request.
const IDS_MAX: usize = 512;

/// The server's reason for not storing a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WriteRefusal(pub String);

/// A connection to a running server, for requests about one shelf.
pub struct ControlClient {
    shelf: String,
    from: BufReader<UnixStream>,
    to: BufWriter<UnixStream>,
    frame: ControlFrame,
}

impl ControlClient {
    /// Connects to the server whose socket is at `path`, for requests about `shelf`.
    pub fn connect(path: &Path, shelf: &str) -> Result<Self, ControlError> {
        let stream = stream(path)?;
        let from = BufReader::new(stream.try_clone()?);
        let to = BufWriter::with_capacity(64 << 10, stream);
        Ok(Self { shelf: shelf.into(), from, to, frame: ControlFrame::default() })
    }

    /// Sends records. Returns the outcomes in the order of the records, once all records are
    /// durable. An inner error is the server's reason for not storing that record.
    pub fn put_many<R: AsRef<[u8]>>(
        &mut self,
        records: &[R],
    ) -> Result<Vec<Result<Outcome, WriteRefusal>>, ControlError> {
        self.send_many(PUT, records)
    }

    /// Like [`ControlClient::put_many`], for records from another store. If such a record is older
    /// than the retention rules allow, retention keeps the record until the operator decides.
    pub fn import_many<R: AsRef<[u8]>>(
        &mut self,
        records: &[R],
    ) -> Result<Vec<Result<Outcome, WriteRefusal>>, ControlError> {
        self.send_many(BRING, records)
    }

    fn send_many<R: AsRef<[u8]>>(
        &mut self,
        what: u8,
        records: &[R],
    ) -> Result<Vec<Result<Outcome, WriteRefusal>>, ControlError> {
        let mut answers = Vec::with_capacity(records.len());
        for (sent, record) in records.iter().enumerate() {
            if sent - answers.len() == WINDOW {
                self.to.flush()?;
                while sent - answers.len() > WINDOW / 2 {
                    answers.push(self.outcome()?);
                }
            }
            protocol::write(&mut self.to, what, &self.shelf, record.as_ref())?;
        }
        self.to.flush()?;
        while answers.len() < records.len() {
            answers.push(self.outcome()?);
        }
        Ok(answers)
    }

    /// Deletes the records with these ids. Returns how many of these records existed.
    pub fn erase(&mut self, ids: &[Id]) -> Result<u64, ControlError> {
        let mut erased = 0;
        for ids in ids.chunks(IDS_MAX) {
            let answer = self.ask(ERASE, &ids_bytes(ids), &mut |_| {})?;
            let count: u64 = answer.parse().map_err(|_| broken("a count that is not a number"))?;
            erased += count;
        }
        Ok(erased)
    }

    /// Compacts the shelf. `progress` receives lines of progress. Returns a summary.
    pub fn compact(&mut self, progress: &mut dyn FnMut(&str)) -> Result<String, ControlError> {
        self.ask(COMPACT, b"", progress)
    }

    /// Returns the shelf's size and state. The fields are named as in
    /// [`hark_archive::store::StoreStats`].
    pub fn stats(&mut self) -> Result<Value, ControlError> {
        let answer = self.ask(STATS, b"", &mut |_| {})?;
        serde_json::from_str(&answer).map_err(|_| broken("stats that are not JSON"))
    }

    /// Makes the server reload its configuration. Returns a description of the changes. Fails with
    /// the server's reason if the server refuses the configuration.
    pub fn reload(&mut self) -> Result<String, ControlError> {
        self.ask(RELOAD, b"", &mut |_| {})
    }

    /// Returns a page of the open connections that match `filter`, beginning after the connection
    /// with the number `after`; see `PageRequest` of `clients`.
    pub fn clients(&mut self, after: u64, filter: &str) -> Result<Value, ControlError> {
        self.ask_json(CLIENTS, &json!({ "after": after, "filter": filter }))
    }

    /// Closes the connections that `whom` names by an address, a range of addresses, a key, or a
    /// number. The answer has their number as `closed`.
    pub fn kick(&mut self, whom: &str, reason: Option<&str>) -> Result<Value, ControlError> {
        self.ask_json(KICK, &json!({ "whom": whom, "reason": reason }))
    }

    /// Sends a request about bans, allows and the audit log, and returns the answer; see
    /// [`ModerationRequest`].
    pub fn moderate(&mut self, request: &ModerationRequest) -> Result<Value, ControlError> {
        let request = serde_json::to_value(request).map_err(io::Error::other)?;
        self.ask_json(MODERATE, &request)
    }

    /// Returns the report of the shelf's door: its state for operators.
    pub fn door_report(&mut self) -> Result<Value, ControlError> {
        self.ask_json(DOOR, &Value::Null)
    }

    /// Returns a link that logs in once to the page for managers, for the person `maker`: as `url`, or
    /// as `path` if the server does not know the address of the page.
    pub fn admin_link(&mut self, maker: &str) -> Result<Value, ControlError> {
        let answer = self.ask(LINK, maker.as_bytes(), &mut |_| {})?;
        serde_json::from_str(&answer).map_err(|_| broken("an answer that is not JSON"))
    }

    fn ask_json(&mut self, what: u8, body: &Value) -> Result<Value, ControlError> {
        let answer = self.ask(what, body.to_string().as_bytes(), &mut |_| {})?;
        serde_json::from_str(&answer).map_err(|_| broken("an answer that is not JSON"))
    }

    /// Turns the connection into a feed of the shelf's new records. The feed has started when this
    /// function returns: it contains every record that is stored later, or reports that some
    /// records were left out.
    pub fn follow(mut self) -> Result<RecordStream, ControlError> {
        protocol::write(&mut self.to, FOLLOW, &self.shelf, b"")?;
        self.to.flush()?;
        RecordStream::new(self.from)
    }

    fn ask(
        &mut self,
        what: u8,
        body: &[u8],
        progress: &mut dyn FnMut(&str),
    ) -> Result<String, ControlError> {
        protocol::write(&mut self.to, what, &self.shelf, body)?;
        self.to.flush()?;
        loop {
            self.read()?;
            match self.frame.what {
                PROGRESS => progress(&self.frame.text()),
                TEXT => return Ok(self.frame.text().into_owned()),
                FAILED => return Err(ControlError::Refused(self.frame.text().into_owned())),
                _ => return Err(broken("an answer of an unexpected type")),
            }
        }
    }

    fn outcome(&mut self) -> Result<Result<Outcome, WriteRefusal>, ControlError> {
        self.read()?;
        match self.frame.what {
            OUTCOME => protocol::outcome(self.frame.body())
                .map(Ok)
                .ok_or_else(|| broken("an outcome of an unknown form")),
            FAILED => Ok(Err(WriteRefusal(self.frame.text().into_owned()))),
            _ => Err(broken("an answer of an unexpected type")),
        }
    }

    fn read(&mut self) -> Result<(), ControlError> {
        if self.frame.read(&mut self.from, ANSWER_BYTES_MAX)? {
            return Ok(());
        }
        Err(broken("no answer before the end of the connection"))
    }
}

/// The fields of `stats` that `hark stats` shows for every archive, with or without a running
/// server.
pub fn fields(stats: &StoreStats) -> Map<String, Value> {
    let fields = [
        ("records", json!(stats.records)),
        ("dead", json!(stats.dead)),
        ("dead_bytes", json!(stats.dead_bytes)),
        ("free_bytes", json!(stats.free_bytes)),
        ("bytes", json!(stats.bytes)),
        ("log_bytes", json!(stats.log_bytes)),
        ("index_bytes", json!(stats.index_bytes)),
        ("head_records", json!(stats.head_records)),
        ("segments", json!(stats.segments)),
        ("oldest", json!(stats.oldest)),
        ("newest", json!(stats.newest)),
        ("damaged", json!(stats.damaged)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Connects to the server whose socket is at `path`.
pub(super) fn stream(path: &Path) -> Result<UnixStream, ControlError> {
    socket::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::Absent,
        _ => ControlError::Broken(error),
    })
}
