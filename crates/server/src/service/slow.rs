//! The log of slow questions: filters, plan, visited rows and time. A separate thread then logs the
//! archive's explanation of each question. The log is bounded, because a client with slow questions
//! usually has many.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::{Query, Store};
use hark_networks::Network;
use parking_lot::Mutex;

use crate::metrics::{MetricLabel, SearchDriver};
use crate::roster::{AddressLines, LogBudget, OpenConnection};
use crate::settings::SharedSettings;

/// Maximum number of lines in 10 seconds; further slow questions are only counted.
const LINES_MAX: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of characters of filters in a line.
const FILTERS_MAX: usize = 4_000;
/// Maximum number of questions that wait to be explained, and maximum number of filters that are
/// explained for one question.
const ASIDE_MAX: usize = 2;
const EXPLAINED_MAX: usize = 4;

/// The log, and the number of lines logged recently.
pub(crate) struct SlowLog {
    network: &'static dyn Network,
    /// The settings. They set the time above which a question is slow.
    settings: SharedSettings,
    lines: Mutex<SlowLines>,
    /// The thread that logs explanations. `None` if the thread could not start, and once the log is
    /// closed.
    aside: Mutex<Option<Explainer>>,
}

/// The queue of questions to explain, and the thread that logs the explanations.
type Explainer = (SyncSender<SlowQuestion>, JoinHandle<()>);

/// A question that is to be explained.
#[derive(Debug)]
struct SlowQuestion {
    queries: Vec<Query>,
    counted: bool,
}

/// The bounds of the lines, in all and per address.
#[derive(Debug)]
struct SlowLines {
    addresses: AddressLines,
    budget: LogBudget,
}

/// The cost of a question.
pub(crate) struct SearchCost {
    /// Total time of the question's searches.
    pub(crate) time: Duration,
    /// Time until the first search began.
    pub(crate) waited: Duration,
    pub(crate) rows: u64,
    /// The plan of the slowest search.
    pub(crate) plan: SearchDriver,
}

impl SlowLog {
    /// Creates a log of questions that are slow by the settings in force. `store` reports
    /// the plans of the questions.
    pub(crate) fn new(
        settings: SharedSettings,
        store: &Arc<dyn Store>,
        network: &'static dyn Network,
    ) -> Self {
        let (aside, due) = sync_channel(ASIDE_MAX);
        let store = Arc::downgrade(store);
        let thread = std::thread::Builder::new().name("hark-slow".into());
        let aside = match thread.spawn(move || explain_all(&store, network, &due)) {
            Ok(thread) => Some((aside, thread)),
            Err(error) => {
                tracing::warn!(%error, "slow questions are not explained: no thread");
                None
            }
        };
        let budget = LogBudget::new(LINES_MAX, WINDOW);
        let lines = Mutex::new(SlowLines { addresses: AddressLines::default(), budget });
        Self { network, settings, lines, aside: Mutex::new(aside) }
    }

    /// Whether a question that took `time` is logged.
    pub(crate) fn is_slow(&self, time: Duration) -> bool {
        self.settings.load().slow_question.is_some_and(|from| time >= from)
    }

    /// Logs a question if it was slow. At most once a minute, a question of an address is logged,
    /// with the number of the address's slow questions that were not logged. `client` is `None` if
    /// the question came by a connection that is in no list.
    pub(crate) fn note<'a>(
        &self,
        verb: &str,
        spent: &SearchCost,
        client: Option<&OpenConnection>,
        asked: impl Iterator<Item = (&'a Query, usize)> + Clone,
    ) {
        if !self.is_slow(spent.time) {
            return;
        }
        // A program on this machine, such as Tor, may stand for many clients, so only the bound of
        // all lines applies to the loopback address.
        let own_ip = client.and_then(OpenConnection::client_ip).filter(|ip| !ip.is_loopback());
        let Some(suppressed) = self.count(own_ip, Instant::now()) else { return };
        let (_, plan) = SearchDriver::ALL[spent.plan.number()];
        let shown = self.settings.load().addresses_shown;
        let address = client.map_or("-".into(), |client| shown.show(client.ip()));
        let key = client.and_then(OpenConnection::key);
        tracing::warn!(
            %address,
            key = key.as_deref().unwrap_or("-"),
            suppressed,
            shelf = self.network.name(),
            verb,
            ms = spent.time.as_millis() as u64,
            waited_ms = spent.waited.as_millis() as u64,
            rows = spent.rows,
            plan,
            filters = filters(self.network, asked.clone()),
            "a slow question"
        );
        if let Some((aside, _)) = &*self.aside.lock() {
            let queries = asked.take(EXPLAINED_MAX);
            let queries = queries.map(|(query, limit)| Query { limit, ..query.clone() }).collect();
            // If the queue is full, this question is not explained.
            let _ = aside
                .try_send(SlowQuestion { queries, counted: spent.plan == SearchDriver::Count });
        }
    }

    /// Stops explaining questions, and waits until the thread has ended, so that the store can be
    /// closed.
    pub(crate) fn close(&self) {
        let aside = self.aside.lock().take();
        if let Some((aside, thread)) = aside {
            drop(aside);
            let _ = thread.join();
        }
    }

    /// Counts a slow question. Returns the number of suppressed lines of its address if the
    /// question is to be logged.
    fn count(&self, ip: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut lines = self.lines.lock();
        let suppressed = match ip {
            Some(ip) => lines.addresses.note(ip, now, 1)? - 1,
            None => 0,
        };
        let report = |left_out| {
            tracing::warn!(left_out, "further slow questions were only counted");
        };
        lines.budget.has_room(now, report).then_some(suppressed)
    }
}

impl Drop for SlowLog {
    fn drop(&mut self) {
        self.close();
    }
}

/// Logs the archive's explanations of slow questions. An explanation without details is not logged.
/// An explanation may take as long as the question took.
fn explain_all(store: &Weak<dyn Store>, network: &dyn Network, due: &Receiver<SlowQuestion>) {
    for SlowQuestion { queries, counted } in due {
        for query in queries {
            let Some(store) = store.upgrade() else { return };
            let explained =
                if counted { store.explain_count(&query) } else { store.explain(&query) };
            let filter = filters(network, [(&query, query.limit)].into_iter());
            match explained {
                Ok(explained) if explained.details.is_empty() => {}
                Ok(explained) => {
                    tracing::warn!(filter, "how it was answered: {}", explained.to_string().trim());
                }
                Err(error) => tracing::warn!(filter, %error, "a slow question is not explained"),
            }
        }
    }
}

/// The filters of questions, in the form that `hark explain` reads; cut if they are long.
fn filters<'a>(network: &dyn Network, queries: impl Iterator<Item = (&'a Query, usize)>) -> String {
    let mut out = String::new();
    for (query, limit) in queries {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&network.filters().text(&Query { limit, ..query.clone() }));
    }
    let chars = out.len();
    if let Some((cut, _)) = out.char_indices().nth(FILTERS_MAX) {
        out.truncate(cut);
        let _ = write!(out, "... ({chars} bytes in all)");
    }
    out
}

#[cfg(test)]
mod tests {
    use hark_archive::effects::KeepAll;
    use hark_archive::store::memory::MemoryStore;
    use hark_testkit::toy::Toy;

    use super::*;

    #[test]
    fn long_filters_are_cut() {
        let topic = "long".repeat(FILTERS_MAX);
        let query = Toy.filters().query(&topic, &mut |_| Some(Vec::new())).unwrap().unwrap();
        let said = filters(&Toy, [(&query, 5)].into_iter());
        assert!(said.len() < FILTERS_MAX + 50 && said.ends_with("bytes in all)"), "{said}");
    }

    #[test]
    fn many_slow_questions_are_a_few_lines() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(KeepAll));
        let log = SlowLog::new(SharedSettings::default(), &store, &Toy);
        let (now, count) = (Instant::now(), |ip, now| log.count(ip, now));
        assert_eq!((0..1_000).filter(|_| count(None, now).is_some()).count() as u64, LINES_MAX);
        // One address has one line a minute, so other addresses have lines too.
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let later = now + WINDOW;
        let lines: Vec<_> = (0..1_000).map(|_| count(one, later)).collect();
        assert_eq!((lines[0], lines.iter().flatten().count()), (Some(0), 1));
        assert_eq!(count(other, later), Some(0));
        assert_eq!(count(one, later + Duration::from_mins(1)), Some(999));
    }
}
