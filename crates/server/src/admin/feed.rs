//! What a process tells another on `control.sock`: answers, and to one that follows it also how far
//! the archive has grown and what is passed on.

use std::io::{self, BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hark_archive::store::Mark;
use hark_archive::{Record, vital};

use super::handover::Sibling;
use super::protocol::{self, EPHEMERAL, GROWN, mark_bytes};
use crate::shelf::Movable;

/// The way out of a connection.
pub(super) struct Outbox {
    to: Mutex<To>,
}

struct To {
    stream: BufWriter<UnixStream>,
    /// Shelves in which the other end follows this one, and how far it was told that they have grown.
    followed: Vec<(Movable, Mark)>,
}

impl Outbox {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self::following(stream, Vec::new())
    }

    /// The way to one that follows these shelves, each from that mark on.
    pub(super) fn following(stream: UnixStream, followed: Vec<(Movable, Mark)>) -> Self {
        let to = To { stream: BufWriter::new(stream), followed };
        Self { to: Mutex::new(to) }
    }

    fn to(&self) -> MutexGuard<'_, To> {
        self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an answer about a shelf. Whoever follows has been told of what the answer speaks of
    /// before: so it says OK only when its own readers see the record.
    pub(super) fn say(&self, what: u8, shelf: &str, body: &[u8]) -> io::Result<()> {
        let mut to = self.to();
        to.tell_growth()?;
        protocol::write(&mut to.stream, what, shelf, body)
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.to().stream.flush()
    }

    fn feed(&self, record: Option<&(&str, Box<[u8]>)>) -> io::Result<()> {
        let mut to = self.to();
        to.tell_growth()?;
        if let Some((shelf, record)) = record {
            protocol::write(&mut to.stream, EPHEMERAL, shelf, record)?;
        }
        to.stream.flush()
    }
}

impl To {
    fn tell_growth(&mut self) -> io::Result<()> {
        for (Movable { shelf, store }, told) in &mut self.followed {
            let end = store.end();
            if end != *told {
                *told = end;
                protocol::write(&mut self.stream, GROWN, shelf.name(), &mark_bytes(end))?;
            }
        }
        Ok(())
    }
}

/// A record that is passed on, with its shelf; None where a shelf has grown.
type News = Option<(&'static str, Box<[u8]>)>;

/// One that follows this process.
pub(super) struct Feed {
    queue: Sender<News>,
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

    /// Its part for a shelf.
    pub(super) fn of(self: &Arc<Self>, shelf: &'static str) -> ShelfFeed {
        ShelfFeed { feed: Arc::clone(self), shelf }
    }
}

/// One that follows this process, for one shelf.
pub(super) struct ShelfFeed {
    feed: Arc<Feed>,
    shelf: &'static str,
}

fn run(queued: &Receiver<News>, waiting: &Waiting, outbox: &Outbox) {
    while let Ok(record) = queued.recv() {
        // Before the end of the archive is looked at: what comes after is a reason to look again.
        waiting.grown.store(false, Ordering::SeqCst);
        // The connection's own thread sees that it is broken.
        let _ = outbox.feed(record.as_ref());
        waiting.bytes.fetch_sub(record.map_or(0, |(_, record)| record.len()), Ordering::Relaxed);
    }
}

impl Sibling for ShelfFeed {
    fn pass_on(&self, record: &Record<'_>) {
        let Feed { queue, waiting, bytes_max, stream } = &*self.feed;
        let bytes: Box<[u8]> = record.bytes().into();
        let waiting = waiting.bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if waiting > *bytes_max {
            // Fails where it has been closed.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // The thread ends after this.
        let _ = queue.send(Some((self.shelf, bytes)));
    }

    fn grown(&self) {
        if !self.feed.waiting.grown.swap(true, Ordering::SeqCst) {
            let _ = self.feed.queue.send(None);
        }
    }
}
