//! The server's end of `control.sock`: two threads a connection, one that reads and submits, one that
//! answers in order.

use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hark_archive::{CommitError, Outcome, Record, Write};
use hark_codec::nostr::Filter;
use serde_json::{Map, Value, json};

use super::process::Process;
use super::protocol::{
    self, COMPACT, ERASE, FAILED, OUTCOME, PROGRESS, PUT, STATS, TEXT, outcome_bytes,
};
use crate::Compact;
use crate::metrics::Metrics;
use crate::nostr::{Relay, query};

/// Deletes in one write.
const ERASE_BATCH: usize = 512;

/// The socket while the server runs. Dropping it ends its connections and removes it.
pub(crate) struct Control {
    path: PathBuf,
    stopping: Arc<AtomicBool>,
    streams: Streams,
    accepting: Option<JoinHandle<()>>,
}

/// Connections that are open, by number.
type Streams = Arc<Mutex<Vec<(u64, UnixStream, JoinHandle<()>)>>>;

/// An answer that is there, or will be.
type Promise = Receiver<(u8, Vec<u8>)>;

impl Control {
    /// Opens the socket. One that a dead server left behind is replaced; that this archive has no
    /// other living server is for the store's lock to say.
    pub(crate) fn start(
        path: &Path,
        relay: Arc<Relay>,
        compact: Option<Compact>,
    ) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let (stopping, streams) = (Arc::new(AtomicBool::new(false)), Streams::default());
        let accepting = std::thread::Builder::new().name("hark-control".into()).spawn({
            let (stopping, streams) = (Arc::clone(&stopping), Arc::clone(&streams));
            move || accept(&listener, &stopping, &streams, &relay, compact.as_ref())
        })?;
        Ok(Self { path: path.into(), stopping, streams, accepting: Some(accepting) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Wakes the thread that accepts. If that fails the socket is gone, and so is the thread.
        let _ = UnixStream::connect(&self.path);
        if let Some(thread) = self.accepting.take() {
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
        let _ = std::fs::remove_file(&self.path);
    }
}

fn accept(
    listener: &UnixListener,
    stopping: &Arc<AtomicBool>,
    streams: &Streams,
    relay: &Arc<Relay>,
    compact: Option<&Compact>,
) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let mut open = streams.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, _, thread)| !thread.is_finished());
        if open.len() >= relay.settings().limits.control_connections_max {
            continue;
        }
        let Ok(ours) = stream.try_clone() else { continue };
        let connection = Connection {
            relay: Arc::clone(relay),
            compact: compact.cloned(),
            stopping: Arc::clone(stopping),
        };
        let name = format!("hark-control-{number}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            if let Err(error) = connection.run(&ours) {
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

struct Connection {
    relay: Arc<Relay>,
    compact: Option<Compact>,
    stopping: Arc<AtomicBool>,
}

impl Connection {
    fn run(&self, stream: &UnixStream) -> io::Result<()> {
        let mut from = BufReader::with_capacity(64 << 10, stream.try_clone()?);
        let (promise, promised) =
            sync_channel::<Promise>(self.relay.settings().limits.control_window);
        let to = stream.try_clone()?;
        let answering = std::thread::Builder::new()
            .name("hark-control-out".into())
            .spawn(move || answer(&promised, to))?;
        let mut body = Vec::new();
        let bytes_max = self.relay.settings().limits.control_frame_bytes_max;
        let result = loop {
            let what = match protocol::read(&mut from, &mut body, bytes_max) {
                Ok(Some(what)) => what,
                Ok(None) => break Ok(()),
                Err(_) if self.stopping.load(Ordering::Acquire) => break Ok(()),
                Err(error) => break Err(error),
            };
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
            "written_bytes": stats.written_bytes,
            "batches": counters.batches.read().count(),
            "writes": counters.writes.get(),
            "subscriptions": self.relay.live.len(),
            "connections": metrics.connections_open.get(),
            "outbox_bytes": metrics.outbox_bytes.get(),
            "messages": messages(metrics),
            "resident_bytes": Process::now().resident_bytes,
            "since": metrics.started_s(),
            "trouble": self.relay.trouble(),
        })
        .to_string()
    }
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
fn answer(promised: &Receiver<Promise>, stream: UnixStream) -> io::Result<()> {
    let mut to = BufWriter::new(stream);
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
            protocol::write(&mut to, what, &body)?;
            if what != PROGRESS {
                break;
            }
        }
    }
}
