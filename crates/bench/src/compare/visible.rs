//! The time from publishing an event until a question on another connection finds the event.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use hark_codec::nostr::EventDraft;

use crate::latency::Latencies;
use crate::people;
use crate::report::Column;
use crate::requests::{event_id, request};
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, Url, fields, put_text};

/// Number of published events.
const EVENTS: usize = 200;
/// How long an event may take to be accepted and to be found.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const COLUMNS: [Column; 5] = [
    Column::plain("published", "events", ""),
    Column::compared("sent_p50_ms", "sent to found, p50", "ms"),
    Column::compared("sent_p99_ms", "sent to found, p99", "ms"),
    Column::plain("ok_p50_ms", "OK to found, p50", "ms"),
    Column::plain("ok_p99_ms", "OK to found, p99", "ms"),
];

/// Publishes one event after the other, and returns the figures.
pub(super) async fn measure(url: &Url) -> anyhow::Result<[Option<f64>; COLUMNS.len()]> {
    let mut writer = RelayConnection::open(url, ConnectionKind::Busy).await?;
    let mut reader = RelayConnection::open(url, ConnectionKind::Busy).await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let author = people::keys_of(&format!("compare {}", now.as_nanos()))?;
    let (mut since_sent, mut since_ok) = (Latencies::default(), Latencies::default());
    for number in 0..EVENTS {
        let content = format!("hark bench compare, no. {number}");
        let draft = EventDraft { created_at: now.as_secs(), kind: 1, tags: &[], content: &content };
        let mut event = Vec::new();
        draft.sign(&author, &mut event);
        let sent = Instant::now();
        let both = async {
            tokio::try_join!(publish(&mut writer, &event), find(&mut reader, &event, number))
        };
        let both = tokio::time::timeout(PATIENCE, both).await;
        let (accepted, found) = both.with_context(|| {
            format!("event {number} was not found in {} s", PATIENCE.as_secs())
        })??;
        since_sent.add(found - sent);
        // An event may be found before the OK is read.
        since_ok.add(found.saturating_duration_since(accepted));
    }
    let percentile = |times: &Latencies, share| times.at_ms(share);
    Ok([
        Some(EVENTS as f64),
        percentile(&since_sent, 0.5),
        percentile(&since_sent, 0.99),
        percentile(&since_ok, 0.5),
        percentile(&since_ok, 0.99),
    ])
}

/// Publishes an event, and returns the time of its OK.
async fn publish(connection: &mut RelayConnection, event: &[u8]) -> anyhow::Result<Instant> {
    let mut frame = Vec::new();
    put_text(&mut frame, &[b"[\"EVENT\",", event, b"]"]);
    connection.send(&frame).await?;
    loop {
        if let RelayMessage::Ok(text) = connection.next().await? {
            let accepted = Instant::now();
            let answer = fields(text);
            if answer.get(2).is_none_or(|accepted| accepted != "true") {
                bail!("refused with {}", answer.last().map_or("", String::as_str));
            }
            return Ok(accepted);
        }
    }
}

/// Asks for an event until an answer has the event. Returns the moment of this answer.
async fn find(
    connection: &mut RelayConnection,
    event: &[u8],
    number: usize,
) -> anyhow::Result<Instant> {
    let id = event_id(event).context("the event has an id")?;
    let request = request(number, &format!(r#"{{"ids":["{}"]}}"#, String::from_utf8_lossy(&id)));
    loop {
        connection.send(&request.req).await?;
        let mut found = None;
        loop {
            match connection.next().await? {
                RelayMessage::Event(_) => {
                    found.get_or_insert_with(Instant::now);
                }
                RelayMessage::Eose(text) if request.is_ended_by(text) => break,
                RelayMessage::Closed(text) if request.is_named_by(text) => {
                    bail!("a question was refused: {}", String::from_utf8_lossy(text));
                }
                _ => {}
            }
        }
        connection.send(&request.close).await?;
        if let Some(found) = found {
            return Ok(found);
        }
        // The other half of the measurement runs on the same thread.
        tokio::task::yield_now().await;
    }
}
