//! The feed of a shelf's new records on `control.sock`, for processes on the same machine that send
//! the records to other relays.
//!
//! The server does not wait for such a process. Records that the process does not read in time are
//! dropped, and a frame reports the loss.

use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use hark_archive::Record;
use parking_lot::RwLock;

use super::control_error::{ControlError, broken};
use super::protocol::{
    self, ControlFrame, FAILED, FrameReader, LAGGED, PEER_FRAME_BYTES_MAX, RECORD, TEXT,
};

/// Maximum size of the records that wait for one process, in bytes.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// How long a process may read nothing while records wait. After that, the process is disconnected.
const TAKE_MAX: Duration = Duration::from_secs(10);

/// The processes that are notified of a shelf's new records.
#[derive(Default)]
pub(crate) struct RecordFeeds(RwLock<Vec<Arc<RecordFeed>>>);

/// The feed to one such process.
struct RecordFeed {
    queue: Sender<Box<[u8]>>,
    waiting: Arc<AtomicUsize>,
    lagged: Arc<AtomicBool>,
}

impl RecordFeeds {
    /// Notifies the processes of a durable record.
    pub(crate) fn publish(&self, record: &Record<'_>) {
        for feed in &*self.0.read() {
            let bytes = record.bytes();
            if feed.waiting.load(Ordering::Relaxed) + bytes.len() > WAITING_BYTES_MAX {
                feed.lagged.store(true, Ordering::Relaxed);
                continue;
            }
            feed.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
            // Fails if the process has just ended.
            let _ = feed.queue.send(bytes.into());
        }
    }

    /// Serves a process until it closes the connection, or `from` is shut down.
    pub(super) fn serve(
        &self,
        shelf: &'static str,
        mut from: BufReader<UnixStream>,
        to: UnixStream,
    ) -> io::Result<()> {
        to.set_write_timeout(Some(TAKE_MAX))?;
        let (queue, queued) = channel();
        let (waiting, lagged) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let feed = RecordFeed { queue, waiting: Arc::clone(&waiting), lagged: Arc::clone(&lagged) };
        let (feed, stream) = (Arc::new(feed), to.try_clone()?);
        self.0.write().push(Arc::clone(&feed));
        let sending = std::thread::Builder::new().name("hark-records".into()).spawn({
            move || {
                let sent = send(shelf, &queued, &waiting, &lagged, to);
                // Ends the reading thread.
                let _ = stream.shutdown(std::net::Shutdown::Both);
                sent
            }
        });
        // Without a sending thread, no record leaves the queue, so the feed ends at once.
        let read = match &sending {
            Ok(_) => io::copy(&mut from, &mut io::sink()),
            Err(_) => Ok(0),
        };
        self.0.write().retain(|other| !Arc::ptr_eq(other, &feed));
        drop(feed);
        // A failure to send is ignored: the process may end while it receives a record.
        let _ = sending?.join();
        read.map(|_| ())
    }
}

fn send(
    shelf: &str,
    queued: &Receiver<Box<[u8]>>,
    waiting: &AtomicUsize,
    lagged: &AtomicBool,
    to: UnixStream,
) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(64 << 10, to);
    protocol::write(&mut to, TEXT, shelf, b"new records follow")?;
    loop {
        let record = match queued.try_recv() {
            Ok(record) => record,
            Err(TryRecvError::Disconnected) => return to.flush(),
            Err(TryRecvError::Empty) => {
                to.flush()?;
                match queued.recv() {
                    Ok(record) => record,
                    Err(_) => return Ok(()),
                }
            }
        };
        waiting.fetch_sub(record.len(), Ordering::Relaxed);
        if lagged.swap(false, Ordering::Relaxed) {
            protocol::write(&mut to, LAGGED, shelf, b"")?;
        }
        protocol::write(&mut to, RECORD, shelf, &record)?;
    }
}

/// An entry of a shelf's feed of new records.
#[derive(Debug)]
pub enum FedRecord<'a> {
    /// A record that has become durable.
    Record(Record<'a>),
    /// The server has left out some records, because they were not read in time. Older records that
    /// are still queued may follow.
    Lagged,
    /// No record has come for a while.
    Quiet,
}

/// The receiving end of a shelf's new records.
pub struct RecordStream {
    from: BufReader<UnixStream>,
}

impl RecordStream {
    pub(super) fn new(mut from: BufReader<UnixStream>) -> Result<Self, ControlError> {
        let mut frame = ControlFrame::default();
        if !frame.read(&mut from, PEER_FRAME_BYTES_MAX)? {
            return Err(broken("no answer before the end of the connection"));
        }
        match frame.what {
            TEXT => Ok(Self { from }),
            FAILED => Err(ControlError::Refused(frame.text().into_owned())),
            _ => Err(broken("an answer of an unexpected type")),
        }
    }

    /// Passes each entry of the feed to `each` until `stop` is set. Checks `stop`, and reports that
    /// no record has come, every `look_every`. The end of the connection is an error.
    pub fn read_for(
        &mut self,
        look_every: Duration,
        stop: &AtomicBool,
        each: &mut dyn FnMut(FedRecord<'_>),
    ) -> Result<(), ControlError> {
        self.from.get_ref().set_read_timeout(Some(look_every))?;
        let mut frames = FrameReader::default();
        while !stop.load(Ordering::Relaxed) {
            let frame = match frames.read(&mut self.from, PEER_FRAME_BYTES_MAX) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Err(broken("the end")),
                Err(error) if is_timeout(&error) => {
                    each(FedRecord::Quiet);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match (frame.what, Record::new(frame.body())) {
                (LAGGED, _) => each(FedRecord::Lagged),
                (RECORD, Ok(record)) => each(FedRecord::Record(record)),
                _ => return Err(broken("an entry that is not a record")),
            }
        }
        Ok(())
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
