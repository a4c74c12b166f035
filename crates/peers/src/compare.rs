//! Finds the events that only this archive or only the relay has, by comparing sets of ids
//! (NIP-77). A comparison transfers no events.
//!
//! A relay limits the number of events in a comparison. If the relay refuses a comparison as too
//! large, the time range is divided into smaller parts. These parts are called windows.

use std::time::Duration;

use hark_archive::Query;
use hark_codec::nostr::negentropy::{NegentropyItem, SummedItems};
use hark_networks::Network;

use crate::client::PeerClient;
use crate::clock::now_s;
use crate::error::{PeerError, RateWaits, RunWaits};
use crate::meter::SyncMeter;
use crate::window::{self, DifferenceSink, SeenDifferences, WindowEnd};

/// Maximum number of parts into which the time range of a query is divided.
const WINDOWS_MAX: u32 = 50_000;
/// Maximum number of restarts of a comparison that the relay ended early.
const RESTARTS_MAX: u32 = 5;
/// A time before which hardly any events exist: Nostr began in 2020.
const FIRST_EVENTS_S: u64 = 1_577_836_800;

/// How a comparison ended.
pub(crate) enum Compared {
    /// All differences were found.
    Whole,
    /// The relay does not compare, or does not compare all time ranges. `why` is the relay's reason
    /// or another description. `left` lists the time ranges that were not compared, both ends
    /// inclusive.
    NotSupported { why: String, left: Vec<(u64, u64)> },
}

/// The relay to compare with this archive.
#[derive(Clone, Copy)]
pub(crate) struct ComparedRelay<'a> {
    pub(crate) client: &'a PeerClient,
    pub(crate) network: &'a dyn Network,
    pub(crate) meter: &'a SyncMeter,
}

/// Compares `items`, the local results of `query`, with the relay's results. `waits` adds up the
/// waits for the relay's rate limit in all comparisons of one synchronisation.
pub(crate) async fn compare(
    relay: ComparedRelay<'_>,
    query: &Query,
    items: Vec<NegentropyItem>,
    sink: &mut impl DifferenceSink,
    waits: &mut RunWaits,
) -> Result<Compared, PeerError> {
    let ComparedRelay { client, network, meter } = relay;
    meter.add(|meter| &meter.compared, items.len() as u64);
    let all: SummedItems = items.into();
    let mut windows = ComparedWindows::new(&all, (query.from, query.to), waits);
    let mut seen = SeenDifferences::default();
    while let Some((from, to)) = windows.left.pop() {
        let part;
        let set = if (from, to) == (query.from, query.to) {
            &all
        } else {
            part = all.between(from, to).to_vec().into();
            &part
        };
        let filter = network.filters().text(&Query { from, to, ..query.clone() });
        let found = seen.count();
        let end = window::compare(client, &filter, set, meter, &mut seen, sink).await?;
        if matches!(end, WindowEnd::Whole) {
            seen.next_window();
        }
        match windows.next_step((from, to), end, seen.count() > found)? {
            NextStep::Compare => {}
            NextStep::WaitFirst(wait) => {
                meter.add(|meter| &meter.slowed, 1);
                tokio::time::sleep(wait).await;
            }
            NextStep::GiveUp(why) => {
                return Ok(Compared::NotSupported { why, left: windows.left });
            }
        }
    }
    Ok(Compared::Whole)
}

/// The next step of a comparison after one of its windows.
enum NextStep {
    Compare,
    WaitFirst(Duration),
    GiveUp(String),
}

/// The windows that are left to compare, and counts of the windows compared so far.
struct ComparedWindows<'a> {
    /// The local items of the whole time range.
    items: &'a SummedItems,
    /// The windows that are left to compare, both ends inclusive. The last window of the list is
    /// compared first.
    left: Vec<(u64, u64)>,
    /// Whether any window was compared completely.
    compared_before: bool,
    parts: u32,
    restarts: u32,
    waits: RateWaits,
    /// The waits in all comparisons of the synchronisation.
    run: &'a mut RunWaits,
}

impl<'a> ComparedWindows<'a> {
    fn new(items: &'a SummedItems, range: (u64, u64), run: &'a mut RunWaits) -> Self {
        Self {
            items,
            left: vec![range],
            compared_before: false,
            parts: 0,
            restarts: 0,
            waits: RateWaits::default(),
            run,
        }
    }

    /// Decides how to continue after a window. `has_found` is true if the comparison of the window
    /// found differences. Fails if the waits for the relay's rate limit take too long in total.
    fn next_step(
        &mut self,
        range: (u64, u64),
        end: WindowEnd,
        has_found: bool,
    ) -> Result<NextStep, PeerError> {
        match end {
            WindowEnd::Whole => {
                self.compared_before = true;
                self.waits.over();
            }
            WindowEnd::TooMany(why) => {
                let is_divided = self.divide(range);
                if !is_divided {
                    self.left.push(range);
                }
                if !is_divided || self.parts > WINDOWS_MAX {
                    return Ok(NextStep::GiveUp(why));
                }
            }
            WindowEnd::TooFast(reason) => {
                let wait = self.waits.next("a comparison", &reason)?;
                self.run.add(wait, "a comparison", &reason)?;
                // The relay's rate limit may allow a comparison of half of the window.
                let is_divided = has_found && self.parts < WINDOWS_MAX && self.divide(range);
                if !is_divided {
                    self.left.push(range);
                }
                return Ok(NextStep::WaitFirst(wait));
            }
            WindowEnd::Interrupted(why) => {
                self.restarts = if has_found { 0 } else { self.restarts + 1 };
                self.left.push(range);
                if self.restarts > RESTARTS_MAX {
                    return Ok(NextStep::GiveUp(why));
                }
            }
            WindowEnd::NotSupported(why) => {
                self.left.push(range);
                self.restarts += u32::from(self.compared_before);
                if !self.compared_before || self.restarts > RESTARTS_MAX {
                    return Ok(NextStep::GiveUp(why));
                }
            }
        }
        Ok(NextStep::Compare)
    }

    /// Divides a window in two, and adds both halves. Returns false for a window of one second,
    /// which cannot be divided.
    fn divide(&mut self, (from, to): (u64, u64)) -> bool {
        let Some(middle) = middle(self.items.between(from, to), from, to) else { return false };
        self.left.extend([(from, middle), (middle + 1, to)]);
        self.parts += 1;
        true
    }
}

/// Returns the time at which a time range is divided; `None` if the range is one second.
fn middle(items: &[NegentropyItem], from: u64, to: u64) -> Option<u64> {
    if from >= to {
        return None;
    }
    // The relay's events are probably distributed over time like the local events, so the range is
    // divided at the median of the local events.
    let median = items.get(items.len() / 2).map(|item| item.time);
    let (low, high) = (from.max(FIRST_EVENTS_S), to.min(now_s() + 86_400));
    let by_time = if low < high { low + (high - low) / 2 } else { from + (to - from) / 2 };
    let divides = |at: &u64| from <= *at && *at < to;
    median.map(|time| time.saturating_sub(1)).filter(divides).or(Some(by_time)).filter(divides)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a bound for the sum of all waits, a relay that completes each window after a wait
    /// could prolong a synchronisation with many comparisons for days.
    #[test]
    fn waits_for_a_rate_limit_are_counted_over_all_comparisons_of_a_run() {
        let (items, mut run) = (SummedItems::default(), RunWaits::default());
        let mut waits = 0;
        let failed = loop {
            let mut windows = ComparedWindows::new(&items, (0, 9), &mut run);
            let slow = WindowEnd::TooFast("rate-limited: wait 60 s".into());
            match windows.next_step((0, 9), slow, false) {
                Ok(NextStep::WaitFirst(wait)) => assert_eq!(wait.as_secs(), 60),
                Ok(_) => panic!("the window is compared again without a wait"),
                Err(error) => break error,
            }
            let whole = windows.next_step((0, 9), WindowEnd::Whole, true);
            assert!(matches!(whole, Ok(NextStep::Compare)));
            waits += 1;
            assert!(waits <= 60, "the waits do not end");
        };
        assert_eq!(waits, 60);
        assert!(failed.to_string().contains("rate-limited: wait 60 s"), "{failed}");
    }

    #[test]
    fn a_time_is_divided_until_it_is_one_second() {
        assert_eq!(middle(&[], 5, 5), None);
        let items: Vec<_> =
            (0..10).map(|time| NegentropyItem { time, id: [time as u8; 32] }).collect();
        assert_eq!(middle(&items, 0, u64::MAX), Some(4));
        for (mut from, to) in [(0, u64::MAX), (3, 4), (FIRST_EVENTS_S + 5, FIRST_EVENTS_S + 9)] {
            let mut steps = 0;
            while let Some(at) = middle(&[], from, to) {
                assert!(from <= at && at < to);
                (from, steps) = (at + 1, steps + 1);
                if steps == 200 {
                    break;
                }
            }
            assert!(steps > 0);
        }
    }
}
