//! How many connections there are, in all and of each address, and how one too many is turned away
//! before it has said anything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::address::Address;
use crate::metrics::TurnedAway;

/// Who is connected.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    all: usize,
    numbers: u64,
    /// At most as many as there are connections.
    of: HashMap<Address, usize>,
}

/// A place among all, or among those of an address: free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    connections: Arc<Connections>,
    of: Option<Address>,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place among all.
    pub(crate) fn enter(self: &Arc<Self>, max: usize) -> Option<Seat> {
        let mut open = self.open();
        (open.all < max).then(|| {
            open.all += 1;
            Seat { connections: Arc::clone(self), of: None }
        })
    }

    /// A number that no other connection has.
    pub(crate) fn number(&self) -> u64 {
        let mut open = self.open();
        open.numbers += 1;
        open.numbers
    }

    /// A place among those of `address`.
    pub(crate) fn enter_from(self: &Arc<Self>, address: Address, max: usize) -> Option<Seat> {
        let mut open = self.open();
        let count = open.of.get(&address).copied().unwrap_or(0);
        (count < max).then(|| {
            open.of.insert(address, count + 1);
            Seat { connections: Arc::clone(self), of: Some(address) }
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        match self.of {
            None => open.all -= 1,
            Some(address) => match open.of.get(&address) {
                Some(&count) if count > 1 => drop(open.of.insert(address, count - 1)),
                _ => drop(open.of.remove(&address)),
            },
        }
    }
}

/// The HTTP status and the words that a connection is turned away with.
pub(crate) fn farewell(why: TurnedAway) -> (StatusCode, &'static str) {
    match why {
        TurnedAway::Full => (
            StatusCode::SERVICE_UNAVAILABLE,
            "rate-limited: the relay has as many connections as it takes; try again later\n",
        ),
        TurnedAway::Address => (
            StatusCode::TOO_MANY_REQUESTS,
            "rate-limited: your address has as many connections as it may; close some\n",
        ),
        TurnedAway::Denied => {
            (StatusCode::FORBIDDEN, "blocked: this relay does not serve your address\n")
        }
    }
}

/// Says why, without reading the request, and closes.
pub(crate) async fn turn_away(mut stream: TcpStream, why: TurnedAway) {
    let (status, reason) = farewell(why);
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\nRetry-After: 10\r\n\r\n{reason}",
        reason.len()
    );
    let saying = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // A request that is still under way when the socket closes would take the answer with it.
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    // Whether the client hears it is its own affair.
    let _ = tokio::time::timeout(Duration::from_secs(1), saying).await;
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn places_are_free_again_when_they_are_dropped() {
        let connections = Arc::new(Connections::default());
        let address = |n: u8| Address::from(IpAddr::from([192, 0, 2, n]));
        let all: Vec<_> = (0..3).map_while(|_| connections.enter(2)).collect();
        assert_eq!(all.len(), 2);
        let one: Vec<_> = (0..3).map_while(|_| connections.enter_from(address(1), 2)).collect();
        assert_eq!(one.len(), 2);
        assert!(connections.enter_from(address(2), 2).is_some());
        drop((all, one));
        assert!(connections.enter(1).is_some() && connections.enter_from(address(1), 1).is_some());
        assert!(connections.open().of.is_empty());
    }
}
