//! The way from an open port to a connection that is served, the same for every door: who may not come in
//! is told so, within bounds.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::connections::turn_away;
use crate::door::Stop;
use crate::metrics::TurnedAway;

/// Connections that are told at a time why they are turned away. More are closed without a word.
const TURNED_AWAY_MAX: usize = 64;

/// Accepts connections until the server takes no more. `enter` says which come in, and gives what they
/// hold until they end; `serve` serves one, in a task of its own.
pub(crate) async fn accept<T, F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    mut stop: Stop,
    enter: impl Fn(IpAddr) -> Result<T, TurnedAway>,
    serve: impl Fn(TcpStream, IpAddr, T) -> F,
) {
    let turning_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    loop {
        let accepted = tokio::select! {
            () = stop.accepting() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => match enter(peer.ip()) {
                Ok(entered) => drop(tokio::spawn(serve(stream, peer.ip(), entered))),
                Err(why) => {
                    if let Ok(permit) = Arc::clone(&turning_away).try_acquire_owned() {
                        tokio::spawn(async move {
                            turn_away(stream, why).await;
                            drop(permit);
                        });
                    }
                }
            },
            // Out of files, most likely: those that end make room.
            Err(error) => {
                tracing::warn!(%error, "cannot accept; waiting");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
