//! The service of a network without rules of its own. A record is stored as the client encoded it,
//! and a question is one query. The server's settings bound the rates.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use hark_archive::{CommitError, Outcome, Query};
use hark_networks::search::{BoundedSearch, SearchStop};

use super::intake::NotStored;
use super::open::Service;
use super::turns::NotAsked;
use crate::metrics::{Histogram, MetricsPage};
use crate::permits::Share;
use crate::rate::{RateSource, RateSubject};

/// Maximum number of records on a page, and maximum size of the records in bytes.
const PAGE_RECORDS_MAX: usize = 500;
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Number of rows that a search visits before it checks again whether the client still waits.
const SLICE_ROWS: u64 = 4_096;

/// Why a record or a question was refused. The texts are for clients.
#[derive(Debug, thiserror::Error)]
pub enum ServiceRefusal {
    /// The client exceeds a rate limit.
    #[error("rate limit exceeded")]
    TooMany,
    /// Too many answers wait to be read, or too many questions wait in the fair queue.
    #[error("the server is busy; try again later")]
    Busy,
    /// The server is shutting down.
    #[error("the server is going down")]
    Down,
    /// The archive failed to commit the record.
    #[error("the record was not stored: {0}")]
    Archive(Arc<CommitError>),
    /// The search stopped before it had a result.
    #[error(transparent)]
    Search(#[from] SearchStop),
}

impl From<NotStored> for ServiceRefusal {
    fn from(why: NotStored) -> Self {
        match why {
            NotStored::Archive(error) => Self::Archive(error),
            NotStored::Down => Self::Down,
        }
    }
}

impl From<NotAsked> for ServiceRefusal {
    fn from(why: NotAsked) -> Self {
        match why {
            NotAsked::Line => Self::Busy,
            NotAsked::Panicked => Self::Down,
        }
    }
}

/// The records that a query has found, in the form of their network.
pub struct RecordPage {
    wires: Vec<Box<[u8]>>,
    _room: Share<RateSource>,
}

impl RecordPage {
    /// The records as lines of text, in the order of the query.
    pub fn text(&self) -> String {
        let lines = self.wires.iter().map(|wire| String::from_utf8_lossy(wire));
        lines.fold(String::new(), |text, line| text + &line + "\n")
    }
}

impl Service {
    /// Charges a record to a client, and stores the record. On return the record is durable.
    pub async fn store(&self, client: IpAddr, record: Vec<u8>) -> Result<Outcome, ServiceRefusal> {
        let began = Instant::now();
        let stored = self.put(RateSource::Address(client.into()), record).await;
        self.note(stored.is_ok().then_some(&self.figures.insert), began);
        stored
    }

    async fn put(&self, source: RateSource, record: Vec<u8>) -> Result<Outcome, ServiceRefusal> {
        let rate = self.settings.load().limits.rates.events_per_address;
        if !self.questions.charge(RateSubject::Events(source), rate) {
            return Err(ServiceRefusal::TooMany);
        }
        Ok(self.intake.enter(record).await?.submit()?.durable().await?)
    }

    /// Charges a question of the type `verb` to a client. Returns the first records that match the
    /// query.
    pub async fn ask(
        &self,
        client: IpAddr,
        verb: &str,
        query: Query,
    ) -> Result<RecordPage, ServiceRefusal> {
        let (began, source) = (Instant::now(), RateSource::Address(client.into()));
        let page = self.page(source, verb, query).await;
        self.note(page.is_ok().then_some(&self.figures.search), began);
        page
    }

    async fn page(
        &self,
        source: RateSource,
        verb: &str,
        query: Query,
    ) -> Result<RecordPage, ServiceRefusal> {
        let (settings, began) = (self.settings.load_full(), Instant::now());
        let rate = settings.limits.rates.questions_per_address;
        self.questions.admit(source, rate).map_err(|_| ServiceRefusal::TooMany)?;
        let query = Query { limit: query.limit.min(PAGE_RECORDS_MAX), ..query };
        let (asked, rows_max) = (query.clone(), settings.limits.filters.query_rows_max);
        let found = self.questions.search(source, rows_max, move |search| wires(search, &asked));
        let found = found.await?;
        self.questions.note(verb, began.elapsed(), &found, || query);
        let wires = found.result?;
        let room = self.answers.reserve(source, wires.iter().map(|wire| wire.len()).sum());
        let room = room.ok_or(ServiceRefusal::Busy)?;
        Ok(RecordPage { wires, _room: room })
    }

    /// Adds the time since `began` to `times`. Counts a refusal if `times` is `None`.
    fn note(&self, times: Option<&Histogram>, began: Instant) {
        match times {
            Some(times) => times.note(began.elapsed()),
            None => self.figures.refused.add(1),
        }
    }

    /// Writes the metrics of [`Service::store`] and [`Service::ask`]. `name` is the name of the
    /// network.
    pub fn write_metrics(&self, name: &str, page: &mut MetricsPage) {
        self.figures.write(name, page);
    }
}

/// Returns the records that match a query, up to the bounds of a page.
fn wires(search: &mut BoundedSearch<'_>, query: &Query) -> Result<Vec<Box<[u8]>>, SearchStop> {
    let (mut wires, mut bytes) = (Vec::new(), 0);
    search.run(query, SLICE_ROWS, &mut |record| {
        bytes += record.wire().len();
        if bytes > PAGE_BYTES_MAX && !wires.is_empty() {
            return ControlFlow::Break(());
        }
        wires.push(record.wire().into());
        ControlFlow::Continue(())
    })?;
    Ok(wires)
}
