//! A door: where the clients of one network come in. The relay's WebSocket, REST interfaces and the
//! connections of peers are doors, or parts of one.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::{fmt, io};

pub use crate::admin::http::Operators;
use crate::admin::take::Taking;
use crate::connections::Connections;
use crate::listener::Listener;
use crate::metrics::Page;
use crate::settings::Shared;
use crate::stop::Stop;
use crate::{Clients, ServeError, Shelf};
use serde_json::{Map, Value};

/// A network's doors, opened, with the shelf behind them.
pub trait Door: Send + Sync {
    /// Where clients reach it.
    fn addresses(&self) -> Vec<Reached>;

    /// The sockets that it listens on, which a process that takes over goes on with. A door that needs
    /// more than these to be served elsewhere closes its connections then, and says so.
    fn listeners(&self) -> io::Result<Vec<OwnedFd>>;

    /// What else that process needs so that no client misses anything, in parts.
    fn state(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Goes on with a part of the state of the door before it.
    fn restore(&self, part: &[u8]) {
        let _ = part;
    }

    /// Its part of the page for Prometheus, beside what there is to say of every shelf.
    fn metrics(&self, page: &mut Page) {
        let _ = page;
    }

    /// What it has done, for `hark stats`: for programs, and as rows for people.
    fn stats(&self) -> (Map<String, Value>, Vec<Row>) {
        (Map::new(), Vec::new())
    }

    /// A look at it every ten seconds, for what the log says of bursts once and not every time.
    fn look(&self) {}

    /// Serves until `stop` says otherwise and every connection has ended.
    fn serve(self: Arc<Self>, operators: Operators, stop: Stop) -> Serving;

    /// Finishes what was taken, once no connection is served any more.
    fn close(&self) {}
}

/// Where clients reach a door: a line of output once it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// What is there: `listening on` for the first door.
    pub what: &'static str,
    /// A URL, or what else clients of that kind are given.
    pub at: String,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.at)
    }
}

/// A row of a table for people: what it is about, how much it is, and what else there is to say.
pub type Row = (&'static str, String, String);

/// A door at work.
pub type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A network that is to be served.
pub trait Serve: Send {
    /// Opens its shelf and its door. Nothing is served before [`Door::serve`].
    fn open<'a>(self: Box<Self>, host: &'a mut Host<'_>) -> Opening<'a>;
}

/// A network being opened.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Opened, ServeError>> + Send + 'a>>;

/// A network that is opened.
#[derive(Clone)]
pub struct Opened {
    /// What it keeps.
    pub shelf: Arc<Shelf>,
    /// Where its clients come in.
    pub door: Arc<dyn Door>,
}

/// What a server lends its doors.
pub struct Host<'a> {
    /// Bounds and lists that can change while the server runs.
    pub(crate) settings: Shared,
    /// Whose connections are taken.
    pub clients: Clients,
    /// Rate limits are off, for tests and benches.
    pub unlimited: bool,
    /// The server that is taken over, if one is.
    pub(crate) taking: Option<&'a mut Taking>,
}

impl Host<'_> {
    /// Whether another process serves until this one does.
    pub fn is_taking_over(&self) -> bool {
        self.taking.is_some()
    }

    /// The socket that was handed over for this address, or a new one. `setting` is where another
    /// address can be chosen.
    pub fn listen(
        &mut self,
        addr: SocketAddr,
        setting: &'static str,
    ) -> Result<Listener, ServeError> {
        let handed = self.taking.as_mut().and_then(|taking| taking.listener(addr));
        let connections = Connections::new(self.clients.clone(), self.unlimited);
        Listener::open(addr, handed, connections, &self.settings)
            .map_err(|cause| ServeError::Listen { addr, setting, cause })
    }
}
