//! The server's end of `control.sock`: two threads a connection, one that reads and submits, one that
//! answers in order.

use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hark_archive::mirror::Lag;
use hark_archive::store::Mark;
use hark_archive::{CommitError, Outcome, Record, Write, vital};
use hark_codec::nostr::Filter;
use hark_networks::nostr::query;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::feed::{Feed, Outbox};
use super::give::Giving;
use super::handover::{Handover, Peer};
use super::process::Process;
use super::protocol::{
    self, COMPACT, EPHEMERAL, ERASE, FAILED, OUTCOME, PEER_FRAME_BYTES_MAX, PROGRESS, PUT, STATS,
    TAKEOVER, TEXT, outcome_bytes,
};
use super::socket;
use crate::Compact;
use crate::metrics::Metrics;
use crate::nostr::Relay;

/// Deletes in one write.
const ERASE_BATCH: usize = 512;

/// The socket while the server runs. Dropping it ends its connections and removes it.
pub(crate) struct Control {
    /// Where it lies now, and where it is to lie.
    bound: PathBuf,
    path: PathBuf,
    listener: Arc<UnixListener>,
    connection: Connection,
    streams: Streams,
    accepting: Option<JoinHandle<()>>,
    followers: watch::Sender<usize>,
}

/// Connections that are open, by number.
type Streams = Arc<Mutex<Vec<(u64, UnixStream, JoinHandle<()>)>>>;

/// An answer that is there, or will be.
type Promise = Receiver<(u8, Vec<u8>)>;

impl Control {
    /// Opens the socket, beside the place where it is to lie.
    pub(crate) fn start(
        path: &Path,
        relay: Arc<Relay>,
        compact: Option<Compact>,
        giving: Option<Arc<Giving>>,
    ) -> io::Result<Self> {
        let (bound, listener) = socket::bind_beside(path)?;
        let listener = Arc::new(listener);
        let stopping = Arc::new(AtomicBool::new(false));
        let connection = Connection { relay, compact, giving, stopping };
        let streams = Streams::default();
        let accepting = vital::spawn("hark-control", {
            let (listener, streams) = (Arc::clone(&listener), Arc::clone(&streams));
            let connection = connection.clone();
            move || accept(&listener, &streams, &connection)
        })?;
        Ok(Self {
            bound,
            path: path.into(),
            listener,
            connection,
            streams,
            accepting: Some(accepting),
            followers: watch::Sender::new(0),
        })
    }

    /// Puts the socket in its place, where that of a dead server or of the one before this may lie;
    /// that the archive has no other is for the store's lock to say.
    pub(crate) fn publish(&mut self) -> io::Result<()> {
        socket::put_in_place(&self.bound, &self.path)?;
        self.bound.clone_from(&self.path);
        Ok(())
    }

    /// How many processes follow this one.
    pub(crate) fn followers(&self) -> watch::Receiver<usize> {
        self.followers.subscribe()
    }

    /// Serves the process that this one has taken over from.
    pub(crate) fn serve_follower(
        &self,
        stream: UnixStream,
        archive: Arc<dyn Handover>,
        begin: Mark,
    ) -> io::Result<()> {
        let ours = stream.try_clone()?;
        let followed = Arc::clone(&archive);
        let outbox = Arc::new(Outbox::following(stream.try_clone()?, followed, begin));
        let bytes_max = self.connection.relay.settings().limits.outbox_bytes_max;
        let feed = Feed::start(Arc::clone(&outbox), stream.try_clone()?, bytes_max)?;
        let feed: Arc<dyn Peer> = Arc::new(feed);
        let (connection, followers) = (self.connection.clone(), self.followers.clone());
        connection.relay.peers.add(Arc::clone(&feed));
        // What has been written since it was said where to begin.
        feed.grown();
        followers.send_modify(|count| *count += 1);
        let thread = vital::spawn("hark-follower", move || {
            match connection.run(&ours, outbox, Some(&feed)) {
                Ok(()) => tracing::info!("the server before this one has ended"),
                Err(error) => tracing::warn!(%error, "the server before this one is gone"),
            }
            connection.relay.peers.remove(&feed);
            let _ = ours.shutdown(std::net::Shutdown::Both);
            archive.followed(None);
            followers.send_modify(|count| *count -= 1);
        })?;
        let mut open = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        open.push((u64::MAX, stream, thread));
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.connection.stopping.store(true, Ordering::Release);
        // Wakes the thread that accepts; a connection would not, where another server's socket lies in
        // the place of this one.
        let woken = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).is_ok();
        let given = || self.connection.giving.as_ref().is_some_and(|giving| giving.is_given());
        let woken = woken || !given() && UnixStream::connect(&self.bound).is_ok();
        if let Some(thread) = self.accepting.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let streams =
            std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner));
        for (_, stream, _) in &streams {
            // Fails where the client has closed it.
            let _ = stream.shutdown(std::net::Shutdown::Read);
        }
        for (_, _, thread) in streams {
            let _ = thread.join();
        }
        // Not earlier: a takeover that was under way has come to an end by now.
        if !given() {
            let _ = std::fs::remove_file(&self.bound);
        }
    }
}

fn accept(listener: &UnixListener, streams: &Streams, connection: &Connection) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if connection.stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let mut open = streams.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, _, thread)| !thread.is_finished());
        if open.len() >= connection.relay.settings().limits.control_connections_max {
            continue;
        }
        let Ok(ours) = stream.try_clone() else { continue };
        let connection = connection.clone();
        let name = format!("hark-control-{number}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let outbox = ours.try_clone().map(|to| Arc::new(Outbox::new(to)));
            if let Err(error) = outbox.and_then(|outbox| connection.run(&ours, outbox, None)) {
                tracing::warn!(%error, "a control connection broke");
            }
            // The other clone is kept for stopping it, so this is what ends the connection.
            let _ = ours.shutdown(std::net::Shutdown::Both);
        });
        if let Ok(thread) = thread {
            open.push((number, stream, thread));
        }
    }
}

#[derive(Clone)]
struct Connection {
    relay: Arc<Relay>,
    compact: Option<Compact>,
    giving: Option<Arc<Giving>>,
    stopping: Arc<AtomicBool>,
}

impl Connection {
    /// Serves a connection; `follower` is the process at its other end, if it follows this one.
    fn run(
        &self,
        stream: &UnixStream,
        outbox: Arc<Outbox>,
        follower: Option<&Arc<dyn Peer>>,
    ) -> io::Result<()> {
        let mut from = BufReader::with_capacity(64 << 10, stream.try_clone()?);
        let (promise, promised) =
            sync_channel::<Promise>(self.relay.settings().limits.control_window);
        let answering = std::thread::Builder::new()
            .name("hark-control-out".into())
            .spawn(move || answer(&promised, &outbox))?;
        let mut body = Vec::new();
        let bytes_max = match follower {
            // What it has let in, its settings have allowed.
            Some(_) => PEER_FRAME_BYTES_MAX,
            None => self.relay.settings().limits.control_frame_bytes_max,
        };
        let result = loop {
            let what = match protocol::read(&mut from, &mut body, bytes_max) {
                Ok(Some(what)) => what,
                Ok(None) => break Ok(()),
                Err(_) if self.stopping.load(Ordering::Acquire) => break Ok(()),
                Err(error) => break Err(error),
            };
            if what == TAKEOVER
                && let Some(giving) = &self.giving
            {
                drop(promise);
                answering.join().unwrap_or(Ok(()))?;
                return giving.serve(&self.relay, from, stream, &self.stopping, &body);
            }
            if what == EPHEMERAL {
                if let Ok(record) = Record::new(&body) {
                    self.relay.live.publish(None, &record);
                    self.relay.peers.pass_on(&record, follower);
                }
                continue;
            }
            // Room for progress, as the answers before this one may not be read yet.
            let (say, said) = sync_channel(4);
            if promise.send(said).is_err() {
                break Ok(());
            }
            self.serve(what, &body, say);
        };
        drop(promise);
        answering.join().unwrap_or(Ok(())).and(result)
    }

    fn serve(&self, what: u8, body: &[u8], say: SyncSender<(u8, Vec<u8>)>) {
        // Sends below fail only where the connection is gone, and the answer with it.
        let answer = match what {
            PUT => return self.put(body, say),
            ERASE => self.erase(body, &say).map(|count| count.to_string()),
            COMPACT => match &self.compact {
                Some(compact) => compact(&mut |line| {
                    let _ = say.send((PROGRESS, line.into()));
                }),
                None => Err("this store has nothing to compact".into()),
            },
            STATS => Ok(self.stats()),
            TAKEOVER => Err("this archive cannot be taken over while it is served".into()),
            other => {
                Err(format!("request {other} is not known; is the other end of this version?"))
            }
        };
        let _ = say.send(match answer {
            Ok(text) => (TEXT, text.into()),
            Err(text) => (FAILED, text.into()),
        });
    }

    fn put(&self, body: &[u8], say: SyncSender<(u8, Vec<u8>)>) {
        // Here and not in the store: a bad record there would fail others in its batch.
        if let Err(error) = Record::new(body).and_then(|record| record.check()) {
            let _ = say.send((FAILED, error.to_string().into()));
            return;
        }
        let refused = say.clone();
        let done = move |result: Result<Outcome, Arc<CommitError>>| {
            let _ = say.try_send(match result {
                Ok(outcome) => (OUTCOME, outcome_bytes(outcome).into()),
                Err(error) => (FAILED, error.to_string().into()),
            });
        };
        if self.relay.writer.submit(Write::Put(body.into()), Box::new(done)).is_err() {
            let _ = refused.send((FAILED, "the archive takes no more writes".into()));
        }
    }

    fn erase(&self, body: &[u8], say: &SyncSender<(u8, Vec<u8>)>) -> Result<u64, String> {
        let mut filter = Filter::default();
        filter.parse(body).map_err(|error| error.to_string())?;
        if filter.search().is_some() {
            return Err("search cannot be deleted by".into());
        }
        let query = query::of(&filter);
        let (mut total, wanted) = (0, query.limit as u64);
        while total < wanted && !self.stopping.load(Ordering::Acquire) {
            let limit = ERASE_BATCH.min((wanted - total) as usize);
            let batch = hark_archive::Query { limit, ..query.clone() };
            let outcome = self.relay.writer.write(Write::Erase(Box::new(batch)));
            match outcome.map_err(|error| error.to_string())? {
                Outcome::Erased(count) if count > 0 => total += count,
                _ => break,
            }
            let _ = say.send((PROGRESS, format!("{total} deleted").into()));
        }
        Ok(total)
    }

    fn stats(&self) -> String {
        let stats = self.relay.store.stats();
        let counters = self.relay.writer.counters();
        let metrics = &self.relay.metrics;
        json!({
            "records": stats.records,
            "dead": stats.dead,
            "bytes": stats.bytes,
            "dead_bytes": stats.dead_bytes,
            "log_bytes": stats.log_bytes,
            "index_bytes": stats.index_bytes,
            "head_records": stats.head_records,
            "segments": stats.segments,
            "oldest": stats.oldest,
            "newest": stats.newest,
            "damaged": stats.damaged,
            "damaged_files": stats.damaged_files,
            "upkeep_failed": stats.upkeep_failed,
            "written_bytes": stats.written_bytes,
            "mirror": stats.mirror.as_ref().map(mirror),
            "batches": counters.batches.read().count(),
            "writes": counters.writes.get(),
            "subscriptions": self.relay.live.len(),
            "connections": metrics.connections_open.get(),
            "outbox_bytes": self.relay.outboxes.bytes(),
            "messages": messages(metrics),
            "resident_bytes": Process::now().resident_bytes,
            "since": metrics.started_s(),
            "trouble": self.relay.trouble(),
        })
        .to_string()
    }
}

fn mirror(lag: &Lag) -> Value {
    json!({
        "in_step": lag.in_step,
        "behind_ms": lag.behind_ms,
        "queued": lag.queued,
        "queued_bytes": lag.queued_bytes,
        "copied": lag.copied,
        "extra": lag.extra,
        "refused": lag.refused,
        "trouble": lag.trouble,
    })
}

/// Messages by verb and by what became of them, as far as there were any.
fn messages(metrics: &Metrics) -> Value {
    let by_verb = metrics.answers().all().map(|(verb, verdicts)| {
        let counts = verdicts.all().map(|(verdict, count)| (verdict, count.get()));
        let counts = counts.filter(|(_, count)| *count > 0);
        let counts: Map<_, _> = counts.map(|(name, count)| (name.into(), count.into())).collect();
        (verb.into(), Value::Object(counts))
    });
    Value::Object(by_verb.collect())
}

/// Writes what was promised, in order; flushes when it has to wait.
fn answer(promised: &Receiver<Promise>, to: &Outbox) -> io::Result<()> {
    loop {
        let promise = if let Ok(promise) = promised.try_recv() {
            promise
        } else {
            to.flush()?;
            match promised.recv() {
                Ok(promise) => promise,
                Err(_) => return Ok(()),
            }
        };
        loop {
            let (what, body) = if let Ok(answer) = promise.try_recv() {
                answer
            } else {
                to.flush()?;
                match promise.recv() {
                    Ok(answer) => answer,
                    Err(_) => (FAILED, b"the archive takes no more writes".to_vec()),
                }
            };
            to.say(what, &body)?;
            if what != PROGRESS {
                break;
            }
        }
    }
}
