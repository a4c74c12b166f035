//! The load: threads that publish, each with its own connection, and threads that query.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::future::join_all;
use tokio::runtime::Runtime;

use super::publisher::Publisher;
use super::rest::{RestClient, RestConnection, count_messages, encoded, runtime};
use super::totals::{AcceptedMessage, REST, RequestTotals, draft};
use super::watch::{WatchSelector, watch};
use crate::args::WakuBenchArgs;
use crate::schedule::Schedule;
use crate::websocket::Url;

/// How long to query if nothing is published and `--seconds` is not given.
const SECONDS: f64 = 10.0;
/// The queries of one shape, and how long the first answer took.
pub(super) struct ShapeQueries {
    pub(super) name: &'static str,
    pub(super) may_be_empty: bool,
    pub(super) queries: Vec<String>,
    pub(super) first: Option<Duration>,
}

/// The results of a load.
pub(super) struct LoadResult {
    /// The results of publishing, without latencies if messages are watched.
    pub(super) published: RequestTotals,
    pub(super) accepted: Vec<AcceptedMessage>,
    /// The results of each [`ShapeQueries`].
    pub(super) answers: Vec<RequestTotals>,
    /// The watched messages, see [`watch`].
    pub(super) watched: Option<RequestTotals>,
}

/// Publishes and queries at the same time. If the node does not answer publications, `watcher`
/// measures the time until each message can be read.
pub(super) fn drive(
    args: &WakuBenchArgs,
    bytes: usize,
    start: Instant,
    publishers: &mut [Publisher],
    watcher: Option<RestClient>,
    readers: Vec<HistoryReaders>,
    questions: &[ShapeQueries],
) -> anyhow::Result<LoadResult> {
    let publishing = Schedule::new(start, args.publish_rate).most(args.messages);
    let seconds = args.seconds.or((args.messages == 0).then_some(SECONDS));
    let mut asking = Schedule::new(start, args.query_rate);
    if let Some(seconds) = seconds {
        asking = asking.until(start + Duration::from_secs_f64(seconds));
    }
    let begun = AtomicUsize::new(0);
    let settle = Duration::from_secs_f64(args.settle);
    let pubsub_topic = args.pubsub_topic.clone().unwrap_or_default();
    let (published, asked, mut watched) = std::thread::scope(|scope| {
        let (publishing, asking, begun) = (&publishing, &asking, &begun);
        let watching = watcher.map(|client| {
            let (choice, chosen) = WatchSelector::new(pubsub_topic, start);
            (choice, scope.spawn(move || watch(client, &chosen, settle)))
        });
        let (choice, watching) = watching.unzip();
        let publishers: Vec<_> = (0..)
            .zip(publishers)
            .map(|(at, publisher)| {
                let choice = choice.clone();
                scope.spawn(move || publish(publisher, publishing, choice.as_ref(), at, bytes))
            })
            .collect();
        // The watcher ends once each publisher has dropped its clone of `choice`, and this function
        // the original.
        drop(choice);
        let readers: Vec<_> = readers
            .into_iter()
            .map(|readers| {
                scope.spawn(move || {
                    readers.ask(|reader| ask(reader, asking, questions, begun, args.pages))
                })
            })
            .collect();
        let published = join(publishers);
        if seconds.is_none() || published.is_err() {
            asking.stop();
        }
        let (asked, watched) = (join(readers), join(watching));
        anyhow::Ok((published?, asked?, watched?))
    })?;
    let mut driven = LoadResult {
        published: RequestTotals::default(),
        accepted: Vec::new(),
        answers: questions.iter().map(|_| RequestTotals::default()).collect(),
        watched: watched.pop(),
    };
    for (done, accepted) in published {
        driven.published.add(done);
        driven.accepted.extend(accepted);
    }
    for done in asked.into_iter().flatten() {
        driven.answers.iter_mut().zip(done).for_each(|(sum, done)| sum.add(done));
    }
    Ok(driven)
}

/// The readers that one thread drives.
pub(super) struct HistoryReaders {
    runtime: Runtime,
    connections: Vec<RestConnection>,
}

impl HistoryReaders {
    /// Opens `count` readers. With a rate, each reader has a thread, as the reader blocks until a
    /// request is due. Without a rate, a single thread is enough and leaves more CPU to a node on
    /// the same machine.
    pub(super) fn open(url: &Url, count: usize, rate: Option<f64>) -> anyhow::Result<Vec<Self>> {
        let threads = if rate.is_some() { vec![1; count] } else { vec![count] };
        let open = |count| {
            let runtime = runtime()?;
            let connections = (0..count).map(|_| runtime.block_on(RestConnection::open(url)));
            Ok(Self { connections: connections.collect::<Result<_, _>>()?, runtime })
        };
        threads.into_iter().filter(|count| *count > 0).map(open).collect()
    }

    /// Runs `ask` on every connection at once and returns the results.
    fn ask<T, F>(self, ask: impl Fn(RestConnection) -> F) -> anyhow::Result<Vec<T>>
    where
        F: Future<Output = anyhow::Result<T>>,
    {
        let asked = self.runtime.block_on(join_all(self.connections.into_iter().map(ask)));
        asked.into_iter().collect()
    }
}

fn join<'scope, T: 'scope>(
    threads: impl IntoIterator<Item = ScopedJoinHandle<'scope, anyhow::Result<T>>>,
) -> anyhow::Result<Vec<T>> {
    threads.into_iter().map(|thread| thread.join().ok().context("a thread has panicked")?).collect()
}

/// Runs one of several publishers. Returns its results and the messages that the node accepted.
fn publish(
    publisher: &mut Publisher,
    schedule: &Schedule,
    choice: Option<&WatchSelector>,
    at: u64,
    bytes: usize,
) -> anyhow::Result<(RequestTotals, Vec<AcceptedMessage>)> {
    let (mut done, mut accepted) = (RequestTotals::default(), Vec::new());
    for number in 0.. {
        let seed = at << 32 | number;
        let draft = draft(seed, bytes);
        let Some((_, due)) = schedule.next() else { break };
        let is_chosen = choice.is_some_and(|choice| choice.takes(due));
        match publisher.publish(&draft)? {
            Ok(time_ns) => {
                match choice {
                    Some(choice) => {
                        done.ended();
                        if is_chosen {
                            choice.watch(&draft, time_ns, due);
                        }
                    }
                    None => done.answered(due),
                }
                accepted.push(AcceptedMessage { seed, time_ns });
            }
            Err(refused) => {
                done.refused(&refused);
                std::thread::sleep(REST);
            }
        }
    }
    Ok((done, accepted))
}

/// Runs one of several readers. Returns its results for each question. The reader requests up to
/// `pages_max` pages of an answer and then begins the next query; `begun` counts the queries of all
/// readers.
async fn ask(
    mut reader: RestConnection,
    schedule: &Schedule,
    questions: &[ShapeQueries],
    begun: &AtomicUsize,
    pages_max: usize,
) -> anyhow::Result<Vec<RequestTotals>> {
    let mut all: Vec<RequestTotals> = questions.iter().map(|_| RequestTotals::default()).collect();
    // The answer being read: its question, its query, the pages so far, and the next page's cursor.
    let mut following: Option<(usize, &str, usize, String)> = None;
    while let Some((_, due)) = schedule.next() {
        let (at, query, pages, cursor) = following.take().unwrap_or_else(|| {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            let at = number % questions.len();
            let queries = &questions[at].queries;
            // The first query was run before the load.
            (at, &queries[(number / questions.len() + 1) % queries.len()], 0, String::new())
        });
        let done = &mut all[at];
        match reader.messages(&format!("{query}{cursor}")).await? {
            Ok(body) => {
                done.answered(due);
                let (messages, cursor) = count_messages(&body)?;
                done.messages += messages;
                following = cursor
                    .filter(|_| pages + 1 < pages_max)
                    .map(|cursor| (at, query, pages + 1, format!("&cursor={}", encoded(&cursor))));
            }
            Err(refused) => {
                done.refused(&refused);
                tokio::time::sleep(REST).await;
            }
        }
    }
    Ok(all)
}
