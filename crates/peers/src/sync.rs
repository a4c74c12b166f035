//! Brings this archive and a relay into step, once. Missing events are fetched and sent while the
//! comparison is still running.

use std::collections::HashMap;
use std::sync::Arc;

use hark_archive::{Id, Query, Store};
use tokio::sync::mpsc;

use crate::client::PeerClient;
use crate::clock::now_s;
use crate::compare::{self, Compared, ComparedRelay};
use crate::error::{PeerError, RunWaits};
use crate::feed::{MissedEvents, SeenIds};
use crate::fetch::Fetcher;
use crate::intake::IntakeQueue;
use crate::local::{self, LocalEnd, LocalWindow};
use crate::meter::SyncMeter;
use crate::page::{RelayPages, WalkBudget};
use crate::plugin::EventPlugin;
use crate::upload::{UploadList, Uploader};
use crate::window::{self, DifferenceSink};
use crate::withheld::Withheld;

/// Maximum number of lists of ids in the queue from the comparison to the fetcher, and in the queue
/// to the uploader. A list has about a thousand ids at most.
const LISTS_MAX: usize = 64;
/// Maximum number of ids in a list.
const LIST_IDS: usize = 1024;

/// Where events go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the relay to this archive.
    #[default]
    Down,
    /// From this archive to the relay.
    Up,
    /// Both.
    Both,
    /// Nowhere: missing events are only counted.
    Neither,
}

impl Direction {
    /// Whether events come from the relay.
    pub fn is_down(self) -> bool {
        matches!(self, Self::Down | Self::Both)
    }

    /// Whether events go to the relay.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Up | Self::Both)
    }
}

/// Options of a synchronisation.
#[derive(Clone)]
pub struct SyncOptions {
    /// Where events go.
    pub direction: Direction,
    /// The events to exchange. Limits are ignored.
    pub query: Query,
    /// Kinds that do not leave this archive. They are compared only if the relay includes these
    /// kinds in comparisons.
    pub private_kinds: Vec<u32>,
    /// Whether protected events (NIP-70) are sent to the relay and accepted from the relay.
    pub send_protected: bool,
    /// Whether the relay is read page by page even if it can compare.
    pub no_comparison: bool,
    /// Decides which events go to the relay.
    pub(crate) plugin_up: Option<Arc<EventPlugin>>,
    /// Remembers which events the relay has.
    pub(crate) seen: Option<Arc<SeenIds>>,
    /// Receives the temporary failures.
    pub(crate) missed: Option<Arc<MissedEvents>>,
}

impl SyncOptions {
    /// Returns options for all events that `query` finds. Private kinds and protected events do not
    /// leave this archive.
    pub fn new(direction: Direction, query: Query, private_kinds: Vec<u32>) -> Self {
        let (send_protected, no_comparison) = (false, false);
        Self {
            direction,
            query,
            private_kinds,
            send_protected,
            no_comparison,
            plugin_up: None,
            seen: None,
            missed: None,
        }
    }
}

impl SyncOptions {
    /// The private kinds that the query finds.
    pub fn private_kinds_in_query(&self) -> Vec<u32> {
        let mut kinds = self.private_kinds.clone();
        kinds.retain(|kind| self.query.kinds.as_ref().is_none_or(|asked| asked.contains(kind)));
        kinds.retain(|kind| !self.query.not_kinds.contains(kind));
        kinds
    }
}

/// The result of a synchronisation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Why the relay was read page by page; `None` if sets were compared.
    pub paged: Option<String>,
    /// Private kinds that were compared. The relay may hide some events of these kinds.
    pub private_kinds: Vec<u32>,
}

/// Brings the archive and a relay into step. The `intake` writes the events, and may not have
/// written all events on return. Progress is counted in `meter`. If the future is dropped, the
/// events that were exchanged so far are kept.
pub async fn sync(
    client: &PeerClient,
    options: &SyncOptions,
    local: &LocalEnd,
    intake: IntakeQueue,
    meter: &Arc<SyncMeter>,
) -> Result<SyncReport, PeerError> {
    let mut query = Query { now: now_s(), limit: usize::MAX, ..options.query.clone() };
    query.not_kinds.extend(hidden_kinds(options));
    query.hidden.clone_from(&local.hidden);
    query.normalise();
    let withheld = Withheld::new(&options.private_kinds, options.send_protected);
    let (need, needed) = mpsc::channel(LISTS_MAX);
    let (have, had) = mpsc::channel(LISTS_MAX);
    let differences = Differences {
        need: options.direction.is_down().then_some(need),
        have: options.direction.is_up().then_some(have),
        store: Arc::clone(&local.store),
        meter,
    };
    let network = local.network;
    let fetcher = Fetcher {
        client,
        network,
        intake: intake.clone(),
        meter,
        seen: options.seen.clone(),
        missed: options.missed.clone(),
        // A relay may send an older event than the query finds.
        missed_from: options.query.from,
        protected: options.send_protected,
    };
    let plugin = options.plugin_up.as_deref();
    let missed = options.missed.clone();
    let from = Some(local.clone());
    let uploader = Uploader { client, from, withheld: &withheld, plugin, meter, missed };
    let job = SyncJob { client, options, local, query, intake, meter };
    let (report, (), ()) =
        tokio::try_join!(job.run(differences), fetcher.run(needed), uploader.run(had))?;
    Ok(report)
}

/// Returns the private kinds that most relays leave out of a comparison. If the query names only
/// private kinds, the result is empty, because such a query is meant for a relay that shows these
/// kinds.
fn hidden_kinds(options: &SyncOptions) -> Vec<u32> {
    let mut hidden = options.private_kinds.clone();
    if let Some(asked) = &options.query.kinds {
        hidden.retain(|kind| asked.contains(kind));
        if asked.iter().all(|kind| hidden.contains(kind)) {
            hidden.clear();
        }
    }
    hidden
}

/// Finds the differences between the archive and the relay.
struct SyncJob<'a> {
    client: &'a PeerClient,
    options: &'a SyncOptions,
    local: &'a LocalEnd,
    /// The query for the local archive.
    query: Query,
    intake: IntakeQueue,
    meter: &'a Arc<SyncMeter>,
}

impl SyncJob<'_> {
    async fn run(mut self, mut differences: Differences<'_>) -> Result<SyncReport, PeerError> {
        let private_kinds = self.options.private_kinds_in_query();
        let mut report = SyncReport { paged: None, private_kinds };
        if self.options.no_comparison {
            report.paged = Some("as --pages says".into());
        }
        if self.query.is_void() {
            return Ok(report);
        }
        if report.paged.is_none() {
            report.paged = self.agree_on_kinds().await?;
        }
        let all_from = self.query.from;
        let (mut budget, mut waits) = (WalkBudget::default(), RunWaits::default());
        loop {
            let newest = local::newest(Arc::clone(&self.local.store), self.query.clone()).await?;
            let from = newest.from;
            // The relay is asked for private kinds as well, although this archive's items exclude
            // these kinds. Most relays leave private kinds out. If a relay includes private kinds,
            // `Differences` drops the ids of events that this archive already has.
            let mut asked = Query {
                from,
                not_kinds: Vec::new(),
                kinds: self.options.query.kinds.clone(),
                ..self.query.clone()
            };
            asked.normalise();
            let (client, network) = (self.client, self.local.network);
            let mut left = vec![(from, self.query.to)];
            let LocalWindow { items, permit, .. } = newest;
            if report.paged.is_none() {
                let relay = ComparedRelay { client, network, meter: self.meter };
                let compared = compare::compare(relay, &asked, items, &mut differences, &mut waits);
                left = match compared.await? {
                    Compared::Whole => Vec::new(),
                    Compared::NotSupported { why, left } => {
                        report.paged = Some(why);
                        left
                    }
                };
            }
            drop(permit);
            for window in left.into_iter().rev() {
                self.page(&asked, window, &mut budget, &mut differences).await?;
            }
            if from <= all_from {
                return Ok(report);
            }
            self.query.to = from - 1;
        }
    }

    /// Excludes private kinds from the comparison, unless the relay includes such events in
    /// comparisons. Returns a reason if the relay must be read page by page.
    async fn agree_on_kinds(&mut self) -> Result<Option<String>, PeerError> {
        let hidden = hidden_kinds(self.options);
        let private = Query { kinds: Some(hidden), not_kinds: Vec::new(), ..self.query.clone() };
        if private.is_void() {
            return Ok(None);
        }
        let network = self.local.network;
        for item in local::sample(Arc::clone(&self.local.store), private).await? {
            match window::includes(self.client, network, &self.options.query, item).await? {
                Ok(true) => {
                    self.query.not_kinds.clone_from(&self.options.query.not_kinds);
                    self.query.kinds.clone_from(&self.options.query.kinds);
                    break;
                }
                Ok(false) => {}
                Err(why) => return Ok(Some(why)),
            }
        }
        Ok(None)
    }

    /// Reads the relay's events of a time range, newest first, and finds the events that only this
    /// archive has. The range is processed in parts, so that only few of the relay's ids are in
    /// memory at a time.
    async fn page(
        &self,
        asked: &Query,
        (from, mut to): (u64, u64),
        budget: &mut WalkBudget,
        differences: &mut Differences<'_>,
    ) -> Result<(), PeerError> {
        let direction = self.options.direction;
        loop {
            let mut theirs = HashMap::new();
            let mut walk = RelayPages {
                client: self.client,
                network: self.local.network,
                query: asked,
                intake: direction.is_down().then_some(&self.intake),
                ids: (direction != Direction::Down).then_some(&mut theirs),
                meter: self.meter,
                seen: self.options.seen.clone(),
                missed: self.options.missed.clone(),
                protected: self.options.send_protected,
                budget,
            };
            let until = walk.walk((from, to)).await?;
            if direction != Direction::Down {
                let oldest = until.map_or(from, |until| until + 1);
                theirs.retain(|_, time| *time >= oldest);
                self.compare_pages((oldest, to), theirs, differences).await?;
            }
            match until {
                Some(until) => to = until,
                None => return Ok(()),
            }
        }
    }

    /// Finds the events of a time range that only the archive or only the relay has. `theirs` has
    /// all of the relay's ids in this range.
    async fn compare_pages(
        &self,
        (from, mut to): (u64, u64),
        mut theirs: HashMap<Id, u64>,
        differences: &mut Differences<'_>,
    ) -> Result<(), PeerError> {
        loop {
            let window = Query { from, to, ..self.query.clone() };
            let ours = local::newest(Arc::clone(&self.local.store), window).await?;
            let mut have = Vec::new();
            for item in ours.items {
                if theirs.remove(&item.id).is_none() {
                    have.push(item.id);
                }
            }
            // The oldest event is sent first, as in a comparison.
            have.reverse();
            for ids in have.chunks(LIST_IDS) {
                differences.receive(Vec::new(), ids.to_vec()).await?;
            }
            if ours.from <= from {
                break;
            }
            to = ours.from - 1;
        }
        if self.options.direction == Direction::Neither {
            let theirs: Vec<Id> = theirs.into_keys().collect();
            for ids in theirs.chunks(LIST_IDS) {
                differences.receive(ids.to_vec(), Vec::new()).await?;
            }
        }
        Ok(())
    }
}

/// Passes differences on to the fetcher and the uploader.
struct Differences<'a> {
    need: Option<mpsc::Sender<Vec<Id>>>,
    have: Option<mpsc::Sender<UploadList>>,
    store: Arc<dyn Store>,
    meter: &'a SyncMeter,
}

impl DifferenceSink for Differences<'_> {
    async fn receive(&mut self, mut need: Vec<Id>, have: Vec<Id>) -> Result<(), PeerError> {
        // The local items may exclude private kinds and hidden events, so the archive may already
        // have events that seem to be missing.
        let store = Arc::clone(&self.store);
        let need = local::blocking(move || {
            need.retain(|id| !store.knows(id).unwrap_or(false));
            // A store may not know all of its ids without a search.
            local::missing(&*store, need)
        });
        let need = need.await?;
        self.meter.add(|meter| &meter.missing_here, need.len() as u64);
        self.meter.add(|meter| &meter.missing_there, have.len() as u64);
        let ended = || PeerError::Ended("the tasks that fetch and send events have ended".into());
        if let Some(to) = self.need.as_ref().filter(|_| !need.is_empty()) {
            to.send(need).await.map_err(|_| ended())?;
        }
        if let Some(to) = self.have.as_ref().filter(|_| !have.is_empty()) {
            to.send(UploadList::Ids(have)).await.map_err(|_| ended())?;
        }
        Ok(())
    }
}
