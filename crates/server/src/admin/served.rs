//! The server's end of `control.sock`. Each connection has two threads: one reads and submits
//! requests, the other writes the answers, in the order of the requests.

use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use hark_archive::effects::Refusal;
use hark_archive::store::LogPosition;
use hark_archive::{CommitError, Id, Outcome, Query, Record, Write, vital};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::clients::ClientsDesk;
use super::feed::{FeedWriter, SiblingFeed};
use super::handover::TakeoverSource;
use super::protocol::{
    self, BRING, CLIENTS, COMPACT, ControlFrame, DOOR, EPHEMERAL, ERASE, FAILED, FOLLOW, KICK,
    LINK, MODERATE, OUTCOME, PEER_FRAME_BYTES_MAX, PROGRESS, PUT, RELOAD, STATS, TAKEOVER, TEXT,
    outcome_bytes,
};
use super::reload::ReloadDesk;
use super::request_error::ShelfRequestError;
use super::shelf_stats::stats;
use super::socket;
use super::takeover_parties::Sibling;
use crate::door::{Door, OpenNetwork};
use crate::moderation::{Moderation, ModerationError};
use crate::roster::Roster;
use crate::settings::SharedSettings;
use crate::shelf::{MovableShelf, Shelf};

/// The outcome of a record that a ban refuses.
const BANNED: Outcome = Outcome::Refused(Refusal::Banned);
/// The pause after the system did not accept a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Maximum number of ids that one write deletes.
const ERASE_BATCH: usize = 512;

/// The socket of a running server. Dropping the value closes the connections and removes the
/// socket.
pub(crate) struct ControlSocket {
    /// The socket's current path. [`ControlSocket::publish`] moves the socket to `path`.
    bound: PathBuf,
    path: PathBuf,
    listener: Arc<UnixListener>,
    connection: ControlConnection,
    streams: OpenStreams,
    accepting: Option<JoinHandle<()>>,
    followers: watch::Sender<usize>,
}

/// The open connections, by number.
type OpenStreams = Arc<Mutex<Vec<(u64, UnixStream, JoinHandle<()>)>>>;

/// The shelf that an answer is about, and the receiver of the answer.
type PendingReply = (&'static str, Receiver<(u8, Vec<u8>)>);

impl ControlSocket {
    /// Opens the socket under a temporary name next to `path`.
    pub(crate) fn start(
        path: &Path,
        networks: &Arc<[OpenNetwork]>,
        settings: &SharedSettings,
        desk: &Arc<ReloadDesk>,
        (roster, moderation): (&Arc<Roster>, &Moderation),
        giving: Option<Arc<TakeoverSource>>,
    ) -> io::Result<Self> {
        let (bound, listener) = socket::bind_beside(path)?;
        let listener = Arc::new(listener);
        let stopping = Arc::new(AtomicBool::new(false));
        let (networks, settings) = (Arc::clone(networks), Arc::clone(settings));
        let (desk, roster) = (Arc::clone(desk), Arc::clone(roster));
        let (followers, of_clients) = (watch::Sender::new(0), Arc::clone(&settings));
        let clients = ClientsDesk {
            roster,
            moderation: moderation.clone(),
            settings: of_clients,
            followers: followers.clone(),
        };
        let connection = ControlConnection { networks, settings, desk, clients, giving, stopping };
        let streams = OpenStreams::default();
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
            followers,
        })
    }

    /// Moves the socket to its final path, where it replaces the socket of a previous server. The
    /// store's lock ensures that no other server uses the archive.
    pub(crate) fn publish(&mut self) -> io::Result<()> {
        socket::put_in_place(&self.bound, &self.path)?;
        self.bound.clone_from(&self.path);
        Ok(())
    }

    /// Returns a receiver of the number of processes that follow this process.
    pub(crate) fn followers(&self) -> watch::Receiver<usize> {
        self.followers.subscribe()
    }

    /// Serves the previous process, from which this process took over `shelves`. The previous
    /// process follows each shelf from the given position.
    pub(crate) fn serve_follower(
        &self,
        stream: UnixStream,
        shelves: Vec<(MovableShelf, LogPosition)>,
    ) -> io::Result<()> {
        let ours = stream.try_clone()?;
        let outbox = Arc::new(FeedWriter::following(stream.try_clone()?, shelves.clone()));
        let bytes_max = self.connection.settings.load().limits.outbox_bytes_max;
        let feed =
            Arc::new(SiblingFeed::start(Arc::clone(&outbox), stream.try_clone()?, bytes_max)?);
        let (connection, followers) = (self.connection.clone(), self.followers.clone());
        let mut siblings = Vec::with_capacity(shelves.len());
        for (MovableShelf { shelf, .. }, _) in &shelves {
            let sibling: Arc<dyn Sibling> = Arc::new(feed.of(shelf.name()));
            shelf.siblings().add(Arc::clone(&sibling));
            // Reports the records written since the position was read.
            sibling.grown();
            siblings.push((Arc::clone(shelf), sibling));
        }
        followers.send_modify(|count| *count += 1);
        let thread = vital::spawn("hark-follower", move || {
            match connection.run(&ours, outbox, &siblings) {
                Ok(()) => tracing::info!("the old server has ended"),
                Err(error) => tracing::warn!(%error, "the old server is gone"),
            }
            for (shelf, sibling) in &siblings {
                shelf.siblings().remove(sibling);
            }
            let _ = ours.shutdown(std::net::Shutdown::Both);
            for (MovableShelf { store, .. }, _) in &shelves {
                store.followed(None);
            }
            followers.send_modify(|count| *count -= 1);
        })?;
        let mut open = self.streams.lock();
        open.push((u64::MAX, stream, thread));
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.connection.stopping.store(true, Ordering::Release);
        // Wakes the accepting thread. A new connection would not wake the thread if another
        // server's socket is at the path by now.
        let woken = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).is_ok();
        let given = || self.connection.giving.as_ref().is_some_and(|giving| giving.is_superseded());
        let woken = woken || !given() && socket::connect(&self.bound).is_ok();
        if let Some(thread) = self.accepting.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let streams = std::mem::take(&mut *self.streams.lock());
        for (_, stream, _) in &streams {
            // Fails if the client has closed the connection.
            let _ = stream.shutdown(std::net::Shutdown::Read);
        }
        for (_, _, thread) in streams {
            let _ = thread.join();
        }
        // The file is removed only here: a takeover that was in progress has ended by now.
        if !given() {
            let _ = std::fs::remove_file(&self.bound);
        }
    }
}

fn accept(listener: &UnixListener, streams: &OpenStreams, connection: &ControlConnection) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if connection.stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            // The most likely cause is a lack of file descriptors, as in `listener`.
            std::thread::sleep(ACCEPT_AGAIN);
            continue;
        };
        let mut open = streams.lock();
        open.retain(|(_, _, thread)| !thread.is_finished());
        if open.len() >= connection.settings.load().limits.control_connections_max {
            continue;
        }
        let Ok(ours) = stream.try_clone() else { continue };
        let connection = connection.clone();
        let name = format!("hark-control-{number}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let outbox = ours.try_clone().map(|to| Arc::new(FeedWriter::new(to)));
            if let Err(error) = outbox.and_then(|outbox| connection.run(&ours, outbox, &[])) {
                tracing::warn!(%error, "a control connection broke");
            }
            // The list holds another clone of the stream, so dropping this clone would not close
            // the connection.
            let _ = ours.shutdown(std::net::Shutdown::Both);
        });
        if let Ok(thread) = thread {
            open.push((number, stream, thread));
        }
    }
}

#[derive(Clone)]
struct ControlConnection {
    networks: Arc<[OpenNetwork]>,
    settings: SharedSettings,
    desk: Arc<ReloadDesk>,
    clients: ClientsDesk,
    giving: Option<Arc<TakeoverSource>>,
    stopping: Arc<AtomicBool>,
}

/// The sender of the answer to a request.
type ReplySender = SyncSender<(u8, Vec<u8>)>;

impl ControlConnection {
    /// Serves a connection. `siblings` has an entry for each shelf that the connected process
    /// follows.
    fn run(
        &self,
        stream: &UnixStream,
        outbox: Arc<FeedWriter>,
        siblings: &[(Arc<Shelf>, Arc<dyn Sibling>)],
    ) -> io::Result<()> {
        let mut from = BufReader::with_capacity(64 << 10, stream.try_clone()?);
        let (promise, promised) =
            sync_channel::<PendingReply>(self.settings.load().limits.control_window);
        let answering = std::thread::Builder::new()
            .name("hark-control-out".into())
            .spawn(move || answer(&promised, &outbox))?;
        let mut frame = ControlFrame::default();
        let bytes_max = |what| match what {
            // A record may be longer than the settings now allow, as when another archive is
            // copied. So only the protocol's maximum applies to records, and to other servers.
            PUT | BRING => PEER_FRAME_BYTES_MAX,
            _ if !siblings.is_empty() => PEER_FRAME_BYTES_MAX,
            _ => self.settings.load().limits.control_frame_bytes_max,
        };
        let result = loop {
            match frame.read_bounded(&mut from, bytes_max) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(_) if self.stopping.load(Ordering::Acquire) => break Ok(()),
                Err(error) => break Err(error),
            }
            if frame.what == TAKEOVER
                && let Some(giving) = &self.giving
            {
                drop(promise);
                answering.join().unwrap_or(Ok(()))?;
                let patience = self.settings.load().limits.takeover_wait_ms;
                let doors = &self.networks;
                return giving.serve(doors, from, stream, &self.stopping, &frame, patience);
            }
            if frame.what == FOLLOW
                && let Some(network) = self.network(frame.shelf())
            {
                drop(promise);
                answering.join().unwrap_or(Ok(()))?;
                let shelf = &network.shelf;
                return shelf.feeds().serve(shelf.name(), from, stream.try_clone()?);
            }
            if frame.what == EPHEMERAL {
                let sibling = siblings.iter().find(|(shelf, _)| shelf.name() == frame.shelf());
                if let (Some((shelf, sibling)), Ok(record)) = (sibling, Record::new(frame.body())) {
                    shelf.subscribers().publish(None, &record);
                    shelf.siblings().pass_on(&record, Some(sibling));
                    if let Some(network) = self.network(frame.shelf()) {
                        network.door.forward(&record);
                    }
                }
                continue;
            }
            // The channel has room for some lines of progress.
            let (say, said) = sync_channel(4);
            let network = self.network(frame.shelf());
            let name = network.map_or("", |network| network.shelf.name());
            if promise.send((name, said)).is_err() {
                break Ok(());
            }
            match network {
                Some(network) => self.serve(&frame, network, !siblings.is_empty(), say),
                None => {
                    let _ = say.send((FAILED, self.unserved(&frame).into()));
                }
            }
        };
        drop(promise);
        answering.join().unwrap_or(Ok(())).and(result)
    }

    /// Returns the network whose shelf has this name.
    fn network(&self, shelf: &str) -> Option<&OpenNetwork> {
        self.networks.iter().find(|network| network.shelf.name() == shelf)
    }

    /// Returns the reason for refusing a request that names no shelf of this server.
    fn unserved(&self, frame: &ControlFrame) -> String {
        if frame.what == TAKEOVER {
            return "this archive cannot be taken over while it is served".into();
        }
        if frame.what == MODERATE && self.clients.moderation.is_lacking() {
            return ModerationError::Absent.to_string();
        }
        let served: Vec<_> = self.networks.iter().map(|network| network.shelf.name()).collect();
        format!("this server does not serve {}; it serves {}", frame.shelf(), served.join(", "))
    }

    /// Serves a request about a shelf. Records from a follower, the old process after a takeover,
    /// are also forwarded to peers, because only this process is connected to peers.
    fn serve(
        &self,
        frame: &ControlFrame,
        OpenNetwork { shelf, door }: &OpenNetwork,
        of_sibling: bool,
        say: ReplySender,
    ) {
        // The sends below fail only if the connection is gone; then no answer is needed.
        let answer = match frame.what {
            PUT | BRING => {
                let brought = (frame.what == BRING).then(|| Record::new(frame.body()).ok());
                if let Some(record) = brought.flatten()
                    && let Err(reason) = shelf.prepare_import(&record)
                {
                    let _ = say.send((FAILED, reason.to_string().into()));
                    return;
                }
                let own_door = door;
                let door = of_sibling.then(|| Arc::clone(door));
                // A follower has already checked its records against the same bans.
                if !of_sibling
                    && let Ok(record) = Record::new(frame.body())
                    && own_door.refuses(&record)
                {
                    let _ = say.send((OUTCOME, outcome_bytes(BANNED).into()));
                    return;
                }
                return put(shelf, door, frame.body(), say);
            }
            ERASE => self.erase(shelf, frame.body(), &say).map(|count| count.to_string()),
            COMPACT => match shelf.compact() {
                Some(compact) => compact(&mut |line| report_progress(&say, line))
                    .map_err(ShelfRequestError::Compact),
                None => Err(ShelfRequestError::NothingToCompact),
            },
            RELOAD => self.desk.ask().map_err(ShelfRequestError::from),
            CLIENTS => self.clients.page(frame.body()).map_err(ShelfRequestError::from),
            MODERATE => self.clients.moderate(frame.body()).map_err(ShelfRequestError::from),
            KICK => self.clients.kick(frame.body()).map_err(ShelfRequestError::from),
            STATS => {
                let (more, rows) = door.stats();
                let mut stats = stats(shelf);
                stats.extend(more);
                stats.insert("rows".into(), json!(rows));
                stats.insert("config".into(), self.desk.stats());
                Ok(Value::Object(stats).to_string())
            }
            LINK => {
                let link = door.admin_link(&frame.text());
                link.map(|link| link.to_string()).map_err(ShelfRequestError::from)
            }
            DOOR => door.report().map(|it| it.to_string()).ok_or(ShelfRequestError::NoReport),
            other => Err(ShelfRequestError::Unknown(other)),
        };
        let _ = say.send(match answer {
            Ok(text) => (TEXT, text.into()),
            Err(error) => (FAILED, error.to_string().into()),
        });
    }

    fn erase(
        &self,
        shelf: &Shelf,
        body: &[u8],
        say: &ReplySender,
    ) -> Result<u64, ShelfRequestError> {
        let ids: Vec<Id> = protocol::ids(body).ok_or(ShelfRequestError::NoIds)?;
        let mut total = 0;
        for ids in ids.chunks(ERASE_BATCH) {
            if self.stopping.load(Ordering::Acquire) {
                break;
            }
            let mut query = Query { ids: Some(ids.to_vec()), ..Query::default() };
            query.normalise();
            match shelf.writer().write(Write::Erase(Box::new(query))) {
                Ok(Outcome::Erased(count)) => total += count,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let _ = say.send((PROGRESS, format!("{total} deleted").into()));
        }
        Ok(total)
    }
}

/// Sends a line of progress, unless the client has not read the earlier lines. The work goes on in
/// any case, because maintenance waits for a compaction, and writes wait for maintenance.
fn report_progress(say: &ReplySender, line: &str) {
    let _ = say.try_send((PROGRESS, line.into()));
}

/// Writes a record. If `door` is given, the door forwards the record once it is stored.
fn put(shelf: &Shelf, door: Option<Arc<dyn Door>>, body: &[u8], say: ReplySender) {
    // The record is checked here, because in the store a bad record would make its whole batch
    // fail.
    if let Err(error) = Record::new(body).and_then(|record| record.check()) {
        let _ = say.send((FAILED, error.to_string().into()));
        return;
    }
    let (refused, record) = (say.clone(), Box::<[u8]>::from(body));
    let forwarded = door.map(|door| (door, record.clone()));
    let done = move |result: Result<Outcome, Arc<CommitError>>| {
        if let (Ok(Outcome::Stored { .. }), Some((door, bytes))) = (&result, forwarded)
            && let Ok(record) = Record::new(&bytes)
        {
            door.forward(&record);
        }
        let _ = say.try_send(match result {
            Ok(outcome) => (OUTCOME, outcome_bytes(outcome).into()),
            Err(error) => (FAILED, error.to_string().into()),
        });
    };
    if shelf.writer().submit(Write::Put(record), Box::new(done)).is_err() {
        let _ = refused.send((FAILED, "the archive takes no more writes".into()));
    }
}

/// Writes the pending answers in order. Flushes before each wait for an answer.
fn answer(promised: &Receiver<PendingReply>, to: &FeedWriter) -> io::Result<()> {
    loop {
        let (shelf, promise) = if let Ok(promise) = promised.try_recv() {
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
            to.write_answer(what, shelf, &body)?;
            if what != PROGRESS {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that was stopped held up the compaction, then the server's maintenance, and in the
    /// end all writes.
    #[test]
    fn progress_waits_for_no_client() {
        let (say, said) = sync_channel(2);
        for line in ["first", "second", "third"] {
            report_progress(&say, line);
        }
        let lines: Vec<_> = said.try_iter().collect();
        assert_eq!(lines, [(PROGRESS, b"first".to_vec()), (PROGRESS, b"second".to_vec())]);
    }
}
