//! The heavy clients: each habit is one that relays know from real clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::material::{BATCH, ClientGroup, CrowdMaterial, connect, read_oks};
use crate::args::Habit;
use crate::requests::{created_at, request};
use crate::target::{BenchTarget, Refusals};
use crate::websocket::{RelayConnection, RelayMessage, put_text};

/// Number of events of a burst.
const BURST: usize = 500;
/// Time between two bursts.
const BURST_PAUSE: Duration = Duration::from_secs(2);
/// The pause after a refusal.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// A comparison (NIP-77) of everything: one range up to the end of time, with a sum that no relay
/// has, so the relay goes through all of its events.
const COMPARISON: &str = "61000001000102030405060708090a0b0c0d0e0f";

/// All habits, in the order of the rounds.
pub(super) const HABITS: [Habit; 5] =
    [Habit::Crawler, Habit::Backfill, Habit::Search, Habit::Comparison, Habit::Burst];

impl Habit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Crawler => "a crawler",
            Self::Backfill => "a backfill",
            Self::Search => "a search",
            Self::Comparison => "a comparison",
            Self::Burst => "bursts",
        }
    }

    /// The unit in which the work of the habit is counted.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Crawler => "events read",
            Self::Backfill => "events sent in a row",
            Self::Search => "searches",
            Self::Comparison => "comparisons",
            Self::Burst => "events sent in bursts",
        }
    }
}

/// The work of the clients of a habit in a round.
#[derive(Default)]
pub(super) struct HabitTotals {
    pub(super) done: u64,
    pub(super) refused: u64,
    /// Why a client could not go on until the end of the round.
    pub(super) end: Option<String>,
}

impl HabitTotals {
    pub(super) fn add(&mut self, other: Self) {
        self.done += other.done;
        self.refused += other.refused;
        self.end = self.end.take().or(other.end);
    }
}

/// A client with a heavy habit.
pub(super) struct HeavyClient {
    habit: Habit,
    connection: RelayConnection,
    material: Arc<CrowdMaterial>,
    totals: HabitTotals,
    asked: usize,
    /// Number of events that this client may still publish.
    left: usize,
}

impl HeavyClient {
    pub(super) async fn open(
        target: &BenchTarget,
        habit: Habit,
        number: usize,
        material: Arc<CrowdMaterial>,
        left: usize,
    ) -> anyhow::Result<Self> {
        let connection = connect(target, ClientGroup::Heavy, number).await?;
        Ok(Self { habit, connection, material, totals: HabitTotals::default(), asked: 0, left })
    }

    /// Follows the habit until this time.
    pub(super) async fn follow(mut self, until: Instant) -> (Habit, HabitTotals) {
        let end = tokio::time::Instant::from_std(until);
        if let Ok(Err(error)) = tokio::time::timeout_at(end, self.repeat()).await {
            self.totals.end = Some(format!("{error:#}"));
        }
        (self.habit, self.totals)
    }

    /// Works without an end.
    async fn repeat(&mut self) -> anyhow::Result<()> {
        loop {
            match self.habit {
                Habit::Crawler => self.crawl().await?,
                Habit::Backfill => self.publish(BATCH).await?,
                Habit::Burst => {
                    self.publish(BURST).await?;
                    tokio::time::sleep(BURST_PAUSE).await;
                }
                Habit::Search => self.search().await?,
                Habit::Comparison => self.compare().await?,
            }
        }
    }

    async fn note_refusal(&mut self) {
        self.totals.refused += 1;
        tokio::time::sleep(REFUSED_PAUSE).await;
    }

    /// Reads all events once, from the newest to the oldest.
    async fn crawl(&mut self) -> anyhow::Result<()> {
        let mut until = u64::from(u32::MAX);
        loop {
            let filter = format!(r#"{{"until":{until},"limit":500}}"#);
            let Some((events, oldest)) = self.ask(&filter).await? else {
                self.note_refusal().await;
                continue;
            };
            self.totals.done += events;
            match oldest {
                // More events than fit into a page may have the same time.
                Some(oldest) if events > 1 => until = oldest.min(until - 1),
                _ => return Ok(()),
            }
        }
    }

    async fn search(&mut self) -> anyhow::Result<()> {
        let material = self.material.clone();
        let Some(filter) = material.searches.get(self.asked % material.searches.len().max(1))
        else {
            anyhow::bail!("the file has no notes to search for");
        };
        match self.ask(filter).await? {
            Some(_) => self.totals.done += 1,
            None => self.note_refusal().await,
        }
        Ok(())
    }

    /// Asks a question. Returns the number of events, and the time of the oldest; `None` if the
    /// question was refused.
    async fn ask(&mut self, filter: &str) -> anyhow::Result<Option<(u64, Option<u64>)>> {
        self.asked += 1;
        let request = request(self.asked, filter);
        self.connection.send(&request.req).await?;
        let (mut events, mut oldest) = (0, None::<u64>);
        loop {
            match self.connection.next().await? {
                RelayMessage::Event(text) => {
                    events += 1;
                    let time = created_at(text);
                    oldest = oldest.map_or(time, |oldest| time.map(|time| time.min(oldest)));
                }
                RelayMessage::Eose(text) if request.is_ended_by(text) => break,
                RelayMessage::Closed(_) | RelayMessage::Notice(_) => return Ok(None),
                _ => {}
            }
        }
        self.connection.send(&request.close).await?;
        Ok(Some((events, oldest)))
    }

    async fn publish(&mut self, count: usize) -> anyhow::Result<()> {
        let mut frames = Vec::new();
        let put = self.material.put_fresh(&mut frames, count.min(self.left))?;
        self.left -= put;
        if put == 0 {
            anyhow::bail!("its share of the file's events is published: use a longer file");
        }
        self.connection.send(&frames).await?;
        let mut refusals = Refusals::default();
        read_oks(&mut self.connection, put, &mut refusals).await?;
        let refused = refusals.count();
        self.totals.done += (put as u64).saturating_sub(refused);
        if refused > 0 {
            self.totals.refused += refused;
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
        Ok(())
    }

    async fn compare(&mut self) -> anyhow::Result<()> {
        self.asked += 1;
        let name = format!("n{}", self.asked);
        let (mut open, mut close) = (Vec::new(), Vec::new());
        put_text(
            &mut open,
            &[format!("[\"NEG-OPEN\",\"{name}\",{{}},\"{COMPARISON}\"]").as_bytes()],
        );
        put_text(&mut close, &[format!("[\"NEG-CLOSE\",\"{name}\"]").as_bytes()]);
        self.connection.send(&open).await?;
        let is_compared = loop {
            match self.connection.next().await? {
                RelayMessage::Negentropy(text) => break text.starts_with(b"[\"NEG-MSG"),
                RelayMessage::Closed(_) | RelayMessage::Notice(_) => break false,
                _ => {}
            }
        };
        if !is_compared {
            self.note_refusal().await;
            return Ok(());
        }
        self.totals.done += 1;
        self.connection.send(&close).await
    }
}
