//! Limits how many queries run in the store at a time. Sources take turns: when a query ends, the
//! next source with a waiting question may run a query, no matter how many questions each source
//! has.

use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_networks::search::AnswerWaiter;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use crate::blocking;
use crate::rate::RateSource;

/// Run time up to which a query counts against the limit of quick queries.
const QUICK: Duration = Duration::from_millis(10);
/// Maximum number of questions of one source in the queue. Further questions are refused.
const WAITING_PER_SOURCE_MAX: usize = 128;
/// Maximum number of waiting questions of all sources.
const WAITING_MAX: usize = 8_192;

/// Where the store runs its queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// In this process. Queries rarely wait for the store.
    Process,
    /// In a database on this machine, over a given number of connections.
    Machine(usize),
    /// In a database elsewhere, over a given number of connections.
    Elsewhere(usize),
}

/// On drop, informs the search that its answer is no longer needed.
struct WaiterGuard(Arc<AnswerWaiter>);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// An answer, and how long its question waited in the queue.
pub(crate) struct TurnAnswer<T> {
    pub(crate) answer: T,
    pub(crate) waited: Duration,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAsked {
    /// Too many questions are waiting already.
    Line,
    /// The query panicked.
    Panicked,
}

/// The queue: the waiting questions, by source.
#[derive(Debug)]
struct FairLine(Mutex<LineState>);

#[derive(Debug)]
struct LineState {
    free: usize,
    waiting: usize,
    /// The sources with waiting questions, each once, in the order in which they may run their next
    /// queries.
    order: VecDeque<RateSource>,
    by_source: HashMap<RateSource, VecDeque<oneshot::Sender<FairTurn>>>,
}

/// The permission to run one query. On drop, the permission goes to the next waiting question.
#[derive(Debug)]
struct FairTurn(Option<Arc<FairLine>>);

impl FairLine {
    fn new(free: usize) -> Arc<Self> {
        let (order, by_source) = (VecDeque::new(), HashMap::new());
        Arc::new(Self(Mutex::new(LineState { free, waiting: 0, order, by_source })))
    }

    /// Waits for the permission to run a query. `None` if `max` questions of the source wait
    /// already.
    async fn enter(self: &Arc<Self>, source: RateSource, max: usize) -> Option<FairTurn> {
        let turn = {
            let line = &mut *self.0.lock();
            if line.free > 0 {
                line.free -= 1;
                return Some(FairTurn(Some(Arc::clone(self))));
            }
            line.join(source, max)?
        };
        let mut place = PlaceInLine { line: self, source, turn: Some(turn) };
        let turn = place.turn.as_mut()?.await.ok();
        place.turn = None;
        turn
    }

    /// Gives the permission to the next question that still waits.
    fn pass_on(self: &Arc<Self>) {
        let mut turn = FairTurn(Some(Arc::clone(self)));
        let line = &mut *self.0.lock();
        while let Some(next) = line.next() {
            match next.send(turn) {
                Ok(()) => return,
                // The task that waited is gone.
                Err(back) => turn = back,
            }
        }
        turn.0 = None;
        line.free += 1;
    }
}

/// The place of a waiting question in the queue. If the place is dropped, the question leaves the
/// queue.
struct PlaceInLine<'a> {
    line: &'a FairLine,
    source: RateSource,
    turn: Option<oneshot::Receiver<FairTurn>>,
}

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.close();
            self.line.0.lock().leave(self.source);
        }
    }
}

impl LineState {
    /// Removes those waiting questions of a source for which no task waits any more.
    fn leave(&mut self, source: RateSource) {
        let Some(own) = self.by_source.get_mut(&source) else { return };
        let before = own.len();
        own.retain(|waiting| !waiting.is_closed());
        self.waiting -= before - own.len();
        if own.is_empty() {
            self.by_source.remove(&source);
        }
    }

    fn join(&mut self, source: RateSource, max: usize) -> Option<oneshot::Receiver<FairTurn>> {
        let own = self.by_source.entry(source).or_default();
        if own.len() >= max || self.waiting >= WAITING_MAX {
            if own.is_empty() {
                self.by_source.remove(&source);
            }
            return None;
        }
        if own.is_empty() && !self.order.contains(&source) {
            self.order.push_back(source);
        }
        let (turn, given) = oneshot::channel();
        own.push_back(turn);
        self.waiting += 1;
        Some(given)
    }

    fn next(&mut self) -> Option<oneshot::Sender<FairTurn>> {
        loop {
            let source = self.order.pop_front()?;
            let Some(own) = self.by_source.get_mut(&source) else { continue };
            let next = own.pop_front();
            if own.is_empty() {
                self.by_source.remove(&source);
            } else {
                self.order.push_back(source);
            }
            if let Some(next) = next {
                self.waiting -= 1;
                return Some(next);
            }
        }
    }
}

impl Drop for FairTurn {
    fn drop(&mut self) {
        if let Some(line) = self.0.take() {
            line.pass_on();
        }
    }
}

pub(crate) struct QuestionSlots {
    /// The fair queue, which limits the running queries.
    all: Arc<FairLine>,
    /// Permits of queries that have run for less than [`QUICK`].
    quick: Semaphore,
}

impl QuestionSlots {
    /// Creates the slots for a store at `at`. With a database on this machine, a query runs either
    /// in the database or in this process. `cores + 1` concurrent queries keep all cores busy. More
    /// queries only cause context switches: throughput falls, and the slowest queries take twice as
    /// long. A query that runs longer than [`QUICK`] waits for the disk or reads much, and no
    /// longer counts against this limit.
    pub(crate) fn new(at: StoreLocation) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let (all, quick) = match at {
            StoreLocation::Process => (cores, cores),
            StoreLocation::Machine(connections) => (connections, cores + 1),
            StoreLocation::Elsewhere(connections) => (connections, connections),
        };
        Self::of(all, quick)
    }

    fn of(all: usize, quick: usize) -> Self {
        Self { all: FairLine::new(all), quick: Semaphore::new(quick) }
    }

    /// Runs a query of `source` on a blocking thread once a permit is free. The search gets an
    /// [`AnswerWaiter`], by which it can check whether its caller still waits. A search that does
    /// not check runs to its end, even if the caller no longer waits. `ended` receives the number
    /// of visited rows, even if the caller no longer waits.
    pub(crate) async fn run_for<T: Send + 'static>(
        &self,
        source: RateSource,
        question: impl FnOnce(&AnswerWaiter) -> T + Send + 'static,
        ended: impl FnOnce(u64) + Send + 'static,
    ) -> Result<TurnAnswer<T>, NotAsked> {
        let (began, asker) = (Instant::now(), Arc::<AnswerWaiter>::default());
        let _guard = WaiterGuard(Arc::clone(&asker));
        let turn = self.all.enter(source, WAITING_PER_SOURCE_MAX).await.ok_or(NotAsked::Line)?;
        let quick = self.quick.acquire().await.map_err(|_| NotAsked::Line)?;
        let mut asking = blocking::run(move || {
            let waited = began.elapsed();
            let answer = question(&asker);
            drop(turn);
            ended(asker.visited());
            TurnAnswer { answer, waited }
        });
        if let Ok(answer) = tokio::time::timeout(QUICK, &mut asking).await {
            return answer.map_err(|_| NotAsked::Panicked);
        }
        drop(quick);
        asking.await.map_err(|_| NotAsked::Panicked)
    }

    /// Runs a query without a source.
    #[cfg(test)]
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let asked = self.run_for(RateSource::Connection(0), |_| question(), |_| {}).await;
        asked.ok().map(|done| done.answer)
    }

    /// Number of questions in the queue.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.all.0.lock().waiting
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn one_that_takes_long_leaves_its_turn_to_others() {
        let turns = QuestionSlots::of(2, 1);
        let (go, wait) = channel();
        let long = turns.run(move || wait.recv().unwrap());
        let short = async {
            let answer = turns.run(|| 1).await;
            go.send(2).unwrap();
            answer
        };
        assert_eq!(tokio::join!(long, short), (Some(2), Some(1)));
    }

    #[tokio::test]
    async fn one_who_asks_much_delays_others_by_a_turn() {
        let line = FairLine::new(1);
        let source = RateSource::Connection;
        let running = line.enter(source(1), 5).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for of in [1, 1, 1, 1, 1, 1, 2, 3, 2] {
            let mut entering = Box::pin(line.enter(source(of), 5));
            // The first poll of a question puts it into the queue, so the questions wait in the
            // order of this list.
            if let std::task::Poll::Ready(entered) = futures_util::poll!(&mut entering) {
                assert!(entered.is_none() && of == 1 && waiting.len() == 5, "the sixth of one");
                continue;
            }
            let order = Arc::clone(&order);
            waiting.push(async move {
                let turn = entering.await;
                order.lock().push(of);
                drop(turn);
            });
        }
        // A dropped question delays no other question, and its place is free again.
        drop(waiting.remove(1));
        assert_eq!(line.0.lock().waiting, 7);
        drop(running);
        futures_util::future::join_all(waiting).await;
        assert_eq!(*order.lock(), [1, 2, 3, 1, 2, 1, 1]);
        let line = line.0.lock();
        assert_eq!((line.free, line.waiting, line.by_source.len()), (1, 0, 0));
    }

    #[tokio::test]
    async fn a_search_learns_that_nobody_waits_and_its_rows_are_charged() {
        let turns = QuestionSlots::of(1, 1);
        let (began, begins) = channel();
        let (charged, charge) = channel();
        let search = turns.run_for(
            RateSource::Connection(7),
            move |asker| {
                began.send(()).unwrap();
                while !asker.is_abandoned() {
                    std::thread::yield_now();
                }
                asker.visit(5);
            },
            move |rows| charged.send(rows).unwrap(),
        );
        let mut search = Box::pin(search);
        assert!(futures_util::poll!(&mut search).is_pending());
        begins.recv().unwrap();
        drop(search);
        assert_eq!(charge.recv(), Ok(5));
        assert_eq!(turns.run(|| 3).await, Some(3));
    }

    #[tokio::test]
    async fn no_more_run_than_there_are_connections() {
        let turns = QuestionSlots::of(1, 1);
        let (go, wait) = channel();
        let long = turns.run(move || wait.recv().unwrap());
        let waiting = async {
            let early = tokio::time::timeout(QUICK * 5, turns.run(|| 1)).await;
            go.send(2).unwrap();
            early.is_err()
        };
        assert_eq!(tokio::join!(long, waiting), (Some(2), true));
        assert_eq!(turns.run(|| 3).await, Some(3));
    }
}
