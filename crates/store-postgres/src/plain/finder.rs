//! The steps of a search on one server: read keys from ordered index ranges, then fetch the records
//! of these keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::label_storage::LabelStorage;
use super::plan::{PlainStage, PlanHints, plan};
use super::statement::PlainStatement;
use super::walk::GatherResult;
use super::word_walk::still_indexed;
use crate::error::StatementError;
use crate::search::found::{FETCH_PARTS_MAX, FinderState, PAGE_BYTES_MAX, matching, read_fitting};
use crate::search::recent::FetchedRecord;
use crate::search::{SearchState, SearchSteps, StepSession};
use crate::session::DatabaseSession;
use crate::time::IndexKey;
use crate::words::mark::mark;

/// If at least `RARE_MIN` records were fetched and fewer than one in `RARE_SHARE` of them matches,
/// the rows of common conditions are counted, too.
const RARE_MIN: usize = 500;
const RARE_SHARE: usize = 16;

/// The steps of a search on one server.
pub(super) struct PlainSteps {
    stage: PlainStage,
    hints: PlanHints,
    labels: LabelStorage,
}

impl PlainSteps {
    pub(super) fn new(labels: LabelStorage) -> Self {
        Self { stage: PlainStage::Start, hints: PlanHints::default(), labels }
    }
}

impl SearchSteps for PlainSteps {
    fn find(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        mut session: StepSession<'_>,
    ) -> Result<(), StatementError> {
        let session = session.required()?;
        let reach = found.reach();
        match &mut self.stage {
            PlainStage::Start => {
                self.stage = plan(found, (self.hints, self.labels), shared, session)?;
            }
            PlainStage::Walk(walk) => {
                let before = walk.visited;
                let parts = shared.parts();
                let gathered =
                    walk.gather(&found.asked, &parts, reach, &mut found.keys, session)?;
                found.visited += walk.visited - before;
                match gathered {
                    GatherResult::Some => {}
                    GatherResult::All => found.is_over = true,
                    GatherResult::Instead(at) => {
                        found.asked.query.after = Some(at.position());
                        (self.stage, self.hints.by_value) = (PlainStage::Start, true);
                    }
                }
            }
            PlainStage::Pages(pages) => {
                let (before, fetched) = (pages.visited, pages.fetched);
                let reach = reach.min(found.page_max);
                let page = pages.next(&found.asked, &shared.parts(), reach, session)?;
                found.visited += pages.visited - before;
                found.fetched += pages.fetched - fetched;
                found.add_page(page);
                // A common condition may be met by far fewer records than expected, or by no
                // record.
                let is_rare =
                    found.fetched >= RARE_MIN && found.matched * RARE_SHARE < found.fetched;
                if let Some(at) = pages.resumes_behind()
                    && is_rare
                    && !self.hints.by_size
                    && found.asked.common.contains(&true)
                {
                    found.asked.query.after = Some(at.position());
                    (self.stage, self.hints.by_size) = (PlainStage::Start, true);
                }
            }
            PlainStage::Terms(terms) => {
                let (before, fetched) = (terms.visited, terms.fetched);
                let reach = reach.min(found.page_max);
                let page = terms.next(&found.asked, &shared.parts(), reach, session)?;
                found.visited += terms.visited - before;
                found.fetched += terms.fetched - fetched;
                found.add_page(page);
            }
            PlainStage::Words(words) => {
                let (before, fetched) = (words.visited, words.fetched);
                let reach = reach.min(found.page_max);
                let page = words.next(&found.asked, &shared.parts(), reach, session)?;
                found.visited += words.visited - before;
                found.fetched += words.fetched - fetched;
                found.add_page(page);
            }
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        mut session: StepSession<'_>,
    ) -> Result<(), StatementError> {
        let session = session.required()?;
        let count = found.reach().clamp(1, found.fetch_max).min(found.keys.len());
        let (count, bodies) =
            read_fitting(count, |count, _| bodies(found, shared, count, session))?;
        let records = bodies.iter().map(|(_, body)| &**body);
        let records = matching(&found.asked, records, &mut found.visited)?;
        found.add_fetched(count, records);
        Ok(())
    }
}

/// The index of a key, and the bytes of its record.
type IndexedBody = (usize, Arc<[u8]>);

/// Returns the records of the first `count` keys, each with the index of its key, in order. Returns
/// `None` if the records are too long to be read at once.
fn bodies(
    found: &FinderState,
    shared: &SearchState,
    count: usize,
    session: &mut DatabaseSession,
) -> Result<Option<Vec<IndexedBody>>, StatementError> {
    let keys: Vec<IndexKey> = found.keys.iter().take(count).copied().collect();
    let mut bodies: Vec<IndexedBody> = Vec::new();
    // Probed words are compared in the database, so a search with probed words cannot use the
    // cache.
    let era = found.asked.era.filter(|_| found.asked.probes.is_empty());
    let cache = era.and_then(|era| Some((era, shared.recent.as_ref()?)));
    let missing: Vec<usize> = if let Some((era, recent)) = cache {
        recent.find(&keys, era, found.asked.seq, |at, body| bodies.push((at, body)))
    } else {
        (0..count).collect()
    };
    if !missing.is_empty() {
        let some: Vec<IndexKey> = missing.iter().map(|&at| keys[at]).collect();
        let parts = shared.parts();
        let rows = match rows(found, &some, &|key| parts.of_time(key.time), session) {
            // A part may have been dropped, or a lagging replica may not have the part yet.
            Err(StatementError::Missing(_)) => rows(found, &some, &|_| None, session)?,
            rows => rows?,
        };
        let Some(rows) = rows else { return Ok(None) };
        let record = |(at, row): &(usize, Row)| {
            let seq = if cache.is_some() { row.get(2) } else { 0 };
            (missing[*at], FetchedRecord { seq, body: row.get::<_, &[u8]>(1).into() })
        };
        let fetched: Vec<(usize, FetchedRecord)> = rows.iter().map(record).collect();
        if let Some((era, recent)) = cache {
            let records = fetched.iter().map(|(at, record)| (keys[*at], record.clone()));
            recent.insert(era, found.asked.seq, records);
        }
        bodies.extend(fetched.into_iter().map(|(at, record)| (at, record.body)));
    }
    bodies.sort_unstable_by_key(|(index, _)| *index);
    Ok(Some(bodies))
}

/// Returns the rows of `keys`, each with the index of its key in `keys`. If the rows are in at most
/// [`FETCH_PARTS_MAX`] parts, they are read from the tables of these parts. Returns `None` if the
/// rows of a table have more than [`PAGE_BYTES_MAX`] bytes; a single row may have more.
fn rows(
    found: &FinderState,
    keys: &[IndexKey],
    part: &dyn Fn(&IndexKey) -> Option<i64>,
    session: &mut DatabaseSession,
) -> Result<Option<Vec<(usize, Row)>>, StatementError> {
    let mut by_part: BTreeMap<Option<i64>, Vec<usize>> = BTreeMap::new();
    for (index, key) in keys.iter().enumerate() {
        by_part.entry(part(key)).or_default().push(index);
    }
    if by_part.len() > FETCH_PARTS_MAX {
        by_part = BTreeMap::from([(None, (0..keys.len()).collect())]);
    }
    let cut = found.asked.cut(found.driver);
    let values: Vec<(Vec<i64>, Vec<&[u8]>)> = by_part
        .values()
        .map(|indices| indices.iter().map(|&at| (keys[at].time, &keys[at].id[..])).unzip())
        .collect();
    let values: Vec<[&(dyn ToSql + Sync); 4]> = values
        .iter()
        .map(|(times, ids)| [times as _, ids as _, &found.asked.seq as _, &cut as _])
        .collect();
    let probes = &found.asked.probes;
    let marks: Vec<Vec<i64>> = by_part
        .values()
        .filter(|_| !probes.is_empty())
        .map(|indices| indices.iter().map(|&at| mark(&keys[at].id)).collect())
        .collect();
    let mut given: Vec<Vec<&(dyn ToSql + Sync)>> =
        values.iter().map(|values| values.to_vec()).collect();
    for (given, marks) in given.iter_mut().zip(&marks) {
        given.extend([marks as &(dyn ToSql + Sync), probes]);
    }
    let form: fn(Option<i64>) -> PlainStatement =
        if probes.is_empty() { PlainStatement::Bodies } else { PlainStatement::WordedBodies };
    let mut calls: Vec<_> =
        by_part.keys().zip(&given).map(|(part, given)| (form(*part).into(), &given[..])).collect();
    if !probes.is_empty() {
        calls.push((PlainStatement::WordState.into(), &[]));
    }
    let mut answers = if session.is_traced() {
        // Only these statements are explained.
        session.pipeline(&calls)?
    } else {
        let first = session.begin(&calls, PAGE_BYTES_MAX)?.wait(Duration::MAX, &mut || true)?;
        if first.iter().any(|(_, is_cut)| *is_cut) {
            return Ok(None);
        }
        first.into_iter().map(|(rows, _)| rows).collect()
    };
    if !probes.is_empty() {
        still_indexed(&found.asked, &answers.pop().unwrap_or_default())?;
    }
    let rows = by_part.values().zip(answers).flat_map(|(indices, rows)| {
        rows.into_iter().map(|row| (indices[row.get::<_, i64>(0) as usize - 1], row))
    });
    Ok(Some(rows.collect()))
}
