//! kill -9 while events are published: counts the acknowledged events that are gone after the next
//! start.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use hark_codec::nostr::EventDraft;
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use super::lookup::{HexId, missing};
use super::relay::StartedRelay;
use crate::people;
use crate::report::Column;
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, fields, put_text};

/// Maximum number of published events.
const EVENTS: usize = 20_000;
/// Number of acknowledged events after which the relay is killed.
const KILLED_AFTER: usize = 2_000;
/// Number of connections that publish.
const CONNECTIONS: usize = 4;
/// Maximum number of unacknowledged events of a connection.
const WINDOW: usize = 64;
/// How long the relay may take to acknowledge [`KILLED_AFTER`] events.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) const COLUMNS: [Column; 4] = [
    Column::plain("acknowledged", "acknowledged", ""),
    Column::plain("lost", "of these lost", ""),
    Column::plain("earlier_lost", "earlier events lost", ""),
    Column::compared("answer_ms", "next start to first answer", "ms"),
];

/// Publishes events, kills the relay, starts it again, and looks for the acknowledged events and
/// for those of the `earlier` events that the relay returned before.
pub(super) fn measure(
    relay: &mut StartedRelay,
    runtime: &Runtime,
    earlier: &[HexId],
) -> anyhow::Result<[Option<f64>; COLUMNS.len()]> {
    let url = relay.url.clone();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let events = events()?;
    let missing = |ids: &[HexId]| runtime.block_on(missing(&url, ids));
    // Events that the relay had refused do not count as lost.
    let refused = missing(earlier)?;
    let earlier: Vec<HexId> = earlier.iter().filter(|id| !refused.contains(*id)).copied().collect();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for own in events.chunks(EVENTS / CONNECTIONS) {
            let connection = RelayConnection::open(&url, ConnectionKind::Busy).await?;
            tasks.push(tokio::spawn(publish(connection, own.to_vec(), Arc::clone(&acknowledged))));
        }
        let until = Instant::now() + PATIENCE;
        while acknowledged.lock().len() < KILLED_AFTER && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        relay.kill();
        for task in tasks {
            // A publisher ends when the relay has gone. It has then read all acknowledgements.
            let _ = tokio::time::timeout(PATIENCE, task).await;
        }
        anyhow::Ok(())
    })?;
    let acknowledged = std::mem::take(&mut *acknowledged.lock());
    let start = relay.start(Some(runtime)).context("after kill -9")?;
    if acknowledged.is_empty() {
        bail!("no event was acknowledged");
    }
    Ok([
        Some(acknowledged.len() as f64),
        Some(missing(&acknowledged)?.len() as f64),
        Some(missing(&earlier)?.len() as f64),
        start.answer_ms,
    ])
}

fn events() -> anyhow::Result<Vec<Vec<u8>>> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let author = people::keys_of(&format!("killed {}", now.as_nanos()))?;
    let event = |number: usize| {
        let content = format!("hark bench compare, killed, no. {number}");
        let draft = EventDraft { created_at: now.as_secs(), kind: 1, tags: &[], content: &content };
        let mut event = Vec::new();
        draft.sign(&author, &mut event);
        event
    };
    Ok((0..EVENTS).map(event).collect())
}

/// Publishes until the relay has gone or all events are acknowledged.
async fn publish(
    mut connection: RelayConnection,
    events: Vec<Vec<u8>>,
    acknowledged: Arc<Mutex<Vec<HexId>>>,
) -> anyhow::Result<()> {
    let (mut open, mut frames) = (0, Vec::new());
    let mut events = events.into_iter();
    loop {
        while open < WINDOW
            && let Some(event) = events.next()
        {
            put_text(&mut frames, &[b"[\"EVENT\",", &event, b"]"]);
            open += 1;
        }
        if open == 0 {
            return Ok(());
        }
        // When the relay has gone, the acknowledgements that it sent before are still read.
        let _ = connection.send(&frames).await;
        frames.clear();
        while let RelayMessage::Ok(text) = connection.next().await? {
            open = open.saturating_sub(1);
            let answer = fields(text);
            let id: Option<HexId> = answer.get(1).and_then(|id| id.as_bytes().try_into().ok());
            let is_accepted = answer.get(2).is_some_and(|accepted| accepted == "true");
            acknowledged.lock().extend(id.filter(|_| is_accepted));
            if open < WINDOW / 2 {
                break;
            }
        }
    }
}
