//! The steps of a search of distributed tables. The search reads windows of time, and fetches
//! records by their places.

use hark_archive::query::plan::Set;

use super::density::density;
use super::places::{self, Place};
use super::reader::ShelfReader;
use super::statement::ValueCount;
use super::windows::WindowWalk;
use crate::error::StatementError;
use crate::search::asked::compare;
use crate::search::found::{FETCH_MAX, FinderState, IDS_BYTES_MAX, PAGE_BYTES_MAX, matching};
use crate::search::{SearchState, SearchSteps, SqlQuery, StepSession};
use crate::time::IndexKey;

/// The steps of a search of distributed tables.
#[derive(Default)]
pub(super) struct CitusSteps {
    /// `None` before the search is planned.
    windows: Option<Box<WindowWalk>>,
}

impl SearchSteps for CitusSteps {
    fn find(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        session: StepSession<'_>,
    ) -> Result<(), StatementError> {
        noted(shared, self.find_next(found, shared, session))
    }

    fn fetch(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        session: StepSession<'_>,
    ) -> Result<(), StatementError> {
        noted(shared, fetch(found, shared, session))
    }
}

/// Notes the result of a step, which may show whether the coordinator reaches the workers.
fn noted<T>(shared: &SearchState, result: Result<T, StatementError>) -> Result<T, StatementError> {
    match &shared.shards {
        Some(shards) => shards.ended(result),
        None => result,
    }
}

impl CitusSteps {
    fn find_next(
        &mut self,
        found: &mut FinderState,
        shared: &SearchState,
        session: StepSession<'_>,
    ) -> Result<(), StatementError> {
        let Some(windows) = &mut self.windows else {
            if found.asked.query.ids.is_some() {
                return find_ids(found, shared, session);
            }
            self.windows = Some(Box::new(plan(found, shared, session)?));
            return Ok(());
        };
        let before = windows.visited;
        let reach = found.reach().min(found.page_max);
        let mut reader = ShelfReader::new(&found.asked, shared, session);
        let page = windows.next(&found.asked, reach, &mut reader)?;
        let passed = windows.visited - before;
        found.visited += passed;
        if page.is_some() {
            found.fetched += usize::try_from(passed).unwrap_or(usize::MAX);
        }
        found.add_page(page);
        Ok(())
    }
}

/// Fetches the records of the next keys. The places of ids are looked up first.
fn fetch(
    found: &mut FinderState,
    shared: &SearchState,
    session: StepSession<'_>,
) -> Result<(), StatementError> {
    let mut count = found.reach().clamp(1, found.fetch_max).min(found.keys.len());
    let keys: Vec<IndexKey> = found.keys.iter().take(count).copied().collect();
    let asked = &found.asked;
    let mut reader = ShelfReader::new(asked, shared, session);
    let ids: Vec<&[u8]> = keys.iter().map(|key| &key.id[..]).collect();
    let places = reader.places(&ids)?;
    let mut records = loop {
        let placed = keys.iter().take(count);
        let placed = placed.filter_map(|key| Some((*key, *places.get(&key.id)?)));
        let placed: Vec<_> = placed.collect();
        let bytes_max = if count == 1 { usize::MAX } else { PAGE_BYTES_MAX };
        match reader.bodies_within(bytes_max, &placed, asked.seq, None)? {
            Some(records) => break records,
            None => count = (count / 4).max(1),
        }
    };
    records.sort_unstable_by(|(a, _), (b, _)| compare(asked.query.order, a, b));
    let records = records.iter().map(|(_, body)| &body[..]);
    let records = matching(asked, records, &mut found.visited)?;
    found.add_fetched(count, records);
    Ok(())
}

/// Finds the records of ids.
fn find_ids(
    found: &mut FinderState,
    shared: &SearchState,
    session: StepSession<'_>,
) -> Result<(), StatementError> {
    let asked = &found.asked;
    let ids: Vec<&[u8]> = asked.query.ids.iter().flatten().map(|id| &id[..]).collect();
    let mut reader = ShelfReader::new(asked, shared, session);
    let placed = if asked.on_shards {
        reader.places(&ids)?
    } else {
        places::all_places(reader.session()?, ids.iter().copied())?
    };
    let keys = placed.into_iter().map(|(id, place)| (IndexKey { time: 0, id }, place));
    let keys: Vec<(IndexKey, Place)> = keys.collect();
    let (mut records, mut left) = (Vec::new(), IDS_BYTES_MAX);
    found.driver = Some(Set::Ids);
    found.visited += ids.len() as u64;
    // The records can be sorted by time only after all pages are read.
    for page in keys.chunks(FETCH_MAX) {
        let Some(read) = reader.bodies_within(left, page, asked.seq, None)? else {
            // Only the times of the records are read now. Then the records are read page by page.
            let ids: Vec<&[u8; 32]> = keys.iter().map(|(key, _)| &key.id).collect();
            let mut keys = places::times(reader.session()?, &ids, asked.seq)?;
            keys.retain(|key| asked.lies_ahead(key));
            keys.sort_unstable_by(|a, b| compare(asked.query.order, a, b));
            found.keys.extend(keys);
            found.is_over = true;
            return Ok(());
        };
        left = left.saturating_sub(read.iter().map(|(_, body)| body.len()).sum());
        records.extend(read);
    }
    records.retain(|(key, _)| asked.lies_ahead(key));
    records.sort_unstable_by(|(a, _), (b, _)| compare(asked.query.order, a, b));
    let records = records.iter().map(|(_, body)| &body[..]);
    let records = matching(asked, records, &mut found.visited)?;
    found.bodies.extend(records);
    found.is_over = true;
    Ok(())
}

/// Chooses the condition that drives the search, and the width of the first window.
fn plan(
    found: &mut FinderState,
    shared: &SearchState,
    session: StepSession<'_>,
) -> Result<WindowWalk, StatementError> {
    let (asked, wanted) = (&found.asked, found.wanted());
    let mut walk = WindowWalk::new(asked);
    let mut reader = ShelfReader::new(asked, shared, session);
    let drivers = drivers(asked);
    let alone = drivers.len() == 1;
    for &set in &drivers {
        let Set::Label(at) = set else { continue };
        walk.drive(asked, set);
        if asked.terms[at].as_ref().is_some_and(Vec::is_empty)
            || !(alone && walk.is_ordered()) && walk.read_few(asked, &mut reader)?
        {
            break;
        }
    }
    if !walk.is_through() {
        let first = drivers.iter().find(|set| **set == Set::Authors).or(drivers.first());
        walk.drive(asked, first.copied().unwrap_or(Set::Time));
        let is_one = walk.form().values == ValueCount::One;
        // If one shard can answer the query, only this shard is queried, unless it has very many
        // rows. If Hark reads the shards directly, ordered ranges of all shards need no window
        // either: each shard is read in order, and only as far as needed.
        let is_ordered = walk.is_ordered() && (is_one || reader.has_shards());
        if !(is_ordered || is_one && walk.read_few(asked, &mut reader)?) {
            let reader = &mut reader;
            walk.begin(density(&shared.density, move || reader.session())?, wanted);
        }
    }
    found.driver = Some(walk.set);
    found.visited += walk.visited;
    Ok(walk)
}

/// Returns the conditions that may drive a search. Labels with few values come first.
fn drivers(asked: &SqlQuery) -> Vec<Set> {
    if let Some(set) = asked.driver {
        return vec![set];
    }
    let mut labels: Vec<usize> =
        (0..asked.terms.len()).filter(|&at| asked.terms[at].is_some()).collect();
    labels.sort_by_key(|&at| asked.terms[at].as_ref().map_or(0, Vec::len));
    let authors = asked.query.authors.as_ref().map(|_| Set::Authors);
    let rare = labels.iter().filter(|&&at| !asked.common[at]).map(|&at| Set::Label(at));
    let rare: Vec<Set> = rare.chain(authors).collect();
    if rare.is_empty() { labels.into_iter().map(Set::Label).collect() } else { rare }
}
