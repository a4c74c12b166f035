//! The questions and events from which all clients of a crowd draw.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;

use crate::args::CrowdArgs;
use crate::lines::EventFile;
use crate::meter::ProgressMeter;
use crate::sample::EventSample;
use crate::shapes::{SEARCH_SHAPES, SHAPES};
use crate::target::{BenchTarget, Refusals};
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, fields, put_text};

/// The name of the shape that each normal client keeps as its subscription.
const FEED: &str = "home, 200 authors, 100";
/// One share of the unpublished events for each of four runs of a publishing habit, alone and beside
/// the others, and one share for the normal clients.
const HEAVY_SHARES: u64 = 5;
/// Number of events that are sent before their OKs are awaited.
pub(super) const BATCH: usize = 100;

/// The questions and events from which all clients of a crowd draw.
pub(super) struct CrowdMaterial {
    /// Number of events that the relay had before the first round.
    pub(super) loaded: u64,
    /// The filters of a normal client's questions, mixed from all shapes.
    pub(super) questions: Vec<String>,
    /// The filters of the normal clients' subscriptions.
    pub(super) feeds: Vec<String>,
    pub(super) searches: Vec<String>,
    /// Number of events that the heavy clients of one habit may publish in a round.
    pub(super) heavy_share: u64,
    fresh: Mutex<EventFile>,
    ended: AtomicBool,
}

impl CrowdMaterial {
    /// Loads the events into the relay, unless the relay already has the events, and draws the
    /// questions.
    pub(super) async fn load(args: &CrowdArgs, target: &BenchTarget) -> anyhow::Result<Self> {
        let mut fresh = EventFile::open(&args.file)?;
        let all = EventFile::open(&args.file)?.count()?;
        let loaded = if let Some(loaded) = args.loaded {
            fresh.skip(loaded)?;
            loaded
        } else {
            load(target, &mut fresh, all / 2).await?;
            all / 2
        };
        let heavy_share = all.saturating_sub(loaded) / HEAVY_SHARES;
        let sample = EventSample::read_first(&args.file, loaded)?;
        let of_shapes: Vec<Vec<String>> =
            SHAPES.iter().map(|shape| shape.filters(&sample)).collect();
        let most = of_shapes.iter().map(Vec::len).max().unwrap_or(0);
        let questions: Vec<String> = (0..most)
            .flat_map(|at| of_shapes.iter().filter_map(move |filters| filters.get(at).cloned()))
            .collect();
        let feed = SHAPES.iter().find(|shape| shape.name == FEED);
        let feeds = feed.map(|shape| shape.filters(&sample)).unwrap_or_default();
        if questions.is_empty() || feeds.is_empty() {
            bail!("no questions can be drawn: the file has too few events");
        }
        let searches = SEARCH_SHAPES.iter().flat_map(|shape| shape.filters(&sample)).collect();
        let (fresh, ended) = (Mutex::new(fresh), AtomicBool::new(false));
        Ok(Self { loaded, questions, feeds, searches, heavy_share, fresh, ended })
    }

    /// Appends the frames of up to `count` events that the relay does not have yet. Returns their
    /// number.
    pub(super) fn put_fresh(&self, out: &mut Vec<u8>, count: usize) -> anyhow::Result<usize> {
        let put = put_events(&mut self.fresh.lock(), out, count)?;
        if put < count {
            self.ended.store(true, Ordering::Relaxed);
        }
        Ok(put)
    }

    /// Whether fewer events were left than the clients wanted to publish.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

fn put_events(file: &mut EventFile, out: &mut Vec<u8>, count: usize) -> anyhow::Result<usize> {
    for at in 0..count {
        let Some(line) = file.line()? else { return Ok(at) };
        put_text(out, &[b"[\"EVENT\",", line, b"]"]);
    }
    Ok(count)
}

async fn load(target: &BenchTarget, file: &mut EventFile, count: u64) -> anyhow::Result<()> {
    let mut connection = target.connect(ConnectionKind::Busy).await?;
    let mut meter = ProgressMeter::start("loading", count);
    let mut refusals = Refusals::default();
    let mut frames = Vec::new();
    let (mut sent, mut accepted) = (0, 0);
    while sent < count {
        let wanted = usize::try_from(count - sent).unwrap_or(BATCH).min(BATCH);
        frames.clear();
        let put = put_events(file, &mut frames, wanted)?;
        connection.send(&frames).await?;
        accepted += read_oks(&mut connection, put, &mut refusals).await?;
        sent += put as u64;
        meter.at(sent);
        if put < wanted {
            break;
        }
    }
    meter.finish();
    if accepted == 0 {
        bail!("the relay accepts no events: {}", refusals.first().unwrap_or("the file is empty"));
    }
    Ok(())
}

/// Waits for the OKs of `count` events. Returns the number of accepted events.
pub(super) async fn read_oks(
    connection: &mut RelayConnection,
    count: usize,
    refusals: &mut Refusals,
) -> anyhow::Result<usize> {
    let (mut answered, mut accepted) = (0, 0);
    while answered < count {
        if let RelayMessage::Ok(text) = connection.next().await? {
            answered += 1;
            accepted += usize::from(is_accepted(text, refusals));
        }
    }
    Ok(accepted)
}

/// Whether an OK accepts its event. Counts the refusal otherwise.
pub(super) fn is_accepted(ok: &[u8], refusals: &mut Refusals) -> bool {
    let said = fields(ok);
    if said.get(2).is_some_and(|accepted| accepted == "true") {
        return true;
    }
    let reason = said.last().map_or("", String::as_str);
    // A replaceable event may be older than the stored version.
    if !["duplicate:", "replaced:"].iter().any(|known| reason.starts_with(known)) {
        refusals.add("OK", reason);
    }
    false
}

/// The groups of clients, which have different addresses.
#[derive(Clone, Copy)]
pub(super) enum ClientGroup {
    Normal = 1,
    Heavy = 2,
}

/// Connects a client. If the relay is on a loopback address, the client has an address of its own.
pub(super) async fn connect(
    target: &BenchTarget,
    group: ClientGroup,
    number: usize,
) -> anyhow::Result<RelayConnection> {
    let [_, _, high, low] = (number as u32).to_be_bytes();
    let from = Ipv4Addr::new(127, group as u8, high, low.max(1));
    let kind = ConnectionKind::Quiet { deflate: false };
    RelayConnection::open_from(&target.url, kind, Some(from))
        .await
        .with_context(|| format!("client {} (is `ulimit -Hn` high enough?)", number + 1))
}
