//! What a process tells another on `control.sock`: answers, and to one that follows it also how far
//! the archive has grown and what is passed on.

use std::io::{self, BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hark_archive::store::Mark;
use hark_archive::{Record, vital};

use super::handover::{Handover, Peer};
use super::protocol::{self, EPHEMERAL, GROWN, mark_bytes};

/// The way out of a connection.
pub(super) struct Outbox {
    to: Mutex<To>,
    /// Whose growth is told, where the other end follows it.
    followed: Option<Arc<dyn Handover>>,
}

struct To {
    stream: BufWriter<UnixStream>,
    told: Mark,
}

impl Outbox {
    pub(super) fn new(stream: UnixStream) -> Self {
        let to = To { stream: BufWriter::new(stream), told: Mark::default() };
        Self { to: Mutex::new(to), followed: None }
    }

    /// The way to one that follows from that mark on.
    pub(super) fn following(stream: UnixStream, archive: Arc<dyn Handover>, told: Mark) -> Self {
        let to = To { stream: BufWriter::new(stream), told };
        Self { to: Mutex::new(to), followed: Some(archive) }
    }

    fn to(&self) -> MutexGuard<'_, To> {
        self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an answer. Whoever follows has been told of what the answer speaks of before: so it
    /// says OK only when its own readers see the record.
    pub(super) fn say(&self, what: u8, body: &[u8]) -> io::Result<()> {
        let mut to = self.to();
        self.tell_growth(&mut to)?;
        protocol::write(&mut to.stream, what, body)
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.to().stream.flush()
    }

    fn tell_growth(&self, to: &mut To) -> io::Result<()> {
        let Some(archive) = &self.followed else { return Ok(()) };
        let end = archive.end();
        if end == to.told {
            return Ok(());
        }
        to.told = end;
        protocol::write(&mut to.stream, GROWN, &mark_bytes(end))
    }

    fn feed(&self, record: Option<&[u8]>) -> io::Result<()> {
        let mut to = self.to();
        self.tell_growth(&mut to)?;
        if let Some(record) = record {
            protocol::write(&mut to.stream, EPHEMERAL, record)?;
        }
        to.stream.flush()
    }
}

/// One that follows this process.
pub(super) struct Feed {
    queue: Sender<Option<Box<[u8]>>>,
    waiting: Arc<Waiting>,
    bytes_max: usize,
    stream: UnixStream,
}

#[derive(Default)]
struct Waiting {
    bytes: AtomicUsize,
    grown: AtomicBool,
}

impl Feed {
    /// Starts to tell; ends when it is dropped. One that takes too little is cut off: this process
    /// waits for nobody.
    pub(super) fn start(
        outbox: Arc<Outbox>,
        stream: UnixStream,
        bytes_max: usize,
    ) -> io::Result<Self> {
        let (queue, queued) = channel();
        let waiting = Arc::new(Waiting::default());
        vital::spawn("hark-feed", {
            let waiting = Arc::clone(&waiting);
            move || run(&queued, &waiting, &outbox)
        })?;
        Ok(Self { queue, waiting, bytes_max, stream })
    }
}

fn run(queued: &Receiver<Option<Box<[u8]>>>, waiting: &Waiting, outbox: &Outbox) {
    while let Ok(record) = queued.recv() {
        // Before the end of the archive is looked at: what comes after is a reason to look again.
        waiting.grown.store(false, Ordering::SeqCst);
        // The connection's own thread sees that it is broken.
        let _ = outbox.feed(record.as_deref());
        waiting.bytes.fetch_sub(record.map_or(0, |record| record.len()), Ordering::Relaxed);
    }
}

impl Peer for Feed {
    fn pass_on(&self, record: &Record<'_>) {
        let bytes: Box<[u8]> = record.bytes().into();
        let waiting = self.waiting.bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if waiting > self.bytes_max {
            // Fails where it has been closed.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
        // The thread ends after this.
        let _ = self.queue.send(Some(bytes));
    }

    fn grown(&self) {
        if !self.waiting.grown.swap(true, Ordering::SeqCst) {
            let _ = self.queue.send(None);
        }
    }
}
