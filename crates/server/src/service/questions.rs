//! Charges questions to their sources, and searches for the pages that answer the questions. A
//! search may visit a fixed number of rows at once. A search that needs more rows waits in the fair
//! queue of all sources. Slow questions are logged.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::query::plan::Set;
use hark_archive::{Query, Store};
use hark_networks::search::{AnswerWaiter, BoundedSearch};

use super::slow::{SearchCost, SlowLog};
use super::turns::{NotAsked, QuestionSlots, StoreLocation, TurnAnswer};
use crate::limits::Rate;
use crate::metrics::SearchDriver;
use crate::rate::{ClientRates, RateBuckets, RateLimiter, RateSource, RateSubject};
use crate::roster::{self, ClientRefusal};
use crate::settings::SharedSettings;
use crate::shelf::Shelf;

/// Number of rows that a search may visit on an async worker thread, which other tasks share.
const ROWS_AT_ONCE: u64 = 20_000;

/// The questions of a shelf; see the module.
pub(crate) struct Questions {
    store: Arc<dyn Store>,
    at: StoreLocation,
    slots: QuestionSlots,
    slow: SlowLog,
    /// The token buckets of each source. The network's own settings contain the rates.
    buckets: RateBuckets,
    /// Bounds for the rows that the questions of an address visit.
    rates: RateLimiter,
    settings: SharedSettings,
}

/// A source exceeds its rate of questions, or of visited rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooManyQuestions;

/// The refusal of a question above a rate.
const TOO_MANY: ClientRefusal<'_> = ClientRefusal {
    verb: "question",
    verdict: "rate-limited",
    reason: "more questions, or visited rows, than a rate of its address allows",
    is_of_record: false,
    is_logged: true,
};

/// The result of a search, and its cost.
pub(crate) struct FoundPage<T, E> {
    pub(crate) result: Result<T, E>,
    /// Time until the search began.
    waited: Duration,
    rows: u64,
    driver: Option<Set>,
}

impl<T, E> FoundPage<T, E> {
    fn new(
        result: Result<T, E>,
        waited: Duration,
        search: &BoundedSearch<'_>,
        rows_max: u64,
    ) -> Self {
        let (rows, driver) = match &result {
            Ok(_) => (search.visited(), search.driver()),
            Err(_) if search.has_run_out() => (rows_max, None),
            Err(_) => (0, None),
        };
        Self { result, waited, rows, driver }
    }
}

impl Questions {
    pub(super) fn new(settings: &SharedSettings, shelf: &Shelf, at: StoreLocation) -> Self {
        Self {
            store: Arc::clone(shelf.store()),
            at,
            slots: QuestionSlots::new(at),
            slow: SlowLog::new(Arc::clone(settings), shelf.store(), shelf.network()),
            buckets: RateBuckets::default(),
            rates: RateLimiter::new(Arc::clone(settings)),
            settings: Arc::clone(settings),
        }
    }

    /// Charges a question to its source. `rate` is the network's rate of questions.
    pub(crate) fn admit(
        &self,
        from: RateSource,
        rate: Option<Rate>,
    ) -> Result<(), TooManyQuestions> {
        roster::count_question();
        let within = self.charge(RateSubject::Questions(from), rate);
        let admitted = if within { self.may_search(from) } else { Err(TooManyQuestions) };
        admitted.inspect_err(|_| roster::count_refusal(&TOO_MANY))
    }

    /// The groups of the client that this task serves.
    fn client(&self) -> Option<Arc<ClientRates>> {
        roster::find_rates(&self.settings.load().rate_groups)
    }

    /// Charges a request or a record to its subject. `rate` is the network's rate for everyone; the
    /// client's group may change the rate. Returns false if the subject exceeds the rate.
    pub(crate) fn charge(&self, subject: RateSubject, rate: Option<Rate>) -> bool {
        self.charge_in(&self.buckets, subject, rate)
    }

    /// The same with other buckets.
    pub(crate) fn charge_in(
        &self,
        buckets: &RateBuckets,
        subject: RateSubject,
        rate: Option<Rate>,
    ) -> bool {
        let Some(client) = self.client() else {
            return rate.is_none_or(|rate| buckets.charge(subject, rate).is_ok());
        };
        client.charge(buckets, subject, rate)
    }

    /// Checks that the questions of a source have not visited too many rows.
    pub(crate) fn may_search(&self, from: RateSource) -> Result<(), TooManyQuestions> {
        let may_visit = self.rates.may_visit(self.client().as_deref(), from);
        may_visit.map_err(|_| TooManyQuestions)
    }

    /// Begins the pause of a subject between two questions, or fails if the pause has not ended.
    #[cfg(feature = "devp2p")]
    pub(crate) fn pause(
        &self,
        subject: RateSubject,
        pause: Duration,
    ) -> Result<(), TooManyQuestions> {
        self.buckets.pause(subject, pause).map_err(|_| TooManyQuestions)
    }

    /// Searches for a page, and visits at most `rows_max` rows. `find` may be called twice: first
    /// on this thread, and again through the fair queue if many rows have to be visited. Charges
    /// the visited rows to the source.
    pub(crate) async fn search<T: Send + 'static, E: Send + 'static>(
        &self,
        from: RateSource,
        rows_max: u64,
        find: impl Fn(&mut BoundedSearch<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<FoundPage<T, E>, NotAsked> {
        if self.at == StoreLocation::Process {
            // The search begins on this thread, since a switch of threads would take longer than
            // nearly every search.
            let (few, waiter) = (rows_max.min(ROWS_AT_ONCE), AnswerWaiter::default());
            let mut search = BoundedSearch::new(&*self.store, &waiter, few);
            let result = find(&mut search);
            self.rates.visited(self.client().as_deref(), from, waiter.visited());
            roster::charge_rows(waiter.visited());
            if few == rows_max || !search.has_run_out() {
                return Ok(FoundPage::new(result, Duration::ZERO, &search, rows_max));
            }
        }
        let found = self.search_in_turn(from, rows_max, move |search| {
            let result = find(search);
            FoundPage::new(result, Duration::ZERO, search, rows_max)
        });
        let TurnAnswer { answer, waited } = found.await?;
        roster::charge_rows(answer.rows);
        Ok(FoundPage { waited, ..answer })
    }

    /// Waits in the fair queue, and then runs searches on a thread that may block on the disk or
    /// the database. Charges the visited rows to the source.
    pub(crate) async fn search_in_turn<T: Send + 'static>(
        &self,
        from: RateSource,
        rows_max: u64,
        find: impl FnOnce(&mut BoundedSearch<'_>) -> T + Send + 'static,
    ) -> Result<TurnAnswer<T>, NotAsked> {
        let (store, rates) = (Arc::clone(&self.store), self.rates.clone());
        let client = self.client();
        let question =
            move |waiter: &AnswerWaiter| find(&mut BoundedSearch::new(&*store, waiter, rows_max));
        self.slots
            .run_for(from, question, move |rows| rates.visited(client.as_deref(), from, rows))
            .await
    }

    /// Logs a question of the type `verb` if the question was slow. `time` is the time until the
    /// page was found.
    pub(crate) fn note<T, E>(
        &self,
        verb: &str,
        time: Duration,
        found: &FoundPage<T, E>,
        query: impl FnOnce() -> Query,
    ) {
        if self.slow.is_slow(time) {
            let FoundPage { waited, rows, driver, .. } = *found;
            let spent = SearchCost { time, waited, rows, plan: SearchDriver::from(driver) };
            let (query, client) = (query(), roster::serving());
            let asked = std::iter::once((&query, query.limit));
            self.slow.note(verb, &spent, client.as_deref(), asked);
        }
    }

    /// Ends the slow log, so that the store can be closed.
    pub(crate) fn close(&self) {
        self.slow.close();
    }

    /// The fair queue of questions.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> &QuestionSlots {
        &self.slots
    }
}
