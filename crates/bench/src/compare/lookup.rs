//! Looks up events in a relay by their ids.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::requests::{event_id, request};
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, Url};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// Number of ids in a question.
const IDS: usize = 100;

/// The id of an event, as hex digits.
pub(super) type HexId = [u8; 64];

/// Returns those of the `ids` whose events are in no answer.
pub(super) async fn missing(url: &Url, ids: &[HexId]) -> anyhow::Result<HashSet<HexId>> {
    let mut connection = RelayConnection::open(url, ConnectionKind::Busy).await?;
    let mut missing: HashSet<HexId> = ids.iter().copied().collect();
    for (number, ids) in ids.chunks(IDS).enumerate() {
        let list: Vec<String> =
            ids.iter().map(|id| format!("\"{}\"", String::from_utf8_lossy(id))).collect();
        let request = request(number, &format!(r#"{{"ids":[{}]}}"#, list.join(",")));
        connection.send(&request.req).await?;
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let next = tokio::time::timeout_at(until, connection.next()).await;
            match next.context("an answer did not end within a minute")?? {
                RelayMessage::Event(text) => {
                    event_id(text).map(|id| missing.remove(&id));
                }
                RelayMessage::Eose(text) if request.is_ended_by(text) => break,
                RelayMessage::Closed(text) if request.is_named_by(text) => {
                    bail!("a question was refused: {}", String::from_utf8_lossy(text));
                }
                _ => {}
            }
        }
        connection.send(&request.close).await?;
    }
    Ok(missing)
}
