//! Reads all events that match a filter page by page, for relays that do not support comparisons.
//! Pages go back in time, and each page begins where the previous page ended.
//!
//! A page may have fewer events than requested, because relays have limits of their own. So only a
//! page without new events ends the walk. Pages overlap by one second, because a page may end
//! within a second. If one second has more events than fit into a page, the remaining events of
//! this second cannot be requested, and the second is counted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hark_archive::{Id, Query};
use hark_codec::nostr::{Event, EventArena};
use hark_networks::Network;
use hark_networks::nostr::NostrRefusal;

use crate::client::PeerClient;
use crate::error::{PeerError, RateWaits};
use crate::feed::{MissedEvents, SeenIds};
use crate::intake::{IntakeQueue, Origin, Wanted};
use crate::meter::SyncMeter;
use crate::request::RelaySubscription;
use crate::route::{RelayEvent, SubscriptionAnswer};

/// Number of events that are requested in a page.
const PAGE_EVENTS: usize = 500;
/// Maximum number of events that a relay may send for a page, even though fewer are requested.
const PAGE_EVENTS_MAX: usize = 20_000;
/// A page with events of a single second counts as truncated only if it has at least this number of
/// events. No known relay cuts pages off earlier.
const CUT_EVENTS_MIN: usize = 100;
/// Maximum number of events that are remembered for one second of one relay.
const EDGE_MAX: usize = 200_000;

/// Maximum number of a relay's ids in memory, in addition to the ids of one second and one page.
/// The number is bounded because a relay may invent ids.
const IDS_MAX: usize = 50_000;

/// Number of allowed pages: `PAGES_FREE`, and `PAGES_OF_A_WALK` for each walk. One more page is
/// allowed for each `EVENTS_OF_A_PAGE` new events or `BYTES_OF_A_PAGE` bytes. Correct relays stay
/// far below this number: a page usually has a hundred events, and only the last page of a walk has
/// no new events.
const PAGES_FREE: u64 = 1_000;
const PAGES_OF_A_WALK: u64 = 4;
const EVENTS_OF_A_PAGE: u64 = 8;
const BYTES_OF_A_PAGE: u64 = 64 << 10;
/// Maximum number of pages of a synchronisation, which is enough for 500 million events in full
/// pages. A page counts once, and once more for every [`PAGE_EVENTS`] events.
const PAGES_MAX: u64 = 2_000_000;

/// Counts the pages of a synchronisation and their events, to stop a walk that would never end.
#[derive(Debug, Default)]
pub(crate) struct WalkBudget {
    walks: u64,
    pages: u64,
    /// Number of pages, each weighted by its number of events.
    worth: u64,
    new: u64,
    bytes: u64,
}

impl WalkBudget {
    /// Counts a page. Returns an error if there are too many pages, in total or in proportion to
    /// their new events. `until` is the start of the next page.
    fn count(&mut self, page: &PageEnd, until: u64) -> Result<(), PeerError> {
        self.pages += 1;
        self.worth += 1 + (page.events / PAGE_EVENTS) as u64;
        self.new += page.new as u64;
        self.bytes += page.bytes;
        let Self { walks, pages, worth, new, bytes } = *self;
        let free = PAGES_FREE + PAGES_OF_A_WALK * walks;
        if pages > free + (new / EVENTS_OF_A_PAGE).max(bytes / BYTES_OF_A_PAGE) {
            return Err(PeerError::Misbehaved(format!(
                "its pages do not end: {pages} pages had {new} new events"
            )));
        }
        if worth > PAGES_MAX {
            return Err(PeerError::Misbehaved(format!(
                "at most {pages} pages are read, and the relay has more; a filter with \
                 \"until\":{until} continues from there"
            )));
        }
        Ok(())
    }
}

/// A walk through the pages of a relay, and the destination of their events.
pub(crate) struct RelayPages<'a> {
    pub(crate) client: &'a PeerClient,
    pub(crate) network: &'a dyn Network,
    /// The query to read. Its limit is ignored.
    pub(crate) query: &'a Query,
    /// Receives the events to check and store; `None` if events are not stored.
    pub(crate) intake: Option<&'a IntakeQueue>,
    /// Collects the ids and times of the events; `None` if ids are not needed.
    pub(crate) ids: Option<&'a mut HashMap<Id, u64>>,
    pub(crate) meter: &'a Arc<SyncMeter>,
    pub(crate) seen: Option<Arc<SeenIds>>,
    pub(crate) missed: Option<Arc<MissedEvents>>,
    pub(crate) protected: bool,
    pub(crate) budget: &'a mut WalkBudget,
}

/// Counts of one page.
#[derive(Default)]
struct PageEnd {
    events: usize,
    /// Number of the page's events that are within the requested time range.
    inside: usize,
    /// Number of events that were too long to be read, or not valid.
    unread: usize,
    /// The lowest time of the events that are not valid, if the times can be read and are in the
    /// requested range.
    unread_time: Option<u64>,
    new: usize,
    /// Total size of the received events, in bytes.
    bytes: u64,
    oldest: u64,
    finish: bool,
}

impl PageEnd {
    /// Counts an event of `bytes` bytes. Returns an error after too many events.
    fn count_event(&mut self, bytes: u64) -> Result<(), PeerError> {
        self.events += 1;
        self.bytes += bytes;
        if self.events <= PAGE_EVENTS_MAX {
            return Ok(());
        }
        Err(PeerError::Misbehaved(format!(
            "it sent more than {PAGE_EVENTS_MAX} events for a page of {PAGE_EVENTS}"
        )))
    }

    /// Counts an event of the requested time range. `edge` has the ids of the received events that
    /// have the oldest time so far. Returns whether the event is new.
    fn count_inside(
        &mut self,
        id: Id,
        time: u64,
        edge: &mut HashSet<Id>,
    ) -> Result<bool, PeerError> {
        self.inside += 1;
        if edge.contains(&id) {
            return Ok(false);
        }
        if time < self.oldest {
            self.oldest = time;
            edge.clear();
        }
        if time == self.oldest {
            edge.insert(id);
            if edge.len() > EDGE_MAX {
                return Err(PeerError::Misbehaved(format!(
                    "it sent more than {EDGE_MAX} events of one second"
                )));
            }
        }
        self.new += 1;
        Ok(true)
    }
}

impl RelayPages<'_> {
    /// Reads the pages of the times `from` to `to`, newest first. If [`IDS_MAX`] ids are collected,
    /// returns early with a time: all events of later times have been read, and the caller may
    /// continue from this time.
    pub(crate) async fn walk(&mut self, (from, to): (u64, u64)) -> Result<Option<u64>, PeerError> {
        let query = Query { from, to, limit: usize::MAX, ..self.query.clone() };
        let origin = Origin {
            meter: Arc::clone(self.meter),
            wanted: Wanted::Matching(Arc::new(query.clone())),
            seen: self.seen.clone(),
            missed: self.missed.clone(),
            missed_from: from,
            protected: self.protected,
        };
        // `edge` has the ids of the received events with the time `until`.
        let (mut until, mut edge) = (to, HashSet::new());
        let mut longest = 0;
        self.budget.walks += 1;
        // Whether the last page had only known events, but its second may have further events.
        let mut may_be_cut = false;
        loop {
            let window = Query { to: until, limit: PAGE_EVENTS, ..query.clone() };
            let page = self.page(&window, &mut edge, &origin).await?;
            self.meter.add(|meter| &meter.pages, 1);
            self.meter.check_forged()?;
            longest = longest.max(page.events);
            if page.events == 0 || page.finish {
                return Ok(None);
            }
            self.budget.count(&page, page.oldest)?;
            if std::mem::take(&mut may_be_cut) && page.inside > 0 {
                // The second has more events, but the relay does not return these events.
                self.meter.add(|meter| &meter.unreached, 1);
            }
            if page.new > 0 {
                until = page.oldest;
                if until < to && self.ids.as_ref().is_some_and(|ids| ids.len() >= IDS_MAX) {
                    return Ok(Some(until));
                }
                continue;
            }
            if page.unread == page.events {
                match page.unread_time {
                    Some(time) if time < until => until = time,
                    Some(_) if until > from => until -= 1,
                    Some(_) => return Ok(None),
                    // The start of the next page is unknown.
                    None => {
                        self.meter.add(|meter| &meter.unreached, 1);
                        return Ok(None);
                    }
                }
                edge.clear();
                continue;
            }
            if page.inside == 0 && until == 0 {
                // Some relays treat `until: 0` as no limit.
                return Ok(None);
            }
            if page.inside == 0 {
                return Err(PeerError::Misbehaved(format!(
                    "a page has {} events, and none is in the requested range of time",
                    page.events
                )));
            }
            // All events of the page are in `edge`, so all have the time `until`.
            if page.events >= CUT_EVENTS_MIN && page.events == longest {
                self.meter.add(|meter| &meter.unreached, 1);
            } else {
                may_be_cut = true;
            }
            if until <= from {
                return Ok(None);
            }
            until -= 1;
            edge.clear();
        }
    }

    async fn page(
        &mut self,
        window: &Query,
        edge: &mut HashSet<Id>,
        origin: &Origin,
    ) -> Result<PageEnd, PeerError> {
        let filter = self.network.filters().text(window);
        let (mut waits, mut has_proved) = (RateWaits::default(), false);
        loop {
            let proofs = self.client.proofs();
            let mut asked = self.client.subscribe(&filter).await?;
            let (page, refusal) = self.read(&mut asked, window, edge, origin).await?;
            let Some(reason) = refusal else { return Ok(page) };
            drop(asked);
            if page.new > 0 {
                return Ok(page);
            }
            if PeerError::is_rate(&reason) {
                let wait = waits.next("a page", &reason)?;
                self.meter.add(|meter| &meter.slowed, 1);
                tokio::time::sleep(wait).await;
            } else if PeerError::wants_auth(&reason) && !std::mem::replace(&mut has_proved, true) {
                self.client.authenticate_for(proofs, &reason).await?;
            } else {
                return Err(PeerError::Refused { what: "a page", reason });
            }
        }
    }

    /// Reads one page. Also returns the relay's reason if the relay ended the page early.
    async fn read(
        &mut self,
        asked: &mut RelaySubscription,
        window: &Query,
        edge: &mut HashSet<Id>,
        origin: &Origin,
    ) -> Result<(PageEnd, Option<String>), PeerError> {
        let mut page = PageEnd { oldest: window.to, ..PageEnd::default() };
        let mut arena = EventArena::new();
        loop {
            let event = match asked.next("a page").await {
                Ok(SubscriptionAnswer::Event(event)) => event,
                Ok(SubscriptionAnswer::TooLong(bytes)) => {
                    self.meter.refuse_too_long(bytes);
                    page.unread += 1;
                    page.count_event(bytes)?;
                    continue;
                }
                Ok(SubscriptionAnswer::Eose { finish }) => {
                    page.finish = finish;
                    return Ok((page, None));
                }
                Ok(SubscriptionAnswer::Closed(reason)) => return Ok((page, Some(reason))),
                // Some relays do not mark the end of a page.
                Err(PeerError::Silent { .. }) if page.events > 0 => return Ok((page, None)),
                Err(error) => return Err(error),
            };
            page.count_event(event.json().len() as u64)?;
            let Some((id, time)) = self.id_and_time(&event, &mut arena) else {
                page.unread += 1;
                let time = time_of(event.json());
                let time = time.filter(|time| (window.from..=window.to).contains(time));
                page.unread_time = page.unread_time.into_iter().chain(time).min();
                continue;
            };
            if time < window.from || time > window.to {
                self.meter.add(|meter| &meter.unasked, 1);
                continue;
            }
            if !page.count_inside(id, time, edge)? {
                continue;
            }
            if let Some(ids) = &mut self.ids {
                ids.insert(id, time);
            }
            if let Some(intake) = self.intake {
                intake.put(event, origin.clone()).await?;
            }
        }
    }

    /// Parses an event. Returns `None` and counts the refusal if the event is not valid.
    fn id_and_time(&self, event: &RelayEvent, arena: &mut EventArena) -> Option<(Id, u64)> {
        match Event::parse(event.json().as_bytes(), arena) {
            // Without an intake, no other code checks the event's id.
            Ok(event) if self.intake.is_none() && !event.has_valid_id() => {
                self.meter.refuse_here("bad id", "");
                None
            }
            Ok(event) => Some((*event.id(), event.created_at())),
            Err(error) => {
                self.meter.refuse_here("malformed", &NostrRefusal::from(error).to_string());
                None
            }
        }
    }
}

/// Returns the time of an event that is not valid, if the time can be read.
fn time_of(json: &str) -> Option<u64> {
    let event: serde_json::Value = serde_json::from_str(json).ok()?;
    event.get("created_at")?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_end_that_bring_nothing_and_those_that_are_too_many() {
        // (events and bytes of a page, number of pages that are read)
        for (new, bytes, read) in [
            (0, 300, PAGES_FREE),
            (1, 300, PAGES_FREE * 8 / 7),
            (2, BYTES_OF_A_PAGE, PAGES_MAX),
            (20, 6_000, PAGES_MAX),
            (2 * PAGE_EVENTS, 6_000, PAGES_MAX / 3),
        ] {
            let page = PageEnd { events: new, new, bytes, ..PageEnd::default() };
            let mut budget = WalkBudget::default();
            let ended = (0..=PAGES_MAX).find_map(|n| Some((n, budget.count(&page, 7).err()?)));
            let (pages, error) = ended.unwrap();
            // Even pages without new events have some bytes, which allow further pages.
            assert!(pages.abs_diff(read) <= 1 + read / 200, "{new} events: {pages}");
            let goes_on = error.to_string().contains("\"until\":7 continues");
            assert_eq!(goes_on, read > PAGES_FREE * 2, "{error}");
        }
    }
}
