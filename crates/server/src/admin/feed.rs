//! The sending side of `control.sock`. Every connected process receives answers. A follower, the
//! old process after a takeover, also receives a report whenever a shelf has grown, and all
//! ephemeral records, which are never stored.

use std::io::{self, BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use hark_archive::store::LogPosition;
use hark_archive::{Record, vital};
use parking_lot::Mutex;

use super::protocol::{self, EPHEMERAL, GROWN, mark_bytes};
use super::takeover_parties::Sibling;
use crate::shelf::MovableShelf;

/// The outgoing side of a connection.
pub(super) struct FeedWriter {
    to: Mutex<FeedStream>,
}

struct FeedStream {
    stream: BufWriter<UnixStream>,
    /// The shelves that the connected process follows, each with the last position that was sent.
    followed: Vec<(MovableShelf, LogPosition)>,
}

impl FeedWriter {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self::following(stream, Vec::new())
    }

    /// Creates the outgoing side of a connection to a process that follows these shelves, each from
    /// the given position.
    pub(super) fn following(
        stream: UnixStream,
        followed: Vec<(MovableShelf, LogPosition)>,
    ) -> Self {
        let to = FeedStream { stream: BufWriter::new(stream), followed };
        Self { to: Mutex::new(to) }
    }

    /// Reports the growth of the followed shelves, and then writes an answer about a shelf. So a
    /// follower sends OK to its client only after its own readers see the record.
    pub(super) fn write_answer(&self, what: u8, shelf: &str, body: &[u8]) -> io::Result<()> {
        let mut to = self.to.lock();
        to.report_growth()?;
        protocol::write(&mut to.stream, what, shelf, body)
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.to.lock().stream.flush()
    }

    fn feed(&self, record: Option<&(&str, Box<[u8]>)>) -> io::Result<()> {
        let mut to = self.to.lock();
        to.report_growth()?;
        if let Some((shelf, record)) = record {
            protocol::write(&mut to.stream, EPHEMERAL, shelf, record)?;
        }
        to.stream.flush()
    }
}

impl FeedStream {
    fn report_growth(&mut self) -> io::Result<()> {
        for (MovableShelf { shelf, store }, reported) in &mut self.followed {
            let end = store.end();
            if end != *reported {
                *reported = end;
                protocol::write(&mut self.stream, GROWN, shelf.name(), &mark_bytes(end))?;
            }
        }
        Ok(())
    }
}

/// An ephemeral record, with its shelf; `None` if a shelf has grown.
type FeedItem = Option<(&'static str, Box<[u8]>)>;

/// The feed to a process that follows this process.
pub(super) struct SiblingFeed {
    queue: Sender<FeedItem>,
    waiting: Arc<FeedBacklog>,
    bytes_max: usize,
    stream: UnixStream,
}

#[derive(Default)]
struct FeedBacklog {
    bytes: AtomicUsize,
    grown: AtomicBool,
}

impl SiblingFeed {
    /// Starts a thread that sends until the feed is dropped. This process never waits for the
    /// follower: the follower is disconnected if more than `bytes_max` bytes are waiting.
    pub(super) fn start(
        outbox: Arc<FeedWriter>,
        stream: UnixStream,
        bytes_max: usize,
    ) -> io::Result<Self> {
        let (queue, queued) = channel();
        let waiting = Arc::new(FeedBacklog::default());
        vital::spawn("hark-feed", {
            let waiting = Arc::clone(&waiting);
            move || run(&queued, &waiting, &outbox)
        })?;
        Ok(Self { queue, waiting, bytes_max, stream })
    }

    /// Returns the part of the feed that is about `shelf`.
    pub(super) fn of(self: &Arc<Self>, shelf: &'static str) -> ShelfFeed {
        ShelfFeed { feed: Arc::clone(self), shelf }
    }
}

/// The feed of one shelf to a process that follows this process.
pub(super) struct ShelfFeed {
    feed: Arc<SiblingFeed>,
    shelf: &'static str,
}

fn run(queued: &Receiver<FeedItem>, waiting: &FeedBacklog, outbox: &FeedWriter) {
    while let Ok(record) = queued.recv() {
        // The flag is reset before the ends of the shelves are read, so that any later growth
        // queues another report.
        waiting.grown.store(false, Ordering::SeqCst);
        // If the connection is broken, the thread that reads from it notices.
        let _ = outbox.feed(record.as_ref());
        waiting.bytes.fetch_sub(record.map_or(0, |(_, record)| record.len()), Ordering::Relaxed);
    }
}

impl Sibling for ShelfFeed {
    fn pass_on(&self, record: &Record<'_>) {
        let SiblingFeed { queue, waiting, bytes_max, stream } = &*self.feed;
        let bytes: Box<[u8]> = record.bytes().into();
        let waiting = waiting.bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if waiting > *bytes_max {
            // Fails if the connection is closed already.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // Cannot fail: the receiving thread ends only once the feed is dropped.
        let _ = queue.send(Some((self.shelf, bytes)));
    }

    fn grown(&self) {
        if !self.feed.waiting.grown.swap(true, Ordering::SeqCst) {
            let _ = self.feed.queue.send(None);
        }
    }
}
