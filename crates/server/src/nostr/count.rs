//! The answer to a COUNT (NIP-45): how many match any of the filters, exactly.
//!
//! The first filter is counted by the store. Of each further one those count that match no filter
//! before it, so that none counts twice and none has to be remembered.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::{Progress, Query, Record, Search};
use hark_codec::nostr::reply;

use super::Relay;
use super::page::{BUG, TOO_MUCH};
use crate::line::{Line, Ticket};
use crate::readers::{Job, Turn};

pub(super) struct Counting {
    relay: Arc<Relay>,
    line: Arc<Line>,
    id: Box<str>,
    /// Normalised and without limits.
    queries: Vec<Query>,
    at: usize,
    search: Option<Box<dyn Search>>,
    visited: u64,
    count: u64,
    _ticket: Ticket,
}

impl Counting {
    pub(super) fn new(
        relay: Arc<Relay>,
        line: Arc<Line>,
        id: &str,
        mut queries: Vec<Query>,
        ticket: Ticket,
    ) -> Self {
        for query in &mut queries {
            query.limit = usize::MAX;
        }
        Self {
            relay,
            line,
            id: id.into(),
            queries,
            at: 0,
            search: None,
            visited: 0,
            count: 0,
            _ticket: ticket,
        }
    }

    fn work(&mut self) -> Result<Turn, String> {
        if self.at == 0 {
            if let Some(first) = self.queries.first() {
                let count = self.relay.store.count(first).map_err(|error| error.to_string())?;
                self.count = count.ok_or(TOO_MUCH)?;
            }
            self.at = 1;
        }
        let Some(query) = self.queries.get(self.at) else {
            self.relay.metrics.counts.add(1);
            self.line.say(|out| reply::write_count(out, &self.id, self.count, false, None));
            return Ok(Turn::Done);
        };
        let mut search = if let Some(search) = self.search.take() {
            search
        } else {
            let budget = query.budget.saturating_sub(self.visited);
            let query = Query { budget, ..query.clone() };
            self.relay.store.search(&query).map_err(|error| error.to_string())?
        };
        let (before, count) = (&self.queries[..self.at], &mut self.count);
        let progress = search.slice(self.relay.limits.slice_rows, &mut |record: &Record<'_>| {
            if !before.iter().any(|query| query.matches(record)) {
                *count += 1;
            }
            ControlFlow::Continue(())
        });
        match progress.map_err(|error| error.to_string())? {
            Progress::Paused => self.search = Some(search),
            Progress::Done { .. } => {
                self.visited += search.visited();
                self.relay.metrics.rows_visited.add(search.visited());
                self.at += 1;
            }
            Progress::Exhausted => return Err(TOO_MUCH.into()),
        }
        Ok(Turn::More)
    }
}

impl Job for Counting {
    fn turn(&mut self) -> Turn {
        if self.line.is_gone() {
            return Turn::Done;
        }
        self.work().unwrap_or_else(|reason| {
            self.relay.metrics.questions_refused.add(1);
            let reason = format!("error: {reason}");
            self.line.say(|out| reply::write_closed(out, &self.id, &reason));
            Turn::Done
        })
    }

    fn fail(&mut self) {
        self.relay.metrics.questions_refused.add(1);
        self.line.say(|out| reply::write_closed(out, &self.id, BUG));
    }

    fn line(&self) -> Arc<Line> {
        Arc::clone(&self.line)
    }
}
