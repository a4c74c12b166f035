//! Measures how long a question takes in one of the ways to answer, with one thread and with
//! several threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::answer::AnswerBuffer;
use super::store::StoreQuestion;
use super::ways::{AnswerWay, EnvelopeAsker};

/// The approximate length of a round. If answers are faster, each thread asks several times per
/// round.
const ROUND: Duration = Duration::from_millis(20);
/// Maximum number of answers of a thread in a round.
const ANSWERS_MAX: f64 = 10_000.0;

/// The times of one question, asked in one way by one or more threads at once.
#[derive(Clone, Debug, Default)]
pub(super) struct QuestionTimes {
    /// Number of envelopes of an answer, and their total size in bytes.
    pub(super) envelopes: u64,
    pub(super) sent_bytes: u64,
    /// The time of an answer in each round, in ms, ascending: the round's duration divided by the
    /// number of answers of each thread.
    rounds_ms: Vec<f64>,
}

impl QuestionTimes {
    pub(super) fn median_ms(&self) -> Option<f64> {
        self.rounds_ms.get(self.rounds_ms.len() / 2).copied()
    }

    pub(super) fn min_ms(&self) -> Option<f64> {
        self.rounds_ms.first().copied()
    }
}

/// A querying thread.
struct AskingThread<'a> {
    asker: Box<dyn EnvelopeAsker + 'a>,
    answer: AnswerBuffer,
    result: anyhow::Result<()>,
}

impl AskingThread<'_> {
    /// Asks the question this number of times, unless the thread has failed before.
    fn ask(&mut self, question: &StoreQuestion, times: u64) {
        for _ in 0..times {
            if self.result.is_ok() {
                self.answer.clear();
                self.result = self.asker.ask(question, &mut self.answer);
            }
        }
    }
}

/// Asks with `threads` threads at once, in up to `runs` rounds. No round begins after `limit`. A
/// first round, in which each thread asks once, is not counted unless that round alone exceeds
/// `limit`.
pub(super) fn measure(
    way: &AnswerWay<'_>,
    question: &StoreQuestion,
    threads: usize,
    runs: usize,
    limit: Duration,
) -> anyhow::Result<QuestionTimes> {
    let mut asking = Vec::new();
    for _ in 0..threads {
        asking.push(AskingThread {
            asker: (way.open)()?,
            answer: AnswerBuffer::new(),
            result: Ok(()),
        });
    }
    let rounds_ms = rounds(&mut asking, question, runs, limit);
    let mut found: Option<QuestionTimes> = None;
    for AskingThread { answer, result, .. } in asking {
        result?;
        let one = QuestionTimes {
            envelopes: answer.envelopes,
            sent_bytes: answer.sent_bytes,
            rounds_ms: rounds_ms.clone(),
        };
        let same = found.as_ref().is_none_or(|other| other.envelopes == one.envelopes);
        ensure!(same, "two threads received different numbers of envelopes");
        found = Some(one);
    }
    found.context("there must be a thread")
}

/// Runs the rounds and returns the time of an answer in each round, in ms, ascending.
fn rounds(
    asking: &mut [AskingThread<'_>],
    question: &StoreQuestion,
    runs: usize,
    limit: Duration,
) -> Vec<f64> {
    if let [one] = asking {
        return plan_rounds(runs, limit, |times| one.ask(question, times));
    }
    let (round, over, times) =
        (Barrier::new(asking.len() + 1), AtomicBool::new(false), AtomicU64::new(1));
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        for thread in asking {
            scope.spawn(|| {
                loop {
                    round.wait();
                    if over.load(Ordering::Acquire) {
                        return;
                    }
                    thread.ask(question, times.load(Ordering::Acquire));
                    round.wait();
                }
            });
        }
        found = plan_rounds(runs, limit, |each| {
            times.store(each, Ordering::Release);
            round.wait();
            round.wait();
        });
        over.store(true, Ordering::Release);
        round.wait();
    });
    found
}

/// Calls `round` with the number of questions for each thread. Returns the time of an answer in
/// each round, in ms, ascending.
fn plan_rounds(runs: usize, limit: Duration, mut round: impl FnMut(u64)) -> Vec<f64> {
    let start = Instant::now();
    let mut timed = |times: u64| {
        let begun = Instant::now();
        round(times);
        begun.elapsed().as_secs_f64() / times as f64
    };
    let first = timed(1);
    let times = (ROUND.as_secs_f64() / first.max(1e-9)).clamp(1.0, ANSWERS_MAX) as u64;
    let mut found = Vec::new();
    while found.len() < runs && start.elapsed() < limit {
        found.push(timed(times) * 1e3);
    }
    if found.is_empty() {
        found.push(first * 1e3);
    }
    found.sort_by(f64::total_cmp);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whisper::questions::QuestionForm;
    use crate::whisper::store::WantedTopics;

    /// An asker that answers with three envelopes, and can fail after a number of answers.
    struct Fixed(Option<u32>);

    impl EnvelopeAsker for Fixed {
        fn ask(&mut self, _: &StoreQuestion, answer: &mut AnswerBuffer) -> anyhow::Result<()> {
            if let Some(left) = &mut self.0 {
                *left = left.checked_sub(1).context("it has failed")?;
            }
            (0..3).for_each(|_| answer.push(b"rlp"));
            Ok(())
        }
    }

    #[test]
    fn all_threads_answer_in_all_rounds_and_failures_are_reported() {
        let wanted = WantedTopics::Topics(Vec::new());
        let question = StoreQuestion { wanted, times_s: (0, 1), newest_first: true, limit: None };
        let way = |fails: Option<u32>| AnswerWay {
            name: "fixed",
            form: QuestionForm::Topics,
            is_own: true,
            open: Box::new(move || Ok(Box::new(Fixed(fails)))),
        };
        for threads in [1, 4] {
            let times = measure(&way(None), &question, threads, 3, Duration::from_mins(1)).unwrap();
            assert_eq!((times.envelopes, times.sent_bytes, times.rounds_ms.len()), (3, 9, 3));
            assert!(times.min_ms() <= times.median_ms());
            let once = measure(&way(None), &question, threads, 3, Duration::ZERO).unwrap();
            assert_eq!(once.rounds_ms.len(), 1);
            let failed = measure(&way(Some(2)), &question, threads, 3, Duration::from_mins(1));
            assert_eq!(failed.unwrap_err().to_string(), "it has failed");
        }
    }
}
