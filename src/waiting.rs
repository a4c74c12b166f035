//! Lets a server wait until its database can be reached. Meanwhile the server's address answers
//! every request with status 503 and the reason, and the log and systemd are notified.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::vital;
use hark_server::ListenAddress;
use parking_lot::Mutex;

use crate::notify;

/// The first and the longest wait between two attempts.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LAST: Duration = Duration::from_secs(5);
/// Interval between log lines while the database is unavailable.
const SAY_EVERY: Duration = Duration::from_mins(1);
/// Maximum time for a client to send its request, and to read the answer. Clients of an address are
/// answered one after the other.
const CLIENT_MAX: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of bytes read of a request.
const REQUEST_MAX: usize = 4 << 10;

/// Calls `open` again after each error for which `is_away` returns true: the database cannot be
/// reached. Returns any other error.
pub(crate) fn for_database<T>(
    addresses: &[ListenAddress],
    is_away: impl Fn(&anyhow::Error) -> bool,
    mut open: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (mut waiting, mut pause) = (None::<WaitingServer>, RETRY_FIRST);
    let mut said: Option<Instant> = None;
    loop {
        let reason = match open() {
            Err(error) if is_away(&error) => format!("{error:#}"),
            opened => {
                if waiting.is_some() && opened.is_ok() {
                    tracing::info!("the database can be reached");
                }
                return opened;
            }
        };
        if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            tracing::warn!(
                reason,
                "the server waits for its database, and starts once it is there"
            );
            said = Some(Instant::now());
        }
        notify::waiting("waiting for the database", RETRY_LAST * 6);
        let waiting = waiting.get_or_insert_with(|| WaitingServer::start(addresses));
        *waiting.reason.lock() = reason;
        std::thread::sleep(pause);
        pause = (pause * 2).min(RETRY_LAST);
    }
}

/// A listener that answers requests until it is dropped. Dropping it frees its addresses for the
/// server.
struct WaitingServer {
    reason: Arc<Mutex<String>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl WaitingServer {
    /// Listens on the free addresses, but on no Unix socket: a proxy reports a missing socket
    /// itself. The server later reports addresses in use, and names that cannot be resolved.
    fn start(addresses: &[ListenAddress]) -> Self {
        let (reason, over) = (Arc::<Mutex<String>>::default(), Arc::<AtomicBool>::default());
        let serve = |address: SocketAddr| {
            let listener = TcpListener::bind(address).ok()?;
            listener.set_nonblocking(true).ok()?;
            let (reason, over) = (Arc::clone(&reason), Arc::clone(&over));
            let run = move || {
                while !over.load(Ordering::Acquire) {
                    match listener.accept() {
                        // Errors affect only this client.
                        Ok((client, _)) => drop(answer(client, &reason.lock().clone())),
                        Err(_) => std::thread::sleep(LOOK_EVERY),
                    }
                }
            };
            vital::spawn("hark-waiting", run).ok()
        };
        let resolved = addresses.iter().filter_map(|address| address.resolve().ok()).flatten();
        let threads = resolved.filter_map(serve).collect();
        Self { reason, over, threads }
    }
}

impl Drop for WaitingServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // Cannot fail: a panic of the thread ends the process (see `vital`).
            let _ = thread.join();
        }
    }
}

fn answer(mut client: TcpStream, reason: &str) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(CLIENT_MAX))?;
    client.set_write_timeout(Some(CLIENT_MAX))?;
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    let until = Instant::now() + CLIENT_MAX;
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = client.read(&mut part)?;
        if read == 0 || request.len() > REQUEST_MAX || Instant::now() > until {
            return Ok(());
        }
        request.extend_from_slice(&part[..read]);
    }
    // The reason names hosts and users, so only clients on this machine see the reason.
    let is_near = client.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
    let reason = if is_near { reason } else { "its log says why" };
    let body = format!("the server waits for its database: {}\n", reason.replace('\n', " "));
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\nRetry-After: 5\r\nConnection: close\r\n\r\n{body}"
    )
}
