//! The load: threads that publish and threads that ask, each with a connection of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::de::IgnoredAny;

use super::messages::{Draft, TOPICS, now_ns};
use super::rest::{Answer, Client, encoded, page};
use crate::cli::StoreArgs;
use crate::latency::Latencies;
use crate::random::Random;
use crate::schedule::Schedule;
use crate::target::Refusals;

/// How long is asked where nothing is published and nobody says.
const SECONDS: f64 = 10.0;
/// Whoever is refused tries no faster for it.
const REST: Duration = Duration::from_millis(50);

/// A shape with what is asked, and how long its first answer took.
pub(super) struct Question {
    pub(super) name: &'static str,
    pub(super) may_be_empty: bool,
    pub(super) queries: Vec<String>,
    pub(super) first: Option<Duration>,
}

/// A message that a node has taken.
pub(super) struct Taken {
    /// What its draft is drawn from.
    seed: u64,
    pub(super) time_ns: i64,
}

impl Taken {
    /// The message again.
    pub(super) fn draft(&self, bytes: usize) -> Draft {
        draft(self.seed, bytes)
    }
}

fn draft(seed: u64, bytes: usize) -> Draft {
    Draft::draw(&mut Random::new(seed), TOPICS, bytes)
}

/// Requests of a kind.
#[derive(Default)]
pub(super) struct Done {
    pub(super) count: u64,
    pub(super) messages: u64,
    pub(super) times: Latencies,
    pub(super) refusals: Refusals,
    /// When the last was answered.
    pub(super) ended: Option<Instant>,
}

impl Done {
    fn answered(&mut self, due: Instant) {
        let now = Instant::now();
        self.count += 1;
        self.times.add(now - due);
        self.ended = Some(now);
    }

    fn refused(&mut self, what: &str, reason: &str) {
        self.refusals.add(what, reason);
        std::thread::sleep(REST);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.messages += other.messages;
        self.times.merge(&other.times);
        self.refusals.merge(other.refusals);
        self.ended = self.ended.max(other.ended);
    }
}

/// Publishes and asks at the same time. Gives what came of it: of publications, which messages were
/// taken, and of each question.
pub(super) fn drive(
    args: &StoreArgs,
    bytes: usize,
    start: Instant,
    publishers: Vec<Client>,
    readers: Vec<Client>,
    questions: &[Question],
) -> anyhow::Result<(Done, Vec<Taken>, Vec<Done>)> {
    let publishing = Schedule::new(start, args.publish_rate).most(args.messages);
    let seconds = args.seconds.or((args.messages == 0).then_some(SECONDS));
    let mut asking = Schedule::new(start, args.query_rate);
    if let Some(seconds) = seconds {
        asking = asking.until(start + Duration::from_secs_f64(seconds));
    }
    let begun = AtomicUsize::new(0);
    let (published, asked) = std::thread::scope(|scope| {
        let (publishing, asking, begun) = (&publishing, &asking, &begun);
        let publishers: Vec<_> = (0..)
            .zip(publishers)
            .map(|(at, client)| scope.spawn(move || publish(args, client, publishing, at, bytes)))
            .collect();
        let readers: Vec<_> = readers
            .into_iter()
            .map(|client| scope.spawn(move || ask(client, asking, questions, begun, args.pages)))
            .collect();
        let published = join(publishers);
        if seconds.is_none() || published.is_err() {
            asking.stop();
        }
        let asked = join(readers);
        anyhow::Ok((published?, asked?))
    })?;
    let (mut publications, mut taken) = (Done::default(), Vec::new());
    for (done, some) in published {
        publications.add(done);
        taken.extend(some);
    }
    let mut answers: Vec<Done> = questions.iter().map(|_| Done::default()).collect();
    for done in asked {
        answers.iter_mut().zip(done).for_each(|(sum, done)| sum.add(done));
    }
    Ok((publications, taken, answers))
}

fn join<T>(threads: Vec<ScopedJoinHandle<'_, anyhow::Result<T>>>) -> anyhow::Result<Vec<T>> {
    threads.into_iter().map(|thread| thread.join().ok().context("a thread has panicked")?).collect()
}

/// One publisher of several, with all that was taken from it.
fn publish(
    args: &StoreArgs,
    mut client: Client,
    schedule: &Schedule,
    publisher: u64,
    bytes: usize,
) -> anyhow::Result<(Done, Vec<Taken>)> {
    let path = match &args.pubsub_topic {
        Some(topic) => format!("/relay/v1/messages/{}", encoded(topic)),
        None => "/relay/v1/auto/messages".into(),
    };
    let (mut done, mut taken) = (Done::default(), Vec::new());
    for number in 0.. {
        let seed = publisher << 32 | number;
        let draft = draft(seed, bytes);
        let mut json = Vec::with_capacity(bytes * 4 / 3 + 200);
        let Some((_, due)) = schedule.next() else { break };
        let time_ns = now_ns()?;
        draft.write_json(time_ns, &mut json);
        match client.post(&path, json)? {
            Answer::Body(_) => {
                done.answered(due);
                taken.push(Taken { seed, time_ns });
            }
            Answer::Refused { what, reason } => done.refused(&what, &reason),
        }
    }
    Ok((done, taken))
}

/// One reader of several, with what it got of each question. It goes on with the next page of an answer
/// until there is none, or it has asked for as many as it may; then it takes the next question that
/// nobody has `begun`.
fn ask(
    mut client: Client,
    schedule: &Schedule,
    questions: &[Question],
    begun: &AtomicUsize,
    pages_max: usize,
) -> anyhow::Result<Vec<Done>> {
    let mut all: Vec<Done> = questions.iter().map(|_| Done::default()).collect();
    // The answer that it is in: which question, pages so far, and where the next begins.
    let mut following: Option<(usize, &str, usize, String)> = None;
    while let Some((_, due)) = schedule.next() {
        let (at, query, pages, cursor) = following.take().unwrap_or_else(|| {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            let at = number % questions.len();
            let queries = &questions[at].queries;
            // The first one has been asked.
            (at, &queries[(number / questions.len() + 1) % queries.len()], 0, String::new())
        });
        let done = &mut all[at];
        match client.messages(&format!("{query}{cursor}"))? {
            Answer::Body(body) => {
                done.answered(due);
                let page = page::<IgnoredAny>(&body)?;
                done.messages += page.messages.len() as u64;
                following = page
                    .cursor
                    .filter(|_| pages + 1 < pages_max)
                    .map(|cursor| (at, query, pages + 1, format!("&cursor={}", encoded(&cursor))));
            }
            Answer::Refused { what, reason } => done.refused(&what, &reason),
        }
    }
    Ok(all)
}
