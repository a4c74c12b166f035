//! Limits how many queries run in the store at a time. Queries start in the order they arrive.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::blocking;

/// How long a query counts as one of those that share the cores.
const QUICK: Duration = Duration::from_millis(10);

/// Where the store does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// In this process. Queries rarely wait for the store.
    Process,
    /// In a database on this machine, over a given number of connections.
    Machine(usize),
    /// In a database elsewhere, over a given number of connections.
    Elsewhere(usize),
}

pub(crate) struct QuestionSlots {
    /// Permits of running queries.
    all: Arc<Semaphore>,
    /// Permits of queries that have run for less than [`QUICK`].
    quick: Semaphore,
}

impl QuestionSlots {
    /// With a database on this machine, a query runs either in the database or in this process. One
    /// concurrent query more than there are cores keeps all cores busy. Further ones only cause
    /// context switches: throughput falls, and the slowest queries take twice as long. A query
    /// above [`QUICK`] waits for the disk or reads much; it no longer counts against this limit.
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
        Self { all: Arc::new(Semaphore::new(all)), quick: Semaphore::new(quick) }
    }

    /// Runs a query on a blocking thread once a permit is free. `None` if the query panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.all).acquire_owned().await.ok()?;
        let quick = self.quick.acquire().await.ok()?;
        // The query runs to its end, even if its caller no longer waits for it.
        let mut asking = blocking::run(move || {
            let answer = question();
            drop(turn);
            answer
        });
        if let Ok(answer) = tokio::time::timeout(QUICK, &mut asking).await {
            return answer.ok();
        }
        drop(quick);
        asking.await.ok()
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
