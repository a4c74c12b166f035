//! Sends the questions of a case repeatedly and measures the times. With several servers, the
//! questions go to the servers in turn, as a load balancer would send them to backends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::case::{Case, CaseForm, CaseQuestions};
use super::setup::{CaseSetup, SpentCpu};
use super::walk::{AskedProgress, ask};
use crate::latency::Latencies;
use crate::target::Refusals;
use crate::websocket::{ConnectionKind, RelayConnection, Url};

/// The length of the warm-up, which is not counted, as a share of the measured time.
const WARM_UP: f64 = 0.35;
/// The longest wait until the servers are under full load.
const START_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Totals of the answers of a round.
#[derive(Default)]
pub(super) struct RoundTotals {
    /// Number of questions, answered or not.
    pub(super) asked: u64,
    pub(super) failed: u64,
    pub(super) events: u64,
    pub(super) pages: u64,
    /// Times of the questions that were answered.
    pub(super) times: Latencies,
    pub(super) refusals: Refusals,
    /// The number of events in each answer, by the number of the question.
    found: HashMap<usize, u64>,
}

impl RoundTotals {
    pub(super) fn merge(&mut self, other: Self) {
        self.asked += other.asked;
        self.failed += other.failed;
        self.events += other.events;
        self.pages += other.pages;
        self.times.merge(&other.times);
        self.refusals.merge(other.refusals);
        self.found.extend(other.found);
    }

    /// Divides a sum over all questions by the number of answers.
    pub(super) fn each(&self, sum: f64) -> Option<f64> {
        let answered = self.asked - self.failed;
        (answered > 0).then(|| sum / answered as f64)
    }
}

/// The number of events of each answer, by form and question. All servers must find equally many
/// events.
#[derive(Default)]
pub(super) struct FoundEvents([HashMap<usize, u64>; super::case::FORMS.len()]);

impl FoundEvents {
    /// Adds the answers of a round, and returns how many of them differ from earlier answers.
    pub(super) fn compare(&mut self, form: CaseForm, totals: &RoundTotals) -> usize {
        let Some(known) = self.0.get_mut(form.index()) else { return 0 };
        let found = totals.found.iter();
        found
            .filter(|(number, events)| known.entry(**number).or_insert(**events) != *events)
            .count()
    }
}

/// One of several concurrent clients, with a connection to each server.
struct Asker {
    connections: Vec<RelayConnection>,
    /// The number of the next question, which also chooses the server.
    next: usize,
}

impl Asker {
    /// Connects the clients of a case. Each begins with a different question and a different
    /// server.
    async fn connect(urls: &[Url], at_once: usize, questions: usize) -> anyhow::Result<Vec<Self>> {
        let mut askers = Vec::with_capacity(at_once);
        for number in 0..at_once {
            let mut connections = Vec::with_capacity(urls.len());
            for url in urls {
                connections.push(RelayConnection::open(url, ConnectionKind::Busy).await?);
            }
            askers.push(Self { connections, next: number * questions / at_once + number });
        }
        Ok(askers)
    }

    /// Sends questions until this time. An answer that has begun is read to its end.
    async fn run(
        mut self,
        questions: Arc<CaseQuestions>,
        form: CaseForm,
        until: Instant,
        progress: Arc<AskedProgress>,
    ) -> anyhow::Result<(Self, RoundTotals)> {
        let (all, limit) = (questions.of(form.area), questions.page_of(form.extent));
        let mut totals = RoundTotals::default();
        while Instant::now() < until {
            let (number, server) = (self.next % all.len(), self.next % self.connections.len());
            self.next += 1;
            let question = all.get(number).context("there are no questions")?;
            let connection = self.connections.get_mut(server).context("there is no server")?;
            let sent = Instant::now();
            totals.asked += 1;
            let answered = ask(connection, question, form.extent, limit, &progress).await?;
            if let Some(size) = answered {
                totals.times.add(sent.elapsed());
                totals.events += size.events;
                totals.pages += size.pages;
                totals.found.insert(number, size.events);
            } else {
                totals.failed += 1;
                // After a refusal for too many questions, the pause avoids further refusals.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok((self, totals))
    }
}

/// The rate of pages and the CPU time while the servers are under full load.
pub(super) struct FullLoad {
    pub(super) pages_per_s: f64,
    pub(super) spent: SpentCpu,
    pub(super) seconds: f64,
}

/// Connections to the servers of a setup, for rounds of a case.
pub(super) struct CaseRound<'a> {
    case: Case,
    questions: &'a Arc<CaseQuestions>,
    askers: Vec<Asker>,
}

impl<'a> CaseRound<'a> {
    pub(super) async fn connect(
        urls: &[Url],
        case: Case,
        questions: &'a Arc<CaseQuestions>,
    ) -> anyhow::Result<Self> {
        let count = questions.of(case.form.area).len();
        let askers = Asker::connect(urls, case.at_once, count).await?;
        Ok(Self { case, questions, askers })
    }

    /// Sends questions for a while without counting, so that caches and connections are as in a
    /// long run.
    pub(super) async fn warm_up(&mut self, length: Duration) -> anyhow::Result<()> {
        self.ask(length.mul_f64(WARM_UP)).await.map(drop)
    }

    /// Sends questions for `length`, and reads the answers that have begun by then.
    pub(super) async fn ask(&mut self, length: Duration) -> anyhow::Result<RoundTotals> {
        let progress = Arc::new(AskedProgress::default());
        let until = Instant::now() + length;
        let mut tasks = Vec::new();
        for asker in std::mem::take(&mut self.askers) {
            let (questions, progress) = (Arc::clone(self.questions), Arc::clone(&progress));
            tasks.push(tokio::spawn(asker.run(questions, self.case.form, until, progress)));
        }
        let mut sum = RoundTotals::default();
        for task in tasks {
            let (asker, totals) = task.await?.with_context(|| self.case.name())?;
            self.askers.push(asker);
            sum.merge(totals);
        }
        sum.refusals.merge(progress.refusals.lock().clone());
        Ok(sum)
    }

    /// Sends the first `count` questions once each.
    pub(super) async fn ask_first(&mut self, count: usize) -> anyhow::Result<RoundTotals> {
        let progress = AskedProgress::default();
        let (extent, mut sum) = (self.case.form.extent, RoundTotals::default());
        let limit = self.questions.page_of(extent);
        let asker = self.askers.first_mut().context("nobody asks")?;
        let connection = asker.connections.first_mut().context("there is no server")?;
        for question in self.questions.of(self.case.form.area).iter().take(count) {
            sum.asked += 1;
            match ask(connection, question, extent, limit, &progress).await? {
                Some(size) => {
                    sum.events += size.events;
                    sum.pages += size.pages;
                }
                None => sum.failed += 1,
            }
        }
        Ok(sum)
    }

    /// Measures the pages received during `length`. The measurement begins when the number of
    /// received pages has reached the number of concurrent questions, so that even slow servers are
    /// under full load by then. An unfinished answer counts with the pages that were received, and
    /// is abandoned at the end.
    pub(super) async fn full_load(
        self,
        setup: &CaseSetup<'_>,
        length: Duration,
    ) -> anyhow::Result<FullLoad> {
        let progress = Arc::new(AskedProgress::default());
        let (end, first) = (Instant::now() + START_MAX, self.askers.len());
        let mut tasks = tokio::task::JoinSet::new();
        for asker in self.askers {
            let (questions, progress) = (Arc::clone(self.questions), Arc::clone(&progress));
            tasks.spawn(asker.run(questions, self.case.form, end + length + length, progress));
        }
        let pages = || progress.pages.load(Ordering::Relaxed);
        tokio::time::sleep(length.mul_f64(WARM_UP)).await;
        while pages() < first as u64 && Instant::now() < end {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let (used, before, start) = (setup.used()?, pages(), Instant::now());
        tokio::time::sleep(length).await;
        let (received, seconds) = (pages() - before, start.elapsed().as_secs_f64());
        let spent = setup.used()?.minus(&used);
        // A client that has ended this early has failed.
        if let Some(ended) = tasks.try_join_next() {
            ended?.with_context(|| self.case.name())?;
        }
        Ok(FullLoad { pages_per_s: received as f64 / seconds, spent, seconds })
    }
}
