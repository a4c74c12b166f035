//! How many connections there are, in all and of each address, and how one too many is turned away
//! before it has said anything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::address::Address;
use crate::metrics::TurnedAway;
use crate::seats::{Seat, Seats};

/// Connections that are ended and still read from, at a time.
const LINGERING_MAX: usize = 256;

/// Who is connected.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    all: Seats<()>,
    of: Seats<Address>,
    lingering: Seats<()>,
    numbers: AtomicU64,
}

impl Connections {
    /// A place among all.
    pub(crate) fn enter(&self, max: usize) -> Option<Seat<()>> {
        self.all.take((), max)
    }

    /// A place among those of `address`.
    pub(crate) fn enter_from(&self, address: Address, max: usize) -> Option<Seat<Address>> {
        self.of.take(address, max)
    }

    /// A place among those that are ended and read from until their clients have heard why.
    pub(crate) fn linger(&self) -> Option<Seat<()>> {
        self.lingering.take((), LINGERING_MAX)
    }

    /// A number that no other connection has.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
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
